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

from inventory import stock, strategies
from inventory.draft import Buyer, Draft, Line, Returned
from inventory.errors import Duplicate, OverLimit, Refusal, SaleClosed, UnknownCustomer
from shop.models import Allowance, Order, OrderItem

# In one order for everybody, so that batches cannot wait for each other in a circle; of twins the first comes first.
# A key that the customer has used before makes the row, and so its items, not appear. A twin that is still being
# written is waited for: the unique index is the truth, in every process and after every crash. A token outlives the
# account that it was made for, and a sale is closed or postponed after an offer was read, so both are looked at here.
# Counting the allowances locks them until the commit; what goes beyond a limit is undone before that.
INSERT = """
    WITH draft AS (
        SELECT *
          FROM jsonb_to_recordset(%(drafts)s::jsonb)
               AS draft (id uuid, customer bigint, sale bigint, key text, body_hash text, created_at timestamptz,
                         lines jsonb)
    ), line AS (
        SELECT id AS draft, line.*
          FROM draft, jsonb_to_recordset(lines) AS line (sku text, quantity int, price numeric)
    ), placed AS (
        INSERT INTO shop_order (id, customer_id, sale_id, state, key, body_hash, created_at, payable_from)
        SELECT draft.id, customer, sale, 'pending', key, body_hash, created_at,
               coalesce(%(payable_from)s::timestamptz, created_at)
          FROM draft
         WHERE (SELECT is_active FROM auth_user WHERE auth_user.id = customer)
           AND (SELECT opens_at <= draft.created_at AND draft.created_at < closes_at
                  FROM shop_sale WHERE shop_sale.id = sale)
         ORDER BY customer, key, draft.id
        ON CONFLICT DO NOTHING
        RETURNING id, customer_id, sale_id
    ), items AS (
        INSERT INTO shop_orderitem (order_id, sku, quantity, price)
        SELECT id, sku, quantity, price FROM placed JOIN line ON draft = id
    ), counted AS (
        INSERT INTO shop_allowance (sale_id, customer_id, sku, taken)
        SELECT sale_id, customer_id, sku, sum(quantity)
          FROM placed JOIN line ON draft = id
         GROUP BY sale_id, customer_id, sku
         ORDER BY sale_id, customer_id, sku
        ON CONFLICT (sale_id, customer_id, sku) DO UPDATE SET taken = shop_allowance.taken + excluded.taken
        RETURNING sale_id, customer_id, sku, taken
    )
    SELECT id, sku, taken
      FROM placed JOIN line ON draft = id JOIN counted USING (sale_id, customer_id, sku)
"""

# A customer who asks for the order finds it under its own id also when another order has its key. Nobody is left to ask
# where the customer or the sale is gone, and then there is no row.
REJECT = """
    WITH draft AS (
        SELECT *
          FROM jsonb_to_recordset(%(drafts)s::jsonb)
               AS draft (id uuid, customer bigint, sale bigint, key text, body_hash text, created_at timestamptz,
                         lines jsonb, reason text)
    ), rejected AS (
        INSERT INTO shop_order (id, customer_id, sale_id, state, reason, key, body_hash, created_at, payable_from)
        SELECT draft.id, customer, sale, 'rejected', left(reason, 200),
               CASE WHEN EXISTS (SELECT FROM shop_order WHERE customer_id = customer AND shop_order.key = draft.key)
                      OR row_number() OVER (PARTITION BY customer, draft.key ORDER BY draft.id) > 1
                    THEN draft.id::text
                    ELSE draft.key
               END,
               body_hash, created_at, created_at
          FROM draft
          JOIN auth_user ON auth_user.id = customer
          JOIN shop_sale ON shop_sale.id = sale
         ORDER BY customer, draft.key, draft.id
        ON CONFLICT DO NOTHING
        RETURNING id
    ), items AS (
        INSERT INTO shop_orderitem (order_id, sku, quantity, price)
        SELECT rejected.id, line.sku, line.quantity, line.price
          FROM rejected
          JOIN draft USING (id), jsonb_to_recordset(lines) AS line (sku text, quantity int, price numeric)
          JOIN shop_product ON shop_product.sku = line.sku
    )
    SELECT count(*) FROM rejected
"""

ACTIVE = "SELECT id FROM auth_user WHERE id = ANY(%(customers)s) AND is_active"

EXISTING = """
    SELECT draft.id, shop_order.id, shop_order.body_hash = draft.body_hash
      FROM unnest(%(ids)s::uuid[], %(customers)s::bigint[], %(keys)s::text[], %(hashes)s::text[])
           AS draft (id, customer, key, body_hash)
      JOIN shop_order ON shop_order.customer_id = draft.customer AND shop_order.key = draft.key
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


def save(drafts: Sequence[Draft], *, payable_from: datetime | None = None) -> Mapping[UUID, Refusal]:
    """Write orders, their items and the customers' allowances inside the transaction that is open.

    One statement however many drafts; two more to say why a draft was not written, and two to undo those that a limit
    refuses. Allowances are counted without a limit too: one that is set in the middle of a sale then knows what was
    bought before.

    Args:
        payable_from: of orders that were queued: until they are saved nobody can pay them. None: from their placing.

    Returns:
        Why a draft was not written, by its id. `Duplicate` comes before `OverLimit`: a retry is not a new order.
    """
    with connection.cursor() as cursor:
        cursor.execute(INSERT, {"drafts": orjson.dumps(drafts, default=str).decode(), "payable_from": payable_from})
        counted = {(row[0], row[1]): row[2] for row in cursor.fetchall()}
        placed = {draft for draft, _ in counted}
        refusals: dict[UUID, Refusal] = {}
        if missing := [draft for draft in drafts if draft.id not in placed]:
            refusals.update(_why(cursor, missing))
        written = [draft for draft in drafts if draft.id in placed]
        if any(
            line.limit is not None and counted[draft.id, line.sku] > line.limit
            for draft in written
            for line in draft.lines
        ):
            refusals.update(_undo_over_limit(cursor, written, counted))
    return refusals


def _why(cursor: CursorWrapper, drafts: Sequence[Draft]) -> dict[UUID, Refusal]:
    """Why the drafts were not placed."""
    customers = [draft.customer for draft in drafts]
    cursor.execute(
        EXISTING,
        {
            "ids": [draft.id for draft in drafts],
            "customers": customers,
            "keys": [draft.key for draft in drafts],
            "hashes": [draft.body_hash for draft in drafts],
        },
    )
    existing = {draft: (order, same) for draft, order, same in cursor.fetchall()}
    cursor.execute(ACTIVE, {"customers": customers})
    active = {row[0] for row in cursor.fetchall()}

    def why(draft: Draft) -> Refusal:
        if draft.id in existing:
            order, same = existing[draft.id]
            return Duplicate(order, same=same)
        return SaleClosed(draft.sale) if draft.customer in active else UnknownCustomer(draft.customer)

    return {draft.id: why(draft) for draft in drafts}


def _undo_over_limit(
    cursor: CursorWrapper, placed: Sequence[Draft], counted: Mapping[tuple[UUID, str], int]
) -> dict[UUID, Refusal]:
    """Go through the orders again in order of arrival, and undo those that go beyond a limit.

    Args:
        counted: what the customer has taken of the sku with this batch, by draft and sku.
    """
    lines = [((draft.sale, draft.customer, line.sku), draft, line) for draft in placed for line in draft.lines]
    taken = {key: counted[draft.id, line.sku] for key, draft, line in lines}
    for key, _, line in lines:
        taken[key] -= line.quantity
    refusals: dict[UUID, Refusal] = {}
    for draft in placed:
        mine = {(draft.sale, draft.customer, line.sku): line for line in draft.lines}
        over = [
            OverLimit(line.sku, limit=line.limit, taken=taken[key])
            for key, line in mine.items()
            if line.limit is not None and taken[key] + line.quantity > line.limit
        ]
        if over:
            refusals[draft.id] = over[0]
        else:
            for key, line in mine.items():
                taken[key] += line.quantity
    cursor.execute(DELETE, {"ids": list(refusals)})
    sales, customers, skus = (list(column) for column in zip(*taken, strict=True))
    cursor.execute(
        CORRECT_ALLOWANCES, {"sales": sales, "customers": customers, "skus": skus, "taken": list(taken.values())}
    )
    return refusals


def reject(refused: Mapping[Draft, str]) -> None:
    """Write what Redis has admitted and Postgres refuses as rejected orders, inside the transaction that is open.

    They hold no stock and no allowance. One statement however many, and one more where somebody was faster; a draft
    that is an order by now stays what it is.

    Args:
        refused: the reason of each, in words for the customer.
    """
    if refused:
        drafts = [{**asdict(draft), "reason": reason} for draft, reason in refused.items()]
        arguments = {"drafts": orjson.dumps(drafts, default=str).decode()}
        with connection.cursor() as cursor:
            cursor.execute(REJECT, arguments)
            if cursor.fetchone()[0] < len(drafts):
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
    transaction.on_commit(lambda: strategies.given_back(returned, saved), robust=True)


def take_again(order: Order) -> None:
    """Take the units and allowances of an order that had given them back, in the transaction that makes it stand again.

    Raises:
        SoldOut: somebody else has bought them.
        OverLimit: the customer has bought as many by another order.
            The caller rolls back what was taken by then.
    """
    lines = [Line(str(item.product_id), item.quantity, item.price) for item in order.items.all()]
    # All of them before any segment, as a cart that gathers does, and whoever preheats the sale or ends it.
    stock.lock([line.sku for line in lines])
    for line in sorted(lines, key=lambda line: line.sku):
        stock.take_from_all(line)
    with connection.cursor() as cursor:
        cursor.execute(COUNT_AGAIN, {"order": order.pk})
        for sku, limit, taken in cursor.fetchall():
            raise OverLimit(sku, limit=limit, taken=taken)
    taken_again = [Returned(order.sale_id, order.customer_id, line.sku, -line.quantity) for line in lines]
    transaction.on_commit(lambda: strategies.given_back(taken_again, saved), robust=True)


def taken(sku: str, sales: Collection[int]) -> Mapping[Buyer, int]:
    """How many units of a sku each customer of these sales has by orders that stand."""
    allowances = Allowance.objects.filter(sale__in=sales, sku=sku).values_list("sale", "customer", "taken")
    return {(sale, customer): units for sale, customer, units in allowances}


def saved(drafts: Collection[UUID]) -> set[UUID]:
    """Which of these drafts were sold, in whatever state their orders are now; one that was rejected never was."""
    if not drafts:
        return set()
    return set(Order.objects.filter(pk__in=drafts).exclude(state=Order.State.REJECTED).values_list("pk", flat=True))
