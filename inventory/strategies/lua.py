"""`lua`: Redis admits with one script, then Postgres decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import IntegrityError, transaction
from redis import RedisError

from inventory import stock
from inventory.counters import Counters
from inventory.draft import Draft, Placement, Save, Saved, save_one
from inventory.errors import SoldOut
from inventory.models import StockItem
from inventory.strategies.base import Strategy

logger = logging.getLogger(__name__)


class Lua(Strategy):
    """Check-and-decrement in Redis, noting whose units they are; then the guarded update and the order in Postgres.

    Who comes too late is refused by Redis and never reaches the hot row.

    Args:
        counters: the stock in Redis; called when it is needed, so that nothing connects at import.
    """

    name = "lua"

    def __init__(self, counters: Callable[[], Counters]) -> None:
        self.counters = counters

    def _place(self, order: Draft, save: Save) -> Placement:
        counters = self.counters()
        counters.take(order)
        try:
            decide(order, order.skus, counters, save)
        except SoldOut as error:
            # Redis has admitted what is not there: it has lost its last second. The next buyer finds no counter.
            counters.unload([error.sku])
            raise
        return Placement.COMMITTED

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        self._load(skus, saved, make=True)

    def unload(self, skus: Sequence[str]) -> None:
        self.counters().unload(skus)

    def refresh(self, skus: Sequence[str], saved: Saved) -> None:
        try:
            self._load(skus, saved, make=False)
        except RedisError:
            logger.warning("The counters of %s are wrong until they are reconciled: Redis did not answer.", skus)

    def _load(self, skus: Sequence[str], saved: Saved, *, make: bool) -> None:
        counters = self.counters()
        with transaction.atomic():
            # While the rows are locked no order of these skus is committed, so what is noted is either an order by now
            # or still on its way.
            rows = StockItem.objects.select_for_update().filter(sku__in=skus).order_by("sku")
            on_hand = dict(rows.values_list("sku", "on_hand"))
            committed = saved(counters.drafts())
            for sku in skus:
                counters.load(sku, on_hand.get(sku, 0), committed, make=make)


def decide(order: Draft, taken: Sequence[str], counters: Counters, save: Save) -> None:
    """Let Postgres decide on what Redis has admitted, and tell Redis what became of it.

    Args:
        taken: what the counters are called from which each line was taken.
    """
    rolls_back = True
    try:
        with transaction.atomic(durable=True):
            for line in order.lines:
                stock.take(line)
            save_one(order, save)
            # From here on the COMMIT may have reached Postgres though its answer does not reach us. The note of
            # what is reserved then stays, and reconciling asks Postgres whether the order exists.
            rolls_back = False
    except IntegrityError:
        counters.give_back(order.id, taken)  # Postgres has answered, and the answer was no
        raise
    except BaseException:
        if rolls_back:
            counters.give_back(order.id, taken)
        raise
    counters.settle(order.id, taken)
