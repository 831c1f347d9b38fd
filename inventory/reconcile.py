"""What processes that died have left between Redis and Postgres, found and put right while the shop is selling.

Postgres is the truth. Each repair is guarded: it does nothing where somebody has put it right meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from inventory import strategies
from inventory.counters import Counters, Note
from inventory.draft import Saved
from inventory.models import StockItem

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Repair:
    """Something that was put right.

    Args:
        what: was wrong, in words.
        name: of the sku or draft.
        units: that Redis may admit now and could not before; negative for units that it may not.
    """

    what: str
    name: str
    units: int


def reconcile(on_sale: Mapping[str, str], saved: Saved, *, grace: float) -> list[Repair]:
    """Put right what Redis says of the stock, and gather the pieces of stock that nobody sells in pieces.

    Args:
        on_sale: the strategy that sells each sku of the sales that are open or preheated. Others need no copy of their
            stock.
        grace: seconds after which a draft that is no order is believed to be nobody's. A process that is paused for
            longer and then goes on is refused by the guard in SQL, if its units were sold meanwhile.

    Returns:
        What was repaired; each repair is logged.

    Raises:
        RedisError: Redis did not answer.
    """
    counters = strategies.counters()
    made = [
        *_end_old_reservations(counters, saved, grace),
        *_remove_copies(counters, on_sale),
        *_gather_pieces(on_sale),
        *_mend_copies(on_sale, saved),
    ]
    for repair in made:
        logger.warning("Repaired: %s, %s, %+d units in Redis.", repair.what, repair.name, repair.units)
    return made


def _end_old_reservations(counters: Counters, saved: Saved, grace: float) -> Iterator[Repair]:
    """Notes of drafts whose process died: the order exists, or the units go back. What is queued is a worker's."""
    now = counters.client.time()[0]
    old = [note for note in counters.notes() if note.at <= now - grace and not _is_queued(note)]
    orders = saved({note.draft for note in old})
    for note in old:
        skus = [sku for sku, _ in note.lines]
        if note.draft in orders:
            if counters.settle(note.draft, skus):
                yield Repair("an order whose reservation had not ended", str(note.draft), 0)
        elif counters.give_back(note.draft, skus):
            yield Repair("units reserved for nobody", str(note.draft), sum(units for _, units in note.lines))


def _is_queued(note: Note) -> bool:
    return bool(note.entry) and strategies.queue().has(note.entry)


def _remove_copies(counters: Counters, on_sale: Collection[str]) -> Iterator[Repair]:
    """Counters, segments and unit rows of what is not on sale: the units go back to where every strategy finds them."""
    split = StockItem.objects.exclude(split_by="").values_list("sku", flat=True)
    stale = {sku for sku in {*split, *counters.skus()} if sku not in on_sale}
    strategies.unload(sorted(stale))
    for sku in sorted(stale):
        yield Repair("a copy of stock that is not on sale", sku, 0)


def _gather_pieces(on_sale: Mapping[str, str]) -> Iterator[Repair]:
    """Segments and unit rows of what another strategy sells by now, which does not find them there."""
    for sku in strategies.gather(on_sale):
        yield Repair("stock that was split for another strategy than the one that sells it", sku, 0)


def _mend_copies(on_sale: Collection[str], saved: Saved) -> Iterator[Repair]:
    # One by one: the row of a sku is locked no longer than its own counter takes.
    for sku in sorted(on_sale):
        change = strategies.refresh([sku], saved).get(sku, 0)
        if change:
            yield Repair("a counter that differed from what is on hand", sku, change)
