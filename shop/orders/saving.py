"""The Save that strategies are given, its undoing, and its refusals as rows: many orders in few statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from uuid import UUID

import orjson
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from inventory import stock
from inventory.errors import Duplicate, OverLimit, Refusal, SaleClosed, UnknownCustomer
from inventory.requests import Buyer, OrderRequest, RequestItem, Returned
from inventory.strategies import registry
from shop.models import Allowance, Order, OrderItem

# In one order for everybody, so that batches cannot wait for each other in a circle; of twins the first comes first.
# A key that the customer has used before makes the row, and so its items, not appear. A twin that is still being
# written is waited for: the unique index is the truth, in every process and after every crash. A token outlives the
# account that it was made for, and a sale is closed or postponed after an offer was read, so both are looked at here.
# Counting the allowances locks them until the commit; what goes beyond a limit is undone before that.
INSERT = """
    WITH request AS (
        SELECT *
          FROM jsonb_to_recordset(%(requests)s::jsonb)
               AS request (id uuid, customer bigint, sale bigint, key text, body_hash text, created_at timestamptz,
                         items jsonb)
    ), item AS (
        SELECT id AS request, item.*
          FROM request, jsonb_to_recordset(items) AS item (sku text, quantity int, price numeric)
    ), placed AS (
        INSERT INTO shop_order (id, customer_id, sale_id, state, key, body_hash, created_at, payable_from)
        SELECT request.id, customer, sale, 'pending', key, body_hash, created_at,
               coalesce(%(payable_from)s::timestamptz, created_at)
          FROM request
         WHERE (SELECT is_active FROM auth_user WHERE auth_user.id = customer)
           AND (SELECT opens_at <= request.created_at AND request.created_at < closes_at
                  FROM shop_sale WHERE shop_sale.id = sale)
         ORDER BY customer, key, request.id
        ON CONFLICT DO NOTHING
        RETURNING id, customer_id, sale_id
    ), items AS (
        INSERT INTO shop_orderitem (order_id, sku, quantity, price)
        SELECT id, sku, quantity, price FROM placed JOIN item ON request = id
    ), counted AS (
        INSERT INTO shop_allowance (sale_id, customer_id, sku, taken)
        SELECT sale_id, customer_id, sku, sum(quantity)
          FROM placed JOIN item ON request = id
         GROUP BY sale_id, customer_id, sku
         ORDER BY sale_id, customer_id, sku
        ON CONFLICT (sale_id, customer_id, sku) DO UPDATE SET taken = shop_allowance.taken + excluded.taken
        RETURNING sale_id, customer_id, sku, taken
    )
    SELECT id, sku, taken
      FROM placed JOIN item ON request = id JOIN counted USING (sale_id, customer_id, sku)
"""

# A customer who asks for the order finds it under its own id also when another order has its key. Nobody is left to ask
# where the customer or the sale is gone, and then there is no row.
REJECT = """
    WITH request AS (
        SELECT *
          FROM jsonb_to_recordset(%(requests)s::jsonb)
               AS request (id uuid, customer bigint, sale bigint, key text, body_hash text, created_at timestamptz,
                         items jsonb, reason text)
    ), rejected AS (
        INSERT INTO shop_order (id, customer_id, sale_id, state, reason, key, body_hash, created_at, payable_from)
        SELECT request.id, customer, sale, 'rejected', left(reason, 200),
               CASE WHEN EXISTS (SELECT FROM shop_order WHERE customer_id = customer AND shop_order.key = request.key)
                      OR row_number() OVER (PARTITION BY customer, request.key ORDER BY request.id) > 1
                    THEN request.id::text
                    ELSE request.key
               END,
               body_hash, created_at, created_at
          FROM request
          JOIN auth_user ON auth_user.id = customer
          JOIN shop_sale ON shop_sale.id = sale
         ORDER BY customer, request.key, request.id
        ON CONFLICT DO NOTHING
        RETURNING id
    ), items AS (
        INSERT INTO shop_orderitem (order_id, sku, quantity, price)
        SELECT rejected.id, item.sku, item.quantity, item.price
          FROM rejected
          JOIN request USING (id), jsonb_to_recordset(items) AS item (sku text, quantity int, price numeric)
          JOIN shop_product ON shop_product.sku = item.sku
    )
    SELECT count(*) FROM rejected
"""

ACTIVE = "SELECT id FROM auth_user WHERE id = ANY(%(customers)s) AND is_active"

EXISTING = """
    SELECT request.id, shop_order.id, shop_order.body_hash = request.body_hash
      FROM unnest(%(ids)s::uuid[], %(customers)s::bigint[], %(keys)s::text[], %(hashes)s::text[])
           AS request (id, customer, key, body_hash)
      JOIN shop_order ON shop_order.customer_id = request.customer AND shop_order.key = request.key
"""

CORRECT_ALLOWANCES = """
    UPDATE shop_allowance
       SET taken = decided.taken
      FROM unnest(%(sales)s::bigint[], %(customers)s::bigint[], %(skus)s::text[], %(taken)s::int[])
           AS decided (sale, customer, sku, taken)
     WHERE (sale_id, customer_id, shop_allowance.sku) = (decided.sale, decided.customer, decided.sku)
"""

DELETE = """
    WITH items AS (DELETE FROM shop_orderitem WHERE order_id = ANY(%(ids)s))
    DELETE FROM shop_order WHERE id = ANY(%(ids)s)
"""

RETURN_ALLOWANCES = """
    WITH returned AS (
        SELECT sale_id, customer_id, sku, sum(quantity) AS units
          FROM shop_order JOIN shop_orderitem ON order_id = shop_order.id
         WHERE shop_order.id = ANY(%(ids)s)
         GROUP BY sale_id, customer_id, sku
    ), locked AS (
        SELECT shop_allowance.id, units
          FROM shop_allowance JOIN returned USING (sale_id, customer_id, sku)
         ORDER BY sale_id, customer_id, sku
           FOR UPDATE OF shop_allowance
    )
    UPDATE shop_allowance SET taken = taken - units FROM locked WHERE shop_allowance.id = locked.id
"""

# The limit is the sale's of today. What goes beyond it is undone by whoever asked.
COUNT_AGAIN = """
    WITH wanted AS (
        SELECT shop_order.sale_id, customer_id, item.sku, quantity, "limit"
          FROM shop_order
          JOIN shop_orderitem AS item ON order_id = shop_order.id
          JOIN shop_product ON shop_product.sku = item.sku
          LEFT JOIN shop_saleitem AS offered
                 ON offered.sale_id = shop_order.sale_id AND offered.product_id = shop_product.id
         WHERE shop_order.id = %(order)s
    ), counted AS (
        INSERT INTO shop_allowance (sale_id, customer_id, sku, taken)
        SELECT sale_id, customer_id, sku, quantity FROM wanted ORDER BY sku
        ON CONFLICT (sale_id, customer_id, sku) DO UPDATE SET taken = shop_allowance.taken + excluded.taken
        RETURNING sku, taken
    )
    SELECT sku, "limit", taken - quantity FROM wanted JOIN counted USING (sku) WHERE taken > "limit" ORDER BY sku
"""


def save(requests: Sequence[OrderRequest], *, payable_from: datetime | None = None) -> Mapping[UUID, Refusal]:
    """Write orders, their items and the customers' allowances inside the transaction that is open.

    One statement however many requests; two more to say why one was not written, and two to undo those that a limit
    refuses. Allowances are counted without a limit too: one that is set in the middle of a sale then knows what was
    bought before.

    Args:
        payable_from: of orders that were queued: until they are saved nobody can pay them. None: from their placing.

    Returns:
        Why a request was not written, by its id. `Duplicate` comes before `OverLimit`: a retry is not a new order.
    """
    with connection.cursor() as cursor:
        cursor.execute(INSERT, {"requests": orjson.dumps(requests, default=str).decode(), "payable_from": payable_from})
        counted = {(row[0], row[1]): row[2] for row in cursor.fetchall()}
        placed = {request for request, _ in counted}
        refusals: dict[UUID, Refusal] = {}
        if missing := [request for request in requests if request.id not in placed]:
            refusals.update(_why(cursor, missing))
        written = [request for request in requests if request.id in placed]
        if any(
            item.limit is not None and counted[request.id, item.sku] > item.limit
            for request in written
            for item in request.items
        ):
            refusals.update(_undo_over_limit(cursor, written, counted))
    return refusals


def _why(cursor: CursorWrapper, requests: Sequence[OrderRequest]) -> dict[UUID, Refusal]:
    """Why the requests were not placed."""
    customers = [request.customer for request in requests]
    cursor.execute(
        EXISTING,
        {
            "ids": [request.id for request in requests],
            "customers": customers,
            "keys": [request.key for request in requests],
            "hashes": [request.body_hash for request in requests],
        },
    )
    existing = {request: (order, same) for request, order, same in cursor.fetchall()}
    cursor.execute(ACTIVE, {"customers": customers})
    active = {row[0] for row in cursor.fetchall()}

    def why(request: OrderRequest) -> Refusal:
        if request.id in existing:
            order, same = existing[request.id]
            return Duplicate(order, same=same)
        return SaleClosed(request.sale) if request.customer in active else UnknownCustomer(request.customer)

    return {request.id: why(request) for request in requests}


def _undo_over_limit(
    cursor: CursorWrapper, placed: Sequence[OrderRequest], counted: Mapping[tuple[UUID, str], int]
) -> dict[UUID, Refusal]:
    """Go through the orders again in order of arrival, and undo those that go beyond a limit.

    Args:
        counted: what the customer has taken of the sku with this batch, by request and sku.
    """
    items = [
        ((request.sale, request.customer, item.sku), request, item) for request in placed for item in request.items
    ]
    taken = {key: counted[request.id, item.sku] for key, request, item in items}
    for key, _, item in items:
        taken[key] -= item.quantity
    refusals: dict[UUID, Refusal] = {}
    for request in placed:
        mine = {(request.sale, request.customer, item.sku): item for item in request.items}
        over = [
            OverLimit(item.sku, limit=item.limit, taken=taken[key])
            for key, item in mine.items()
            if item.limit is not None and taken[key] + item.quantity > item.limit
        ]
        if over:
            refusals[request.id] = over[0]
        else:
            for key, item in mine.items():
                taken[key] += item.quantity
    cursor.execute(DELETE, {"ids": list(refusals)})
    sales, customers, skus = (list(column) for column in zip(*taken, strict=True))
    cursor.execute(
        CORRECT_ALLOWANCES, {"sales": sales, "customers": customers, "skus": skus, "taken": list(taken.values())}
    )
    return refusals


def reject(refused: Mapping[OrderRequest, str]) -> None:
    """Write what Redis has admitted and Postgres refuses as rejected orders, inside the transaction that is open.

    They hold no stock and no allowance. One statement however many, and one more where somebody was faster; a request
    that is an order by now stays what it is.

    Args:
        refused: the reason of each, in words for the customer.
    """
    if refused:
        requests = [{**asdict(request), "reason": reason} for request, reason in refused.items()]
        arguments = {"requests": orjson.dumps(requests, default=str).decode()}
        with connection.cursor() as cursor:
            cursor.execute(REJECT, arguments)
            if cursor.fetchone()[0] < len(requests):
                # An order under the same key may have been committed while this waited for it: by now it is seen.
                cursor.execute(REJECT, arguments)


def return_units(orders: Sequence[UUID]) -> None:
    """Give back the units and allowances of orders that stand no longer, in the transaction that ends them."""
    if not orders:
        return
    items = OrderItem.objects.filter(order__in=orders).select_related("order")
    returned = [
        Returned(item.order.sale_id, item.order.customer_id, str(item.product_id), item.quantity) for item in items
    ]
    units: Counter[str] = Counter()
    for each in returned:
        units[each.sku] += each.quantity
    stock.give_back(units.items())
    with connection.cursor() as cursor:
        cursor.execute(RETURN_ALLOWANCES, {"ids": list(orders)})
    transaction.on_commit(lambda: registry.given_back(returned, saved), robust=True)


def take_again(order: Order) -> None:
    """Take the units and allowances of an order that had given them back, in the transaction that makes it stand again.

    Raises:
        SoldOut: somebody else has bought them.
        OverLimit: the customer has bought as many by another order.
            The caller rolls back what was taken by then.
    """
    items = [
        RequestItem(str(stock_item.product_id), stock_item.quantity, stock_item.price)
        for stock_item in order.items.all()
    ]
    # All of them before any segment, as a cart that gathers does, and whoever preheats the sale or ends it.
    stock.lock([item.sku for item in items])
    for item in sorted(items, key=lambda item: item.sku):
        stock.take_from_all(item)
    with connection.cursor() as cursor:
        cursor.execute(COUNT_AGAIN, {"order": order.pk})
        for sku, limit, taken in cursor.fetchall():
            raise OverLimit(sku, limit=limit, taken=taken)
    taken_again = [Returned(order.sale_id, order.customer_id, item.sku, -item.quantity) for item in items]
    transaction.on_commit(lambda: registry.given_back(taken_again, saved), robust=True)


def taken(sku: str, sales: Collection[int]) -> Mapping[Buyer, int]:
    """How many units of a sku each customer of these sales has by orders that stand."""
    allowances = Allowance.objects.filter(sale__in=sales, sku=sku).values_list("sale", "customer", "taken")
    return {(sale, customer): units for sale, customer, units in allowances}


def saved(requests: Collection[UUID]) -> set[UUID]:
    """Which of these requests were sold, in whatever state their orders are now; one that was rejected never was."""
    if not requests:
        return set()
    return set(Order.objects.filter(pk__in=requests).exclude(state=Order.State.REJECTED).values_list("pk", flat=True))
