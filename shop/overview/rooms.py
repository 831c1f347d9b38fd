"""The waiting rooms of open and coming sales: how many customers are in the draw, wait, and are admitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django_redis import get_redis_connection
from redis import Redis, RedisError

from shop.sales import offers
from shop.sales.offers import Offer
from shop.waiting import room

NOBODY = 0
"""The id of no customer: who asks has no place."""


@dataclass(frozen=True, slots=True)
class RoomFigures:
    """A waiting room at one moment.

    Args:
        is_open: whether the sale has opened. Before, all customers are in the draw.
        entered: places that were given. Who enters again after their turn has another one.
        admitted: places whose turn has come.
    """

    offer: Offer
    is_open: bool
    entered: int
    admitted: int

    @property
    def waiting(self) -> int:
        return self.entered - self.admitted


def read() -> list[RoomFigures]:
    """Return the figures of the rooms; none while Redis does not answer, of which an alert tells."""
    found = [offer for offer in offers.open_or_coming() if offer.waiting_room]
    return count(found) if found else []


def count(found: Sequence[Offer]) -> list[RoomFigures]:
    """Count the customers in the rooms of some offers, as a customer's look at their place counts them."""
    client: Redis = get_redis_connection("default")
    script = client.register_script(room.SCRIPT)
    rooms = []
    try:
        for offer in found:
            now = offer.clock.now()
            arguments = room.arguments(offer, NOBODY, now, enters=False)
            _, thousandths, entered, _ = script(room.keys(offer.sale), arguments)
            rooms.append(RoomFigures(offer, now >= offer.opens_at, entered, min(entered, thousandths // 1000)))
    except RedisError:
        return []
    return rooms
