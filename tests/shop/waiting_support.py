"""Helpers of the waiting room's tests: sales with a room, customers in it, and a clock that tests set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from shop.clock import Clock
from shop.models import Sale
from shop.sales import offers
from shop.sales.offers import Offer
from shop.waiting import room
from tests.factories import OnSale, on_sale
from tests.shop.conftest import Buyer

BEFORE = timedelta(hours=1)
"""Time until the opening of a sale that is `coming`."""


def with_room(*, rate: int = 10, units: int = 100, coming: bool = False, **options: Any) -> OnSale:
    """Put product `a` on sale behind a waiting room."""
    opens, closes = (BEFORE, 2 * BEFORE) if coming else (-BEFORE, BEFORE)
    offer = on_sale({"a": units}, opens=opens, closes=closes, **options)
    set_rate(offer, rate)
    return offer


def set_rate(offer: OnSale, rate: int) -> None:
    """Give a sale a waiting room with this admission rate, as an operator does. This process notices at once."""
    Sale.objects.filter(pk=offer.sale).update(waiting_room=True, admitted_per_second=rate)
    offers.forget(offer.sale)


class Stopped(Clock):
    """A clock that stands still."""

    def now(self) -> datetime:
        return self.read


def offer_at(sale: OnSale, after_opening: float, **changes: Any) -> Offer:
    """Return a sale's offer as read some seconds after its opening; negative numbers are before it."""
    offer = replace(offers.read(sale.sale), **changes)
    return replace(offer, clock=Stopped(offer.opens_at + timedelta(seconds=after_opening), time.monotonic()))


def enter_all(offer: Offer, customers: Sequence[int]) -> None:
    for customer in customers:
        room.enter(offer, customer)


def places(offer: Offer, customers: Sequence[int]) -> list[int | None]:
    return [room.look(offer, customer).place for customer in customers]


def states(offer: Offer, customers: Sequence[int]) -> list[str]:
    return [room.look(offer, customer).state for customer in customers]


def enter(buyer: Buyer, offer: OnSale) -> dict[str, Any]:
    """Enter the waiting room through the API."""
    answer = buyer.post(f"/api/sales/{offer.sale}/waiting/")
    assert answer.status_code == 200
    return dict(answer.json())


def look(buyer: Buyer, offer: OnSale) -> dict[str, Any]:
    """Query a customer's place through the API."""
    answer = buyer.get(f"/api/sales/{offer.sale}/waiting/")
    assert answer.status_code == 200
    return dict(answer.json())
