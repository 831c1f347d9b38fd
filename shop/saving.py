"""The Save that strategies are given, and its undoing: many orders in few statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import Sum

from inventory import stock, strategies
from inventory.draft import Draft
from inventory.errors import Duplicate, OverLimit, Refusal, SaleOver, UnknownCustomer
from shop.models import OrderItem

# In one order for everybody, so that batches cannot wait for each other in a circle; of twins the first comes first.
# A key that the customer has used before makes the row, and so its items, not appear. A twin that is still being
# written is waited for: the unique index is the truth, in every process and after every crash. A token outlives the
# account that it was made for, and an offer that was read a moment ago outlives its sale, so both are looked at here.
INSERT = """
    WITH placed AS (
        INSERT INTO shop_order (id, customer_id, sale_id, state, key, body_hash, created_at)
        SELECT draft.id, customer, sale, 'pending', key, body_hash, created_at
          FROM unnest(%(ids)s::uuid[], %(customers)s::bigint[], %(sales)s::bigint[], %(keys)s::text[],
                      %(hashes)s::text[], %(times)s::timestamptz[])
               AS draft (id, customer, sale, key, body_hash, created_at)
          JOIN auth_user ON auth_user.id = customer AND is_active
          JOIN shop_sale ON shop_sale.id = sale AND draft.created_at < closes_at
         ORDER BY customer, key, draft.id
        ON CONFLICT DO NOTHING
        RETURNING id
    ), items AS (
        INSERT INTO shop_orderitem (order_id, sku, quantity, price)
        SELECT line.id, line.sku, line.quantity, line.price
          FROM unnest(%(line_ids)s::uuid[], %(skus)s::text[], %(quantities)s::int[], %(prices)s::numeric[])
               AS line (id, sku, quantity, price)
          JOIN placed ON placed.id = line.id
    )
    SELECT id FROM placed
"""

ACTIVE = "SELECT id FROM auth_user WHERE id = ANY(%(customers)s) AND is_active"

EXISTING = """
    SELECT draft.id, shop_order.id
      FROM unnest(%(ids)s::uuid[], %(customers)s::bigint[], %(keys)s::text[]) AS draft (id, customer, key)
      JOIN shop_order ON shop_order.customer_id = draft.customer AND shop_order.key = draft.key
"""

# Makes the missing rows and locks them all, in one order for everybody.
LOCK_ALLOWANCES = """
    INSERT INTO shop_allowance (sale_id, customer_id, sku, taken)
    SELECT DISTINCT sale, customer, sku, 0
      FROM unnest(%(sales)s::bigint[], %(customers)s::bigint[], %(skus)s::text[]) AS wanted (sale, customer, sku)
     ORDER BY sale, customer, sku
    ON CONFLICT (sale_id, customer_id, sku) DO UPDATE SET taken = shop_allowance.taken
    RETURNING sale_id, customer_id, sku, taken
"""

WRITE_ALLOWANCES = """
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

AllowanceKey = tuple[int, int, str]
"""Sale, customer and sku."""


def save(drafts: Sequence[Draft]) -> Mapping[UUID, Refusal]:
    """Write orders, their items and the customers' allowances inside the transaction that is open.

    One statement for the orders and two for the allowances, however many drafts; two more to say why a draft was not
    written, and one to undo those that a limit refuses. Allowances are counted without a limit too: one that is set in
    the middle of a sale then knows what was bought before.

    Returns:
        Why a draft was not written, by its id. `Duplicate` comes before `OverLimit`: a retry is not a new order.
    """
    with connection.cursor() as cursor:
        lines = [(draft, line) for draft in drafts for line in draft.lines]
        cursor.execute(
            INSERT,
            {
                "ids": [draft.id for draft in drafts],
                "customers": [draft.customer for draft in drafts],
                "sales": [draft.sale for draft in drafts],
                "keys": [draft.key for draft in drafts],
                "hashes": [draft.body_hash for draft in drafts],
                "times": [draft.created_at for draft in drafts],
                "line_ids": [draft.id for draft, _ in lines],
                "skus": [line.sku for _, line in lines],
                "quantities": [line.quantity for _, line in lines],
                "prices": [line.price for _, line in lines],
            },
        )
        placed = {row[0] for row in cursor.fetchall()}
        refusals: dict[UUID, Refusal] = {}
        if missing := [draft for draft in drafts if draft.id not in placed]:
            refusals.update(_why(cursor, missing))
        if placed:
            refusals.update(_over_limit(cursor, [draft for draft in drafts if draft.id in placed]))
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
        },
    )
    existing = dict(cursor.fetchall())
    cursor.execute(ACTIVE, {"customers": customers})
    active = {row[0] for row in cursor.fetchall()}

    def why(draft: Draft) -> Refusal:
        if draft.id in existing:
            return Duplicate(existing[draft.id])
        return SaleOver(draft.sale) if draft.customer in active else UnknownCustomer(draft.customer)

    return {draft.id: why(draft) for draft in drafts}


def _over_limit(cursor: CursorWrapper, drafts: Sequence[Draft]) -> dict[UUID, Refusal]:
    """Count what the drafts take against the limits, in order of arrival, and undo those that go beyond."""
    wanted = [(draft.sale, draft.customer, line.sku) for draft in drafts for line in draft.lines]
    sales, customers, skus = (list(column) for column in zip(*wanted, strict=True))
    cursor.execute(LOCK_ALLOWANCES, {"sales": sales, "customers": customers, "skus": skus})
    taken: dict[AllowanceKey, int] = {(row[0], row[1], row[2]): row[3] for row in cursor.fetchall()}
    refusals: dict[UUID, Refusal] = {}
    for draft in drafts:
        counted = {(draft.sale, draft.customer, line.sku): line for line in draft.lines}
        over = [
            OverLimit(line.sku, limit=line.limit, taken=taken[key])
            for key, line in counted.items()
            if line.limit is not None and taken[key] + line.quantity > line.limit
        ]
        if over:
            refusals[draft.id] = over[0]
        else:
            for key, line in counted.items():
                taken[key] += line.quantity
    if refusals:
        cursor.execute(DELETE, {"ids": list(refusals)})
    sales, customers, skus = (list(column) for column in zip(*taken, strict=True))
    cursor.execute(
        WRITE_ALLOWANCES, {"sales": sales, "customers": customers, "skus": skus, "taken": list(taken.values())}
    )
    return refusals


def return_units(orders: Sequence[UUID]) -> None:
    """Give back the units and allowances of orders that stand no longer, in the transaction that ends them."""
    if not orders:
        return
    items = OrderItem.objects.filter(order__in=orders).values_list("product").annotate(Sum("quantity"))
    quantities = [(str(sku), units) for sku, units in items]
    stock.give_back(quantities)
    with connection.cursor() as cursor:
        cursor.execute(RETURN_ALLOWANCES, {"ids": list(orders)})
    transaction.on_commit(partial(strategies.given_back, quantities), robust=True)
