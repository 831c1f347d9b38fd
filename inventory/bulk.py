"""Sell stock to many orders together: one UPDATE takes the units of all of them.

The UPDATE is part of the statement that saves the orders, or shares a transaction with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

from django.db import connection, transaction

from inventory import observing, stock
from inventory.errors import Duplicate, InventoryError, SoldOut, StockElsewhere
from inventory.requests import OrderRequest, Reject, RequestItem, Save, save_at_once


def ignore_rejections(rejected: Mapping[OrderRequest, str]) -> None:
    """Do nothing: a `Reject` callback for customers who still wait, and get the refusal as the answer."""


def commit(
    orders: Sequence[OrderRequest],
    save: Save,
    reject: Reject = ignore_rejections,
    *,
    lock_timeout: float | None = None,
) -> dict[UUID, InventoryError]:
    """Sell units to the orders in their sequence, save the orders, and commit.

    One statement is enough if the stock covers all orders and no order is refused. Otherwise a transaction checks the
    orders one by one.

    Args:
        reject: called in the transaction with the orders that get no units. Retries of saved orders are left out.
        lock_timeout: seconds that each statement may wait for a lock in Postgres; None keeps the session's setting.

    Returns:
        The reason for each order that got no units, by order id.
    """
    if not orders or (lock_timeout is None and save_at_once(orders, save, stock.taking(_units_of(orders)))):
        return {}
    return _sell_one_by_one(orders, save, reject, lock_timeout)


@contextmanager
def _transaction(lock_timeout: float | None) -> Iterator[None]:
    with transaction.atomic(durable=True):
        if lock_timeout is not None:
            with connection.cursor() as cursor:
                # LOCAL, because a pooler may give this session to another client after the transaction.
                cursor.execute(f"SET LOCAL lock_timeout = '{lock_timeout}s'")
        yield
        observing.measure_commit()


def _sell_one_by_one(
    orders: Sequence[OrderRequest], save: Save, reject: Reject, lock_timeout: float | None
) -> dict[UUID, InventoryError]:
    """Sell units to the orders in their sequence, each from the units that earlier orders have left.

    If `save` refuses an order, its units are offered to the orders for which too few were left. Returns the reason for
    each order that got no units, by order id.
    """
    refusals: dict[UUID, InventoryError] = {}
    sold: Counter[str] = Counter()
    with _transaction(lock_timeout):
        left = Counter(stock.lock({sku for order in orders for sku in order.skus}))
        remaining = list(orders)
        while remaining:
            fitting, remaining, shortages = _fit(remaining, left)
            unsaved = save(fitting) if fitting else {}
            for order in fitting:
                (left if order.id in unsaved else sold).update(_units_of([order]))
            refusals.update(unsaved)
            if not unsaved:  # `save` refused no order, so no units came back for the other orders.
                refusals.update(_shortage_errors(shortages, sold))
                break
        if sold:
            stock.take_all(sold)
        _reject(orders, refusals, reject)
    return refusals


def _reject(orders: Sequence[OrderRequest], refusals: Mapping[UUID, InventoryError], reject: Reject) -> None:
    if rejected := {order: str(refusals[order.id]) for order in orders if _is_rejection(refusals.get(order.id))}:
        reject(rejected)


def _is_rejection(refusal: InventoryError | None) -> bool:
    """Return whether an order must be saved as rejected.

    A retry must not be saved as rejected, because the order that it repeats stays valid.
    """
    return refusal is not None and not (isinstance(refusal, Duplicate) and refusal.same)


def _fit(
    orders: Sequence[OrderRequest], left: Counter[str]
) -> tuple[list[OrderRequest], list[OrderRequest], dict[UUID, RequestItem]]:
    """Choose the orders for which enough units remain, one after the other, and subtract their units from `left`.

    Returns:
        Three values: the orders that fit; the orders that do not fit; and, for each order that does not fit, its first
        item with too few units.
    """
    fitting: list[OrderRequest] = []
    shortages: dict[UUID, RequestItem] = {}
    for order in orders:
        shortage = next((item for item in order.items if left[item.sku] < item.quantity), None)
        if shortage is None:
            left.subtract(_units_of([order]))
            fitting.append(order)
        else:
            shortages[order.id] = shortage
    return fitting, [order for order in orders if order.id in shortages], shortages


def _shortage_errors(shortages: Mapping[UUID, RequestItem], sold: Counter[str]) -> dict[UUID, SoldOut | StockElsewhere]:
    """Return the error of each order that did not fit. The units in `sold` are not subtracted in Postgres yet."""
    left = {sku: stock.on_hand(sku) - sold[sku] for sku in {item.sku for item in shortages.values()}}
    return {
        order_id: stock.shortage_error(item.sku, wanted=item.quantity, left=left[item.sku])
        for order_id, item in shortages.items()
    }


def _units_of(orders: Iterable[OrderRequest]) -> Counter[str]:
    units: Counter[str] = Counter()
    for order in orders:
        units.update(order.units)
    return units
