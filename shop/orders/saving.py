"""Write many orders in few SQL statements: save or reject them, return their units, or take returned units again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any
from uuid import UUID

import msgspec
from django.db import DatabaseError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import F
from psycopg import Error

from inventory import stock
from inventory.errors import Duplicate, OverLimit, Refusal, SaleClosed, UnknownCustomer
from inventory.requests import OrderRequest, RequestItem, ReturnedUnits, SaveAtOnce, Taking
from inventory.strategies import registry
from shop import clock
from shop.models import Order, OrderItem
from shop.orders.errors import SalePaused
from shop.sold import saved

# Rows are written in the order of customer, key and id. So two batches cannot deadlock, and the first of two requests
# with the same key is saved.
# If an order of the customer already has the key, the unique index refuses the new order and no items are written. If
# the transaction of that other order is still open, this statement waits for its end.
# A function of Postgres (migration 0019) checks accounts and sales again: a token may outlive its account, and a sale
# may be closed or postponed after its offer was read. A paused sale refuses new orders, but orders from the queue were
# accepted before the pause, so they are saved. Only the statement for orders from the queue has a `payable_from`. By
# this value, the function recognises that the orders come from the queue.
# Counting the allowances locks them until the commit. Before the commit, `Saver` deletes orders that exceed a limit.
# An order with a total of 0 is saved as paid, because nobody pays an amount of 0. A pending order would expire.
REQUESTS = """
    request AS (
        SELECT *
          FROM jsonb_to_recordset(%(requests)s::jsonb)
               AS request (id uuid, customer bigint, sale bigint, key text, body_hash text, created_at timestamptz,
                         items jsonb)
    ), item AS (
        SELECT id AS request, customer, sale, item.*
          FROM request,
               jsonb_to_recordset(items) AS item (sku text, quantity int, price numeric, name text, "limit" int)
    )
"""
ORDERS = """
    placed AS (
        INSERT INTO shop_order (id, customer_id, sale_id, currency, state, key, body_hash, created_at, payable_from)
        SELECT request.id, customer, sale, (SELECT currency FROM shop_sale WHERE shop_sale.id = sale),
               CASE WHEN EXISTS (SELECT FROM jsonb_to_recordset(items) AS item (price numeric) WHERE price <> 0)
                    THEN 'pending'
                    ELSE 'paid'
               END,
               key, body_hash, created_at,
               coalesce(%(payable_from)s::timestamptz, created_at)
          FROM request
         WHERE CASE WHEN {stock_is_taken}
                    THEN shop_accepts_order(customer, sale, created_at, %(payable_from)s::timestamptz IS NOT NULL)
               END
         ORDER BY customer, key, request.id
        ON CONFLICT DO NOTHING
        RETURNING id, customer_id, sale_id
    ), items AS (
        INSERT INTO shop_orderitem (order_id, sku, quantity, price, name)
        SELECT id, sku, quantity, price, name FROM placed JOIN item ON request = id
    ), counted AS (
        INSERT INTO shop_allowance (sale_id, customer_id, sku, taken)
        SELECT sale_id, customer_id, sku, sum(quantity)
          FROM placed JOIN item ON request = id
         GROUP BY sale_id, customer_id, sku
         ORDER BY sale_id, customer_id, sku
        ON CONFLICT (sale_id, customer_id, sku) DO UPDATE SET taken = shop_allowance.taken + excluded.taken
        RETURNING sale_id, customer_id, sku, taken
    )
"""
INSERT = f"""
    WITH {REQUESTS}, {ORDERS.format(stock_is_taken="true")}
    SELECT id, sku, taken
      FROM placed JOIN item ON request = id JOIN counted USING (sale_id, customer_id, sku)
"""

# Take the stock first, and then write the orders: all transactions lock in this sequence, so no two deadlock.
# A statement sees only what was committed before it began. But it may wait a long time for the stock row, and the sale
# may be paused during this wait. So `shop_accepts_order` reads the sale again. `CASE` makes Postgres call this function
# only after the stock was taken.
# `looked_up` prevents taking stock if an order repeats a key or exceeds a limit. It does not notice if another
# transaction uses the key or the limit at the same moment, or if only some of the skus have enough units. In each of
# these cases, `shop_all_or_nothing` at the end of the statement raises an error, which undoes the whole statement.
# With LIMIT, Postgres looks up each row in an index and does not join the whole table. If a table was nearly empty at
# its last ANALYZE, Postgres still reads all of it, so `shop.orders.statistics` analyses tables that have grown.
AT_ONCE = """
    WITH {requests}, looked_up AS (
        SELECT NOT EXISTS (
                   SELECT FROM request
                    WHERE (SELECT true FROM shop_order
                            WHERE customer_id = request.customer AND shop_order.key = request.key LIMIT 1))
               AND NOT EXISTS (
                   SELECT FROM item
                    WHERE (SELECT taken + quantity > "limit" FROM shop_allowance
                            WHERE sale_id = sale AND customer_id = customer AND shop_allowance.sku = item.sku LIMIT 1))
               AS fits
    ), taken AS (
        {taking} AND (SELECT fits FROM looked_up)
        RETURNING true
    ), stock AS (
        SELECT count(*) = %(rows)s AS is_taken FROM taken
    ), {orders}
    SELECT CASE WHEN EXISTS (SELECT FROM taken)
                THEN shop_all_or_nothing(
                         (SELECT count(*) FROM placed) = (SELECT count(*) FROM request)
                         AND NOT EXISTS (
                             SELECT FROM counted JOIN item
                                         ON sale_id = sale AND customer_id = customer AND counted.sku = item.sku
                              WHERE counted.taken > "limit"))
                ELSE false
           END
"""

NOT_ALL = "LU001"
"""SQLSTATE of the error that `shop_all_or_nothing` raises (migration 0020)."""

# If another order has the key, the rejected order gets its own id as its key, so that its row can be written and the
# customer can find it by its id. No row is written if the customer or the sale was deleted.
REJECT = """
    WITH request AS (
        SELECT *
          FROM jsonb_to_recordset(%(requests)s::jsonb)
               AS request (id uuid, customer bigint, sale bigint, key text, body_hash text, created_at timestamptz,
                         items jsonb, reason text)
    ), rejected AS (
        INSERT INTO shop_order (id, customer_id, sale_id, currency, state, reason, key, body_hash, created_at,
                                payable_from)
        SELECT request.id, customer, sale, currency, 'rejected', left(reason, 200),
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
        INSERT INTO shop_orderitem (order_id, sku, quantity, price, name)
        SELECT rejected.id, item.sku, item.quantity, item.price, item.name
          FROM rejected
          JOIN request USING (id), jsonb_to_recordset(items) AS item (sku text, quantity int, price numeric, name text)
          JOIN shop_product ON shop_product.sku = item.sku
    ), ended AS (
        INSERT INTO shop_ending (order_id, state, at) SELECT id, 'rejected', statement_timestamp() FROM rejected
    )
    SELECT count(*) FROM rejected
"""

WINDOWS = "SELECT id, opens_at, closes_at FROM shop_sale WHERE id = ANY(%(sales)s)"

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
        SELECT sale_id, customer_id, sku, sum(units) AS units
          FROM unnest(%(sales)s::bigint[], %(customers)s::bigint[], %(skus)s::text[], %(units)s::int[])
               AS item (sale_id, customer_id, sku, units)
         GROUP BY sale_id, customer_id, sku
    ), locked AS (
        SELECT shop_allowance.id, units
          FROM shop_allowance JOIN returned USING (sale_id, customer_id, sku)
         ORDER BY sale_id, customer_id, sku
           FOR UPDATE OF shop_allowance
    )
    UPDATE shop_allowance SET taken = taken - units FROM locked WHERE shop_allowance.id = locked.id
"""

# Count the units again, and return the items that exceed the present limit of the sale. If there are any, the caller
# rolls back.
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


@dataclass(frozen=True)
class Saver(SaveAtOnce):
    """Writes orders, their items and the customers' allowances.

    Allowances are counted even without a limit, so that a limit set in the middle of a sale includes earlier orders.

    Args:
        queued: whether the orders come from the queue. Orders from the queue can be paid from the time at which they
            are saved, other orders from the time at which they were placed.
    """

    queued: bool = False

    def __call__(self, requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        """Write orders inside the open transaction.

        This takes one statement for any number of requests, and one more for orders from the queue, to read the clock.
        If some requests were not written, it takes two more, or three more if their sale may have refused them. If some
        orders exceed a limit, it takes two more.

        Returns:
            Why requests were not written, by request id. `Duplicate` takes precedence over `OverLimit`, because a retry
            is not a new order.
        """
        with connection.cursor() as cursor:
            cursor.execute(INSERT, self._arguments(requests))
            counted = {(row[0], row[1]): row[2] for row in cursor.fetchall()}
            placed = {request for request, _ in counted}
            refusals: dict[UUID, Refusal] = {}
            if missing := [request for request in requests if request.id not in placed]:
                refusals.update(_reasons(cursor, missing))
            written = [request for request in requests if request.id in placed]
            if any(
                item.limit is not None and counted[request.id, item.sku] > item.limit
                for request in written
                for item in request.items
            ):
                refusals.update(_undo_over_limit(cursor, written, counted))
        return refusals

    def at_once(self, orders: Sequence[OrderRequest], taking: Taking) -> bool:
        if connection.in_atomic_block or not connection.get_autocommit():
            raise transaction.TransactionManagementError("The statement has to commit: call it outside a transaction.")
        arguments = {**self._arguments(orders), **taking.arguments, "rows": taking.rows}
        try:
            with connection.cursor() as cursor:
                cursor.execute(_at_once(taking.sql), arguments)
                saved_all: bool = cursor.fetchone()[0]
        except DatabaseError as error:
            if not (isinstance(error.__cause__, Error) and error.__cause__.sqlstate == NOT_ALL):
                raise
            return False  # `shop_all_or_nothing` has undone the statement.
        return saved_all

    def _arguments(self, orders: Sequence[OrderRequest]) -> dict[str, Any]:
        payable_from = clock.now() if self.queued else None
        return {"requests": msgspec.json.encode(orders).decode(), "payable_from": payable_from}


save = Saver()
save_from_queue = Saver(queued=True)


@cache
def _at_once(taking: str) -> str:
    """Return the statement that writes orders and takes their stock.

    Args:
        taking: the SQL statement that takes the stock.
    """
    orders = ORDERS.format(stock_is_taken="(SELECT is_taken FROM stock)")
    return AT_ONCE.format(requests=REQUESTS, taking=taking, orders=orders)


def _reasons(cursor: CursorWrapper, requests: Sequence[OrderRequest]) -> dict[UUID, Refusal]:
    """Return why requests were not written, by request id."""
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
    windows = {}
    if sales := [each.sale for each in requests if each.id not in existing and each.customer in active]:
        cursor.execute(WINDOWS, {"sales": sales})
        windows = {sale: (opens_at, closes_at) for sale, opens_at, closes_at in cursor.fetchall()}

    def reason(request: OrderRequest) -> Refusal:
        if request.id in existing:
            order, same = existing[request.id]
            return Duplicate(order, same=same)
        if request.customer not in active:
            return UnknownCustomer(request.customer)
        # If the request was made while the sale was open, only a pause can be the reason. Do not query whether the sale
        # is paused now, because it may have been resumed since.
        opens_at, closes_at = windows.get(request.sale, (request.created_at, request.created_at))
        return SalePaused(request.sale) if opens_at <= request.created_at < closes_at else SaleClosed(request.sale)

    return {request.id: reason(request) for request in requests}


def _undo_over_limit(
    cursor: CursorWrapper, placed: Sequence[OrderRequest], counted: Mapping[tuple[UUID, str], int]
) -> dict[UUID, Refusal]:
    """Delete the orders of a batch that exceed a limit, counting in order of arrival.

    Args:
        counted: units of the sku that the customer has, including this whole batch, by request id and sku.

    Returns:
        `OverLimit` for each deleted order, by request id.
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
    """Write rejected orders inside the open transaction, for requests that Redis accepted and Postgres refused.

    Rejected orders hold no stock and no allowance. This takes one statement for any number of requests, and one more
    if some of them got no row. Requests that were saved in the meantime stay saved.

    Args:
        refused: the reason for each request, as a text for the customer.
    """
    if refused:
        requests = [{**asdict(request), "reason": reason} for request, reason in refused.items()]
        arguments = {"requests": msgspec.json.encode(requests).decode()}
        with connection.cursor() as cursor:
            cursor.execute(REJECT, arguments)
            if cursor.fetchone()[0] < len(requests):
                # The first statement may have waited until another transaction committed an order with the same key.
                # The snapshot of the first statement does not include that order. The second statement sees it.
                cursor.execute(REJECT, arguments)


def return_units(orders: Sequence[UUID]) -> None:
    """Put the units of orders back on hand, and subtract them from the allowances.

    Call it in the transaction that cancels or expires the orders.
    """
    if not orders:
        return
    items = OrderItem.objects.filter(order__in=orders).select_related("order")
    _return(
        [
            ReturnedUnits(item.order.sale_id, item.order.customer_id, str(item.product_id), item.quantity)
            for item in items
        ]
    )


def return_items(order: Order, units: Mapping[str, int]) -> None:
    """Put some units of a paid order back on hand, and subtract them from the allowances.

    Call it in the transaction that has locked the order.

    Args:
        units: units that come back now, by sku; at least 1 each.

    Raises:
        IntegrityError: more units than the order has would come back.
    """
    _return([ReturnedUnits(order.sale_id, order.customer_id, sku, quantity) for sku, quantity in units.items()])
    for sku, quantity in units.items():
        OrderItem.objects.filter(order=order, product__sku=sku).update(returned=F("returned") + quantity)


def _return(returned: Sequence[ReturnedUnits]) -> None:
    units: Counter[str] = Counter()
    for each in returned:
        units[each.sku] += each.quantity
    stock.give_back(units.items())
    with connection.cursor() as cursor:
        cursor.execute(
            RETURN_ALLOWANCES,
            {
                "sales": [each.sale for each in returned],
                "customers": [each.customer for each in returned],
                "skus": [each.sku for each in returned],
                "units": [each.quantity for each in returned],
            },
        )
    transaction.on_commit(lambda: registry.units_returned(returned, saved), robust=True)


def retake_units(order: Order) -> None:
    """Take the units and allowances of a cancelled or expired order again, in the transaction that marks it as paid.

    The caller must roll back on an error: this call may already have taken some of the units.

    Raises:
        SoldOut: some of the units were sold to other customers.
        OverLimit: the customer has reached the limit with other orders.
    """
    items = [RequestItem(str(item.product_id), item.quantity, item.price) for item in order.items.all()]
    # Lock all stock rows before any segment row. Segmented strategies, preheating and closing lock in the same order,
    # so they cannot deadlock with this.
    stock.lock([item.sku for item in items])
    for item in sorted(items, key=lambda item: item.sku):
        stock.take_from_all(item)
    with connection.cursor() as cursor:
        cursor.execute(COUNT_AGAIN, {"order": order.pk})
        for sku, limit, taken in cursor.fetchall():
            raise OverLimit(sku, limit=limit, taken=taken)
    taken_again = [ReturnedUnits(order.sale_id, order.customer_id, item.sku, -item.quantity) for item in items]
    transaction.on_commit(lambda: registry.units_returned(taken_again, saved), robust=True)
