"""Units of a sku that each customer has queued or bought. Redis counts them to enforce the limit per customer."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis import Redis

from inventory.counters.scripts import script
from inventory.counters.whole import text
from inventory.queue.entries import buyer_text, parse_buyer
from inventory.requests import Buyer, ReturnedUnits

logger = logging.getLogger(__name__)

SUBTRACT = script("subtract_bought")
CORRECT = script("correct_bought")


def bought_key(sku: str) -> str:
    """Return the Redis key of a sku's hash, which maps "sale:customer" to the units queued or bought."""
    return f"{{stock}}:bought:{sku}"


class BoughtUnits:
    """The units bought per customer, in one Redis server. `enqueue.lua` adds to them when it accepts an order."""

    def __init__(self, client: Redis) -> None:
        self.client: Any = client
        self._subtract: Any = client.register_script(SUBTRACT)
        self._correct: Any = client.register_script(CORRECT)

    def of(self, sku: str) -> Mapping[Buyer, int]:
        """Return the units of a sku that each customer has queued or bought. Empty if Redis does not count this sku."""
        counted = {}
        for buyer, units in self.client.hgetall(bought_key(sku)).items():
            try:
                counted[parse_buyer(text(buyer))] = int(units)
            except ValueError:
                logger.error("The units bought of %s in Redis cannot be read: %r by %r", sku, units, buyer)
        return counted

    def subtract_returned(self, returned: Iterable[ReturnedUnits]) -> None:
        """Subtract returned units, so that the customers may buy as many again."""
        with self.client.pipeline(transaction=False) as pipe:
            for each in returned:
                arguments = [buyer_text(each.sale, each.customer), each.quantity]
                self._subtract([bought_key(each.sku)], arguments, client=pipe)
            pipe.execute()

    def correct(self, sku: str, buyer: Buyer, before: int, after: int) -> bool:
        """Change a customer's units of a sku from `before` to `after`. Return False if they are no longer `before`."""
        return bool(self._correct([bought_key(sku)], [buyer_text(*buyer), before, after]))

    def forget(self, skus: Sequence[str]) -> None:
        """Delete the counts of skus whose sale has ended."""
        if skus:
            self.client.delete(*map(bought_key, skus))
