"""Repair differences between Redis and Postgres that crashed processes have left. Safe while the shop is selling.

Postgres is the source of truth. A repair does nothing if the state has changed since it was read.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection, transaction

from inventory import stock
from inventory.counters.whole import Counters
from inventory.models import StockItem
from inventory.outages import is_away
from inventory.queue.entries import parse_buyer
from inventory.requests import Reject, Saved, Taken
from inventory.strategies import registry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair that was made.

    Args:
        what: a description of what was wrong.
        name: the sku, or the id of the order.
        units: change of the units that Redis may sell; negative if there are fewer now.
    """

    what: str
    name: str
    units: int


def reconcile(
    on_sale: Callable[[], Mapping[str, str]], saved: Saved, reject: Reject, taken: Taken, *, grace: float
) -> list[Repair]:
    """Correct the copies of stock in Redis, and merge stock that is split for a strategy which no longer sells it.

    Args:
        on_sale: returns the strategy of each sku in an open or preheated sale. Copies of the stock of other skus are
            removed. Before a repair removes copies, it calls `on_sale` again, so that a sale preheated meanwhile keeps
            its copies.
        grace: seconds after which the reservation of an unsaved order counts as abandoned. If its process was only
            paused and the units are sold meanwhile, the guarded UPDATE refuses the order.

    Returns:
        The repairs; each one is logged.

    Raises:
        Exception: the first error, after all parts have run. Each error is logged.
    """
    counters, failures = registry.counters(), Failures()
    repairs = []
    for part, found in {
        "the sums of reserved units": _recount_reserved_units(counters),
        "abandoned reservations": _end_abandoned_reservations(counters, saved, reject, grace, failures),
        "copies of stock that is not on sale": _remove_unused_copies(counters, on_sale),
        "stock that is split for another strategy": _merge_splits_of_others(on_sale),
        "copies of stock": _correct_copies(on_sale, saved, failures),
        "counts of units bought": _correct_bought_units(counters, on_sale, saved, taken, failures),
    }.items():
        with failures.noted(part):
            for repair in found:
                # Log each repair immediately: it is kept even if a later repair fails.
                logger.warning("Repaired: %s, %s, %+d units in Redis.", repair.what, repair.name, repair.units)
                repairs.append(repair)
    failures.log_and_raise()
    return repairs


class Failures:
    """The errors of repairs, collected so that one failure does not stop the other repairs."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Exception]] = []

    @contextmanager
    def noted(self, part: str, *, one_of_many: bool = False) -> Iterator[None]:
        """Collect an error of the block, and continue after the block.

        Args:
            part: what the block repairs.
            one_of_many: whether similar blocks follow. Then the error of an unreachable server is raised immediately,
                because every following block would fail, too, each after its timeout.
        """
        try:
            yield
        except Exception as error:
            if one_of_many and is_away(error):
                raise
            self.found.append((part, error))
            connection.close_if_unusable_or_obsolete()  # The next repair needs a working connection.

    def log_and_raise(self) -> None:
        """Log each distinct error once, with the repairs that it prevented. Then raise the first error, if any."""
        parts: dict[str, list[str]] = {}
        for part, error in self.found:
            parts.setdefault(f"{type(error).__name__}: {error}", []).append(part)
        for message, names in parts.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            logger.error("Not reconciled: %s%s. The others were. %s", ", ".join(names[:3]), more, message)
        if self.found:
            raise self.found[0][1]


def _recount_reserved_units(counters: Counters) -> Iterator[Repair]:
    """Correct sums of reserved units that differ from the reservations.

    They differ if Redis has lost the key of the sums or the key of the reservations.
    """
    for sku, before, after in counters.recount():
        yield Repair(f"{before} units counted as reserved, but reservations add up to {after}", sku, 0)


def _end_abandoned_reservations(
    counters: Counters, saved: Saved, reject: Reject, grace: float, failures: Failures
) -> Iterator[Repair]:
    """End the reservations of processes that died. If the order was not saved, its units go back.

    Orders that are still on the queue are skipped, because workers will save them.
    """
    now = counters.client.time()[0]
    old = [each for each in counters.reservations() if each.at <= now - grace]
    queued = registry.queue().which_of(each.entry for each in old if each.entry)
    old = [each for each in old if each.entry not in queued]
    orders = saved({reservation.order_id for reservation in old})
    for reservation in old:
        order_id, names = reservation.order_id, [name for name, _ in reservation.items]
        with failures.noted(f"the reservation of order {order_id}", one_of_many=True):
            if order_id in orders:
                if counters.confirm_reservation(order_id, names):
                    yield Repair("reservation of an order that is saved", str(order_id), 0)
            elif (
                registry.end_lost_order(reservation, reject)
                if reservation.entry
                else counters.give_back(order_id, names)
            ):
                units = sum(units for _, units in reservation.items)
                yield Repair("abandoned reservation", str(order_id), units)


def _remove_unused_copies(counters: Counters, on_sale: Callable[[], Collection[str]]) -> Iterator[Repair]:
    """Remove counters, segments and unit rows of skus that are not on sale. Their units return to the stock row."""
    found = {*StockItem.objects.exclude(split_by="").values_list("sku", flat=True), *counters.skus()}
    if not (not_on_sale := found.difference(on_sale())):
        return
    with transaction.atomic():
        # Call `on_sale` again under the row locks. The preheating of a sale takes these locks, too, so it has finished
        # or waits for the locks.
        stock.lock(not_on_sale)
        unused = sorted(not_on_sale.difference(on_sale()))
        registry.unload(unused)
    for sku in unused:
        yield Repair("copy of stock that is not on sale", sku, 0)


def _merge_splits_of_others(on_sale: Callable[[], Mapping[str, str]]) -> Iterator[Repair]:
    """Merge segments and unit rows of skus that another strategy sells now.

    That strategy cannot sell the units in these rows.
    """
    if not (found := registry.split_by_others(on_sale())):
        return
    with transaction.atomic():
        stock.lock(found)  # Call `on_sale` under the row locks: a sale that is preheated now waits for them.
        merged = registry.merge_splits_of_others({sku: name for sku, name in on_sale().items() if sku in found})
    for sku in merged:
        yield Repair("stock split for a strategy that does not sell it", sku, 0)


def _correct_copies(on_sale: Callable[[], Collection[str]], saved: Saved, failures: Failures) -> Iterator[Repair]:
    # Correct one sku at a time, so that each row lock is held only while its own counter is corrected.
    for sku in sorted(on_sale()):
        with failures.noted(f"the copy of {sku}", one_of_many=True):
            change = registry.refresh([sku], saved).get(sku, 0)
            if change:
                yield Repair("counter that differed from the units on hand", sku, change)


def _correct_bought_units(
    counters: Counters, on_sale: Callable[[], Collection[str]], saved: Saved, taken: Taken, failures: Failures
) -> Iterator[Repair]:
    """Correct the units bought per customer in Redis, which may have missed a return or a late payment.

    A cancellation during the repair may leave a count too low; Postgres still refuses orders beyond the limit. A late
    payment during the repair may leave a count too high. The next reconciliation corrects both.
    """
    for sku in sorted(on_sale()):
        with failures.noted(f"the counts of {sku} bought", one_of_many=True):
            yield from _correct_bought_units_of(sku, counters, saved, taken)


def _correct_bought_units_of(sku: str, counters: Counters, saved: Saved, taken: Taken) -> Iterator[Repair]:
    queue = registry.queue()
    if not queue.bought.of(sku):
        return
    with transaction.atomic():
        # The row lock keeps orders of the sku from committing. Each reserved order is in `taken`, or is not saved yet.
        stock.lock([sku])
        bought = queue.bought.of(sku)
        expected = Counter(taken(sku, {sale for sale, _ in bought}))
        queued = [reservation for reservation in counters.reservations() if reservation.buyer]
        orders = saved({reservation.order_id for reservation in queued})
    for reservation in queued:
        if reservation.order_id not in orders:
            expected[parse_buyer(reservation.buyer)] += sum(units for name, units in reservation.items if name == sku)
    for buyer, units in bought.items():
        if units != expected[buyer] and queue.bought.correct(sku, buyer, units, expected[buyer]):
            name = f"{sku}, customer {buyer[1]} in sale {buyer[0]}: {units}, not {expected[buyer]}"
            yield Repair("wrong count of units bought by a customer", name, 0)
