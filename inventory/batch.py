"""Many orders in one transaction: the stock of all in two statements, and one Save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from django.db import connection, transaction

from inventory import stock
from inventory.draft import Draft, Reject, Save
from inventory.errors import Duplicate, InventoryError, SoldOut

TAKE = """
    UPDATE inventory_stockitem
       SET on_hand = on_hand - taken.units, version = version + 1
      FROM unnest(%s::text[], %s::bigint[]) AS taken (sku, units)
     WHERE inventory_stockitem.sku = taken.sku AND on_hand >= taken.units
"""


def nothing(refused: Mapping[Draft, str]) -> None:
    """A `Reject` for orders whose buyers wait for the answer."""


def commit(drafts: Sequence[Draft], save: Save, reject: Reject = nothing) -> dict[UUID, InventoryError]:
    """Sell to each draft, in the order given, what the ones before it have left, and commit.

    Args:
        reject: told, in the same transaction, of those that are sold nothing.

    Returns:
        Why a draft was sold nothing, by its id.
    """
    refusals: dict[UUID, InventoryError] = {}
    sold: Counter[str] = Counter()
    with transaction.atomic(durable=True):
        left = Counter(stock.lock({sku for draft in drafts for sku in draft.skus}))
        waiting = list(drafts)
        while waiting:
            fitting, waiting, short = _fit(waiting, left)
            unsaved = save(fitting) if fitting else {}
            for draft in fitting:
                if draft.id in unsaved:
                    left.update(_units(draft))
                else:
                    sold.update(_units(draft))
            refusals.update(unsaved)
            if not unsaved:  # what was kept for them is no help to those for whom too little was left
                refusals.update(short)
                break
        if sold:
            _take(sold)
        if refused := {draft: str(refusals[draft.id]) for draft in drafts if _is_new(refusals.get(draft.id))}:
            reject(refused)
    return refusals


def _take(units: Mapping[str, int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(TAKE, [list(units), list(units.values())])
        if cursor.rowcount != len(units):
            raise RuntimeError("Stock was changed under the lock of its row.")


def _is_new(refusal: InventoryError | None) -> bool:
    """Whether it is the draft's own end: one that is an order already is that order."""
    return refusal is not None and not (isinstance(refusal, Duplicate) and refusal.same)


def _fit(drafts: Sequence[Draft], left: Counter[str]) -> tuple[list[Draft], list[Draft], dict[UUID, SoldOut]]:
    """Those that `left` covers, one after the other, which takes their units from it; the others, and why."""
    fitting: list[Draft] = []
    short: dict[UUID, SoldOut] = {}
    for draft in drafts:
        lacking = next((line for line in draft.lines if left[line.sku] < line.quantity), None)
        if lacking is None:
            left.subtract(_units(draft))
            fitting.append(draft)
        else:
            short[draft.id] = SoldOut(lacking.sku, wanted=lacking.quantity, left=left[lacking.sku])
    return fitting, [draft for draft in drafts if draft.id in short], short


def _units(draft: Draft) -> dict[str, int]:
    return {line.sku: line.quantity for line in draft.lines}
