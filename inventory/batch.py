"""Many orders in one transaction: one statement for the stock of a sku, and one Save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from django.db import transaction

from inventory import stock
from inventory.draft import Draft, Line, Reject, Save
from inventory.errors import Duplicate, InventoryError, SoldOut, StockElsewhere


def nothing(refused: Mapping[Draft, str]) -> None:
    """A `Reject` for orders whose buyers wait for the answer."""


def commit(drafts: Sequence[Draft], save: Save, reject: Reject = nothing) -> dict[UUID, InventoryError]:
    """Sell to each draft, in the order given, what the ones before it have left, and commit.

    Mostly there is enough for all, and then one statement a sku takes it. Otherwise they are served one by one.

    Args:
        reject: told, in the same transaction, of those that are sold nothing.

    Returns:
        Why a draft was sold nothing, by its id.
    """
    try:
        return _to_all(drafts, save, reject)
    except (SoldOut, StockElsewhere):
        return _one_by_one(drafts, save, reject)


def _to_all(drafts: Sequence[Draft], save: Save, reject: Reject) -> dict[UUID, InventoryError]:
    """Sell to all drafts.

    Raises:
        SoldOut, StockElsewhere: the pool of a sku has not enough for all of them. Nothing was sold.
    """
    if not drafts:
        return {}
    with transaction.atomic(durable=True):
        for sku, units in sorted(_sum(drafts).items()):
            stock.take(sku, units)
        refusals: dict[UUID, InventoryError] = dict(save(drafts))
        if refusals:
            stock.give_back(_sum(draft for draft in drafts if draft.id in refusals).items())
            _reject(drafts, refusals, reject)
    return refusals


def _one_by_one(drafts: Sequence[Draft], save: Save, reject: Reject) -> dict[UUID, InventoryError]:
    """Sell to each draft what the ones before it have left."""
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
                refusals.update(_why(short, sold))
                break
        for sku, units in sorted(sold.items()):
            stock.take(sku, units)
        _reject(drafts, refusals, reject)
    return refusals


def _reject(drafts: Sequence[Draft], refusals: Mapping[UUID, InventoryError], reject: Reject) -> None:
    if refused := {draft: str(refusals[draft.id]) for draft in drafts if _is_new(refusals.get(draft.id))}:
        reject(refused)


def _is_new(refusal: InventoryError | None) -> bool:
    """Whether it is the draft's own end: one that is an order already is that order."""
    return refusal is not None and not (isinstance(refusal, Duplicate) and refusal.same)


def _fit(drafts: Sequence[Draft], left: Counter[str]) -> tuple[list[Draft], list[Draft], dict[UUID, Line]]:
    """Those that `left` covers, one after the other, which takes their units from it; the others, and what they lack.

    What they lack: the first line of each that it does not cover.
    """
    fitting: list[Draft] = []
    short: dict[UUID, Line] = {}
    for draft in drafts:
        lacking = next((line for line in draft.lines if left[line.sku] < line.quantity), None)
        if lacking is None:
            left.subtract(_units(draft))
            fitting.append(draft)
        else:
            short[draft.id] = lacking
    return fitting, [draft for draft in drafts if draft.id in short], short


def _why(short: Mapping[UUID, Line], sold: Counter[str]) -> dict[UUID, SoldOut | StockElsewhere]:
    """Why lines were sold nothing, in the transaction that has yet to subtract what was sold."""
    left = {sku: stock.on_hand(sku) - sold[sku] for sku in {line.sku for line in short.values()}}
    return {draft: stock.short(line.sku, wanted=line.quantity, left=left[line.sku]) for draft, line in short.items()}


def _units(draft: Draft) -> dict[str, int]:
    return {line.sku: line.quantity for line in draft.lines}


def _sum(drafts: Iterable[Draft]) -> Counter[str]:
    units: Counter[str] = Counter()
    for draft in drafts:
        units.update(_units(draft))
    return units
