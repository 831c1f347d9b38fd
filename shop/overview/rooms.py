"""The waiting rooms of open and coming sales: how many customers are in the draw, wait, and are admitted."""

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
"""Rooms that are shown: those that open first."""
NOBODY = 0
"""A customer id that nobody has. Looking with it changes no place."""


@dataclass(frozen=True, slots=True)
class RoomFigures:
    """A waiting room at one moment.

    Args:
        is_open: whether the sale has opened. Before, all customers are in the draw.
        entered: places that were given. A customer who enters again after their turn gets another one.
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
    with_room = Sale.objects.filter(waiting_room=True, closes_at__gt=Now()).order_by("opens_at", "pk")
    found = map(offers.read, with_room.values_list("pk", flat=True)[:MOST])
    return count([offer for offer in found if offer is not None])


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
