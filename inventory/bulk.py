"""Many orders in one transaction: one statement for the stock of a sku, and one Save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from django.db import transaction

from inventory import stock
from inventory.errors import Duplicate, InventoryError, SoldOut, StockElsewhere
from inventory.requests import OrderRequest, Reject, RequestItem, Save


def nothing(refused: Mapping[OrderRequest, str]) -> None:
    """A `Reject` for orders whose buyers wait for the answer."""


def commit(requests: Sequence[OrderRequest], save: Save, reject: Reject = nothing) -> dict[UUID, InventoryError]:
    """Sell to each request, in the order given, what the ones before it have left, and commit.

    Mostly there is enough for all, and then one statement a sku takes it. Otherwise they are served one by one.

    Args:
        reject: told, in the same transaction, of those that are sold nothing.

    Returns:
        Why a request was sold nothing, by its id.
    """
    try:
        return _to_all(requests, save, reject)
    except (SoldOut, StockElsewhere):
        return _one_by_one(requests, save, reject)


def _to_all(requests: Sequence[OrderRequest], save: Save, reject: Reject) -> dict[UUID, InventoryError]:
    """Sell to all requests.

    Raises:
        SoldOut, StockElsewhere: the pool of a sku has not enough for all of them. Nothing was sold.
    """
    if not requests:
        return {}
    with transaction.atomic(durable=True):
        for sku, units in sorted(_sum(requests).items()):
            stock.take(sku, units)
        refusals: dict[UUID, InventoryError] = dict(save(requests))
        if refusals:
            stock.give_back(_sum(request for request in requests if request.id in refusals).items())
            _reject(requests, refusals, reject)
    return refusals


def _one_by_one(requests: Sequence[OrderRequest], save: Save, reject: Reject) -> dict[UUID, InventoryError]:
    """Sell to each request what the ones before it have left."""
    refusals: dict[UUID, InventoryError] = {}
    sold: Counter[str] = Counter()
    with transaction.atomic(durable=True):
        left = Counter(stock.lock({sku for request in requests for sku in request.skus}))
        waiting = list(requests)
        while waiting:
            fitting, waiting, short = _fit(waiting, left)
            unsaved = save(fitting) if fitting else {}
            for request in fitting:
                if request.id in unsaved:
                    left.update(_units(request))
                else:
                    sold.update(_units(request))
            refusals.update(unsaved)
            if not unsaved:  # what was kept for them is no help to those for whom too little was left
                refusals.update(_why(short, sold))
                break
        for sku, units in sorted(sold.items()):
            stock.take(sku, units)
        _reject(requests, refusals, reject)
    return refusals


def _reject(requests: Sequence[OrderRequest], refusals: Mapping[UUID, InventoryError], reject: Reject) -> None:
    if refused := {request: str(refusals[request.id]) for request in requests if _is_new(refusals.get(request.id))}:
        reject(refused)


def _is_new(refusal: InventoryError | None) -> bool:
    """Whether it is the request's own end: one that is an order already is that order."""
    return refusal is not None and not (isinstance(refusal, Duplicate) and refusal.same)


def _fit(
    requests: Sequence[OrderRequest], left: Counter[str]
) -> tuple[list[OrderRequest], list[OrderRequest], dict[UUID, RequestItem]]:
    """Those that `left` covers, one after the other, which takes their units from it; the others, and what they lack.

    What they lack: the first item of each that it does not cover.
    """
    fitting: list[OrderRequest] = []
    short: dict[UUID, RequestItem] = {}
    for request in requests:
        lacking = next((item for item in request.items if left[item.sku] < item.quantity), None)
        if lacking is None:
            left.subtract(_units(request))
            fitting.append(request)
        else:
            short[request.id] = lacking
    return fitting, [request for request in requests if request.id in short], short


def _why(short: Mapping[UUID, RequestItem], sold: Counter[str]) -> dict[UUID, SoldOut | StockElsewhere]:
    """Why items were sold nothing, in the transaction that has yet to subtract what was sold."""
    left = {sku: stock.on_hand(sku) - sold[sku] for sku in {item.sku for item in short.values()}}
    return {
        request: stock.short(item.sku, wanted=item.quantity, left=left[item.sku]) for request, item in short.items()
    }


def _units(request: OrderRequest) -> dict[str, int]:
    return {item.sku: item.quantity for item in request.items}


def _sum(requests: Iterable[OrderRequest]) -> Counter[str]:
    units: Counter[str] = Counter()
    for request in requests:
        units.update(_units(request))
    return units
