"""`lua`: Redis admits with one script, then Postgres decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import IntegrityError, transaction
from redis import RedisError

from inventory import stock
from inventory.counters import Counters
from inventory.draft import Draft, Placement, Save, save_one
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
            counters.give_back(order)  # Postgres has answered, and the answer was no
            raise
        except BaseException:
            if rolls_back:
                counters.give_back(order)
            raise
        counters.settle(order)
        return Placement.COMMITTED

    def preheat(self, skus: Sequence[str]) -> None:
        counters = self.counters()
        with transaction.atomic():
            # The rows are locked, so that no units come back between the reading and the copy.
            rows = StockItem.objects.select_for_update().filter(sku__in=skus).order_by("sku")
            on_hand = dict(rows.values_list("sku", "on_hand"))
            for sku in skus:
                counters.preheat(sku, on_hand.get(sku, 0))

    def unload(self, skus: Sequence[str]) -> None:
        self.counters().unload(skus)

    def given_back(self, quantities: Sequence[tuple[str, int]]) -> None:
        try:
            self.counters().add(quantities)
        except RedisError:
            logger.warning("Redis did not take back %s: its counter is too low until it is reconciled.", quantities)
