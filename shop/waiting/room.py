"""The waiting room of a sale: enter the room, and look up a place in the line. All places are in Redis.

A customer has at most one place in a sale: entering again does not change it. Only a customer whose turn is over gets a
new place, at the end of the line.

A draw decides the order of the customers who enter before the opening. The score of a customer is computed from the
shop's secret key, the sale and the customer. So nobody can predict a score or draw twice.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Any

from django.conf import settings
from django_redis import get_redis_connection
from redis import RedisError
from redis.exceptions import OutOfMemoryError

from inventory.outages import outages
from shop.sales.offers import Offer
from shop.waiting import tickets
from shop.waiting.errors import RoomFull, RoomUnavailable

SCRIPT = (Path(__file__).parent / "lua" / "stand.lua").read_text(encoding="utf-8")
EVEN_IF_FULL = "#!lua flags=allow-oom\n"
"""First line of the script for a call that gives no place: the script may write even if Redis has no memory left.

So a turn can still begin for each customer in the line. Each turn takes up to `TURN_BYTES` of memory.
"""
PLACE_BYTES, TURN_BYTES = 120, 80
"""Maximum bytes of a place in Redis, and maximum bytes of a turn in addition to its place.

A place takes 79 to 96 bytes: its score, its links in the sorted set, the customer id, and its entry in a hash table.
The entry takes most when the table has just grown. A turn takes 55 to 58 bytes.
"""
WORK = "Keeping the places of waiting rooms"
"""The work that the log reports as failing while Redis does not answer."""
ENTERING = "Giving places in waiting rooms"
"""The work that the log reports as failing while Redis has no memory left."""

TURN = timedelta(minutes=10)
"""How long a ticket is valid, from the request in which the customer first learns that they are admitted."""
KEPT = timedelta(days=1)
"""How long places are kept after the sale has closed."""
BURST = 15
"""Size of a burst of turns, in seconds of the rate: at most `rate * BURST` turns begin at once.

In any period of `seconds`, at most `rate * (seconds + BURST)` turns begin, even if many admitted customers come back at
once.

In a large room, the polls after the opening are spread over `SPREAD` seconds. So turns begin up to `SPREAD / 4` seconds
later than the rate allows, and then faster than the rate. `BURST` is twice this delay, because pages poll late. A much
smaller burst would delay customers of every large sale.
"""
FASTEST, SLOWEST = 2, 60
"""Minimum and maximum seconds between two polls of a customer in the line."""
SOON = 10
"""A customer whose turn comes within this number of seconds polls again only when the turn has come."""
LONGEST = 3600
"""Maximum seconds between two polls before the opening, because timers of browsers do not run for months."""
LOOKS_PER_SECOND = 500
"""Approximate maximum number of polls of a room per second.

In a large room, the time between two polls of a customer therefore becomes longer than `SLOWEST`.
"""
SPREAD = 30
"""Maximum seconds after the opening over which the polls of all customers in the draw are spread."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A customer's standing in the waiting room.

    Args:
        state: `outside`: not in the room. `draw`: in the draw at the opening. `waiting`: in the line. `admitted`: may
            order until the ticket expires. `ended`: the turn is over, and entering again leads to the end of the line.
        entered: number of places given.
        place: number in the line, from 1, which never changes; None in the states `outside` and `draw`.
        ahead: number of customers before this customer whose turn has not come yet; None in the states `outside`,
            `draw` and `ended`. It is approximate while many admitted customers come back at once.
        estimate: seconds until the turn at the present rate; None in the same states as `ahead`.
        poll_after: seconds after which to poll again.
        ticket: the ticket that an order needs; empty if the customer is not admitted.
        ends_at: when the ticket expires; None if there is no ticket.
    """

    state: str
    entered: int
    place: int | None = None
    ahead: int | None = None
    estimate: int | None = None
    poll_after: int = SLOWEST
    ticket: str = ""
    ends_at: datetime | None = None


def enter(offer: Offer, customer: int) -> Standing:
    """Give a customer a place if they have none, and return their standing.

    Raises:
        RoomFull: Redis has no memory for a place. Customers who have a place are not refused.
        RoomUnavailable: Redis does not answer, or refuses writes.
    """
    try:
        return _stand(offer, customer, enters=True)
    except OutOfMemoryError as error:
        outages.failed(ENTERING, error)
        standing = look(offer, customer)
        if standing.state == "outside":
            raise RoomFull("The waiting room can give no place now. Enter again in a moment.") from error
        return standing


def look(offer: Offer, customer: int) -> Standing:
    """Return a customer's standing, without giving them a place. If their turn has come, it may begin now.

    Raises:
        RoomUnavailable: Redis does not answer, or refuses writes.
    """
    return _stand(offer, customer, enters=False)


def draw(sale: int, customer: int) -> float:
    """Return the score of a customer in the draw of a sale: a number in [0, 1), evenly distributed."""
    secret = hmac.new(settings.SECRET_KEY.encode(), f"draw:{sale}:{customer}".encode(), hashlib.sha256).digest()
    return int.from_bytes(secret[:6], "big") / 2**48


def keys(sale: int) -> list[str]:
    """Return the Redis keys of a sale's room: places, gate and turns. In a Redis cluster they are in one slot."""
    return [f"{{waiting:{sale}}}:{name}" for name in ("places", "gate", "turns")]


def arguments(offer: Offer, customer: int, now: datetime, *, enters: bool) -> list[Any]:
    """Return the arguments of the script in stand.lua."""
    return [
        customer,
        repr(draw(offer.sale, customer)),
        _milliseconds(now),
        _milliseconds(offer.opens_at),
        _milliseconds(offer.closes_at + KEPT),
        0 if offer.paused else offer.admitted_per_second,
        TURN // timedelta(milliseconds=1),
        int(enters),
        BURST * 1000,
        LOOKS_PER_SECOND,
    ]


def _stand(offer: Offer, customer: int, *, enters: bool) -> Standing:
    now = offer.clock.now()
    try:
        client = get_redis_connection("default")
        script = client.register_script(SCRIPT if enters else EVEN_IF_FULL + SCRIPT)
        *found, new = script(keys(offer.sale), arguments(offer, customer, now, enters=enters))
    except OutOfMemoryError:
        raise
    except RedisError as error:
        outages.failed(WORK, error)
        raise RoomUnavailable("The waiting room does not answer.") from error
    outages.worked(WORK)
    if new:
        outages.worked(ENTERING)
    return _standing(offer, customer, now, *found)


def _standing(
    offer: Offer, customer: int, now: datetime, place: int, admitted: int, entered: int, ends: int, late: int
) -> Standing:
    rate = offer.admitted_per_second or 1
    if not place:
        return Standing("outside", entered)
    if now < offer.opens_at:
        to_opening = ceil((offer.opens_at - now).total_seconds())
        # Choose the delay at random, so that it does not reveal the place in the draw.
        delay = ceil(random.uniform(0, min(SPREAD, entered / LOOKS_PER_SECOND)))  # noqa: S311 - no secret
        return Standing("draw", entered, poll_after=min(to_opening + delay, LONGEST))
    if ends:
        ends_at = datetime.fromtimestamp(ends / 1000, UTC)
        if ends_at <= now:
            return Standing("ended", entered, place)
        ticket = tickets.issue(offer, customer, ends_at)
        left = ceil((ends_at - now).total_seconds())
        return Standing("admitted", entered, place, 0, 0, left, ticket, ends_at)
    if place * 1000 <= admitted:
        # This customer and others were away when their turns came. Their turns begin in the order in which they poll,
        # and as fast as the rate of the sale allows.
        estimate = max(1, ceil(late / rate))
        pause = max(BURST if offer.paused else min(estimate, BURST), late / LOOKS_PER_SECOND)
        pace = max(FASTEST, ceil(random.uniform(0.5, 1.5) * pause))  # noqa: S311 - no secret
        return Standing("waiting", entered, place, max(0, late - 1), estimate, pace)
    ahead = max(0, place - 1 - admitted // 1000) + late
    estimate = max(1, ceil((place - admitted / 1000 + late) / rate))
    slowest = max(SLOWEST, (entered - admitted // 1000) // LOOKS_PER_SECOND)
    # Let the customer poll after half of the estimated time. So they poll only a few times, and still soon enough if
    # the rate rises.
    pace = max(FASTEST, estimate if estimate <= SOON else estimate // 2)
    return Standing("waiting", entered, place, ahead, estimate, min(pace, slowest))


def _milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
