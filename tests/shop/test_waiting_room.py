"""The waiting room: the draw, the line, its pace, and tickets that cannot be forged, shared, replayed or multiplied."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from shop.models import Sale
from shop.sales import offers
from tests.factories import OnSale, on_sale
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = pytest.mark.django_db(transaction=True)


def with_room(*, rate: int = 10, opens: timedelta = timedelta(hours=-1), units: int = 100, **options: Any) -> OnSale:
    """Put product `a` on sale behind a waiting room."""
    offer = on_sale({"a": units}, opens=opens, **options)
    Sale.objects.filter(pk=offer.sale).update(waiting_room=True, admitted_per_second=rate)
    offers.forget(offer.sale)
    return offer


def enter(buyer: Buyer, offer: OnSale) -> dict[str, Any]:
    answer = buyer.post(f"/api/sales/{offer.sale}/waiting/")
    assert answer.status_code == 200
    return dict(answer.json())


def test_a_customer_enters_is_admitted_and_buys(buyer: Buyer) -> None:
    offer = with_room()
    refused = assert_problem(buyer.order(order_body(offer, a=1)), 403, "waiting-room")
    assert "Enter it" in refused["detail"]
    stands = enter(buyer, offer)
    assert (stands["state"], stands["place"], stands["ahead"]) == ("admitted", 1, 0)
    bought = buyer.order(order_body(offer, a=1), headers={"Waiting-Ticket": stands["ticket"]})
    assert bought.status_code == 201
