"""Figures of the waiting rooms of open and coming sales: customers in the draw, waiting and admitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models.functions import Now
from django_redis import get_redis_connection
from redis import Redis, RedisError

from shop.models import Sale
from shop.sales import offers
from shop.sales.offers import Offer
from shop.waiting import room

MOST = 10
"""Maximum number of rooms on the overview. The sales that open first are shown."""
NOBODY = 0
"""A customer id that no customer has, to read a room without changing a place in it."""


@dataclass(frozen=True, slots=True)
class RoomFigures:
    """A waiting room at one moment.

    Args:
        is_open: whether the sale has opened. Before the opening, all customers are in the draw.
        entered: number of places given. A customer who enters again after their turn gets another place.
        admitted: number of places whose turn has come.
    """

    offer: Offer
    is_open: bool
    entered: int
    admitted: int

    @property
    def waiting(self) -> int:
        return self.entered - self.admitted


def read() -> list[RoomFigures]:
    """Return the figures of the rooms; empty while Redis does not answer, which an alert reports."""
    with_room = Sale.objects.filter(waiting_room=True, closes_at__gt=Now()).order_by("opens_at", "pk")
    found = map(offers.read, with_room.values_list("pk", flat=True)[:MOST])
    return count([offer for offer in found if offer is not None])


def count(found: Sequence[Offer]) -> list[RoomFigures]:
    """Return the figures of the waiting rooms of these sales, from the Redis script that finds a customer's place."""
    client: Redis = get_redis_connection("default")
    script = client.register_script(room.EVEN_IF_FULL + room.SCRIPT)
    rooms = []
    try:
        for offer in found:
            now = offer.clock.now()
            arguments = room.arguments(offer, NOBODY, now, enters=False)
            _, thousandths, entered, *_ = script(room.keys(offer.sale), arguments)
            rooms.append(RoomFigures(offer, now >= offer.opens_at, entered, min(entered, thousandths // 1000)))
    except RedisError:
        return []
    return rooms
