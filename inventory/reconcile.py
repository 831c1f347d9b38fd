"""What processes that died have left between Redis and Postgres, found and put right while the shop is selling.

Postgres is the truth. Each repair is guarded: it does nothing where somebody has put it right meanwhile.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from django.db import transaction

from inventory import stock
from inventory.counters.whole import Counters, Note
from inventory.models import StockItem
from inventory.queue.stream import buyer_of
from inventory.requests import Reject, Saved, Taken
from inventory.strategies import registry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Repair:
    """Something that was put right.

    Args:
        what: was wrong, in words.
        name: of the sku or request.
        units: that Redis may admit now and could not before; negative for units that it may not.
    """

    what: str
    name: str
    units: int


def reconcile(
    on_sale: Callable[[], Mapping[str, str]], saved: Saved, reject: Reject, taken: Taken, *, grace: float
) -> list[Repair]:
    """Put right what Redis says of the stock, and gather the pieces of stock that nobody sells in pieces.

    Args:
        on_sale: the strategy that sells each sku of the sales that are open or preheated. Others need no copy of their
            stock. It is asked after what was found, so that a sale which is preheated meanwhile keeps its copies.
        grace: seconds after which a request that is no order is believed to be nobody's. A process that is paused for
            longer and then goes on is refused by the guard in SQL, if its units were sold meanwhile.

    Returns:
        What was repaired; each repair is logged.

    Raises:
        RedisError: Redis did not answer.
    """
    counters = registry.counters()
    made = []
    for repair in chain(
        _count_again(counters),
        _end_old_reservations(counters, saved, reject, grace),
        _remove_copies(counters, on_sale),
        _gather_pieces(on_sale),
        _mend_copies(on_sale, saved),
        _mend_what_was_bought(counters, on_sale, saved, taken),
    ):
        # At once: a later repair may fail, and this one stays made.
        logger.warning("Repaired: %s, %s, %+d units in Redis.", repair.what, repair.name, repair.units)
        made.append(repair)
    return made


def _count_again(counters: Counters) -> Iterator[Repair]:
    """Units that are reserved for nobody, or for somebody and free all the same: Redis has lost one of the two keys."""
    for sku, was, units in counters.recount():
        yield Repair(f"{was} units reserved, where requests have noted {units}", sku, 0)


def _end_old_reservations(counters: Counters, saved: Saved, reject: Reject, grace: float) -> Iterator[Repair]:
    """Notes of requests whose process died: the order exists, or the units go back. What is queued is a worker's."""
    now = counters.client.time()[0]
    old = [note for note in counters.notes() if note.at <= now - grace and not _is_queued(note)]
    orders = saved({note.request for note in old})
    for note in old:
        skus = [sku for sku, _ in note.items]
        if note.request in orders:
            if counters.confirm_reservation(note.request, skus):
                yield Repair("an order whose reservation had not ended", str(note.request), 0)
        elif registry.end(note, reject) if note.entry else counters.give_back(note.request, skus):
            yield Repair("units reserved for nobody", str(note.request), sum(units for _, units in note.items))


def _is_queued(note: Note) -> bool:
    return bool(note.entry) and registry.queue().has(note.entry)


def _remove_copies(counters: Counters, on_sale: Callable[[], Collection[str]]) -> Iterator[Repair]:
    """Counters, segments and unit rows of what is not on sale: the units go back to where every strategy finds them."""
    found = {*StockItem.objects.exclude(split_by="").values_list("sku", flat=True), *counters.skus()}
    if not (unsold := found.difference(on_sale())):
        return
    with transaction.atomic():
        # Who preheats a sale of them has done it when this has their rows, or waits for them: so it is asked again.
        stock.lock(unsold)
        stale = sorted(unsold.difference(on_sale()))
        registry.unload(stale)
    for sku in stale:
        yield Repair("a copy of stock that is not on sale", sku, 0)


def _gather_pieces(on_sale: Callable[[], Mapping[str, str]]) -> Iterator[Repair]:
    """Segments and unit rows of what another strategy sells by now, which does not find them there."""
    if not (found := registry.misplaced(on_sale())):
        return
    with transaction.atomic():
        stock.lock(found)  # and ask again, for the same reason
        gathered = registry.gather({sku: name for sku, name in on_sale().items() if sku in found})
    for sku in gathered:
        yield Repair("stock that was split for another strategy than the one that sells it", sku, 0)


def _mend_copies(on_sale: Callable[[], Collection[str]], saved: Saved) -> Iterator[Repair]:
    # One by one: the row of a sku is locked no longer than its own counter takes.
    for sku in sorted(on_sale()):
        change = registry.refresh([sku], saved).get(sku, 0)
        if change:
            yield Repair("a counter that differed from what is on hand", sku, change)


def _mend_what_was_bought(
    counters: Counters, on_sale: Callable[[], Collection[str]], saved: Saved, taken: Taken
) -> Iterator[Repair]:
    """What a customer has queued or bought, where Redis has missed that he gave units back, or has them again.

    What is cancelled just now may be missed, and a count come out too low: Postgres refuses what goes beyond a limit.
    Too high it comes out only where a late payment is committed just now. The next round counts again.
    """
    queue = registry.queue()
    for sku in sorted(on_sale()):
        if not queue.bought(sku):
            continue
        with transaction.atomic():
            # While its row is locked no order of the sku is committed: what is noted is either one by now, and counted
            # as that, or still on its way.
            stock.lock([sku])
            bought = queue.bought(sku)
            has = Counter(taken(sku, {sale for sale, _ in bought}))
            notes = [note for note in counters.notes() if note.buyer]
            orders = saved({note.request for note in notes})
        for note in notes:
            if note.request not in orders:
                has[buyer_of(note.buyer)] += sum(units for name, units in note.items if name == sku)
        for buyer, units in bought.items():
            if units != has[buyer] and queue.correct(sku, buyer, units, has[buyer]):
                name = f"{sku}, customer {buyer[1]} in sale {buyer[0]}: {units}, not {has[buyer]}"
                yield Repair("a count of what a customer has bought", name, 0)
