"""One clock decides when a sale is open and when an order expires, even for a machine with a wrong clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from redis import Redis
from rest_framework.test import APIClient

from inventory.errors import SaleClosed
from inventory.strategies import registry
from shop import clock
from shop.models import Order, Sale
from shop.orders.errors import SaleNotOpen
from shop.orders.expiry import expire_unpaid
from shop.orders.queued import save_queued
from shop.reconcile import sellers
from shop.sales import lifecycle, offers
from shop.sales.preheat import SaleOver, preheat_sale
from tests.factories import on_sale
from tests.shop.conftest import buy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

MINUTE = timedelta(minutes=1)
Skewed = Callable[[], None]


@pytest.fixture(params=[-2, 2], ids=["a clock that is behind", "a clock that is ahead"])
def skewed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Skewed:
    """A function that sets this machine's clock wrong by two minutes. The servers' clocks stay right."""
    right = timezone.now

    def set_wrong() -> None:
        monkeypatch.setattr(timezone, "now", lambda: right() + request.param * MINUTE)

    return set_wrong


def test_an_order_by_an_offer_from_before_the_close_is_refused_when_it_is_saved(skewed: Skewed) -> None:
    offer = on_sale({"a": 5})
    skewed()
    known = offers.get(offer.sale)
    lifecycle.close(offer.sale)
    offers.cache.put(offer.sale, known, refresh_at=float("inf"))
    with pytest.raises(SaleClosed):
        buy(offer, a=1)
    assert Order.objects.count() == 0


def test_an_open_sale_sells(skewed: Skewed) -> None:
    offer = on_sale({"a": 5}, opens=-MINUTE, closes=MINUTE)
    skewed()
    offers.cache.clear()
    placed = buy(offer, a=1).order
    assert abs(placed.created_at - clock.now()) < MINUTE
    assert Order.objects.get(pk=placed.pk).created_at == placed.created_at


@pytest.mark.parametrize(("opens", "closes"), [(MINUTE, 10 * MINUTE), (-10 * MINUTE, -MINUTE)], ids=["soon", "past"])
def test_a_sale_that_is_not_open_does_not_sell(opens: timedelta, closes: timedelta, skewed: Skewed) -> None:
    offer = on_sale({"a": 5}, opens=opens, closes=closes)
    skewed()
    with pytest.raises(SaleNotOpen):
        buy(offer, a=1)


def test_closing_ends_the_sale_at_this_moment(skewed: Skewed) -> None:
    offer = on_sale({"a": 5}, strategy="lua")
    skewed()
    before = clock.now()
    lifecycle.close(offer.sale)
    assert before <= Sale.objects.get(pk=offer.sale).closes_at <= clock.now()
    assert registry.counters().left(["a"]) == {"a": None}
    assert sellers() == {}
    assert APIClient().get("/api/sales/").json() == []


def test_sales_are_preheated_and_unloaded_in_time(skewed: Skewed, redis: Redis) -> None:
    lead = timedelta(seconds=settings.PREHEAT_LEAD)
    soon = on_sale({"a": 3}, strategy="lua", opens=lead - timedelta(seconds=30), preheat=False)
    later = on_sale({"b": 3}, strategy="lua", opens=lead + timedelta(seconds=30), preheat=False)
    running = on_sale({"c": 3}, strategy="lua", closes=MINUTE)
    over = on_sale({"d": 3}, strategy="lua")
    Sale.objects.filter(pk=over.sale).update(closes_at=timezone.now() - MINUTE)
    skewed()
    lifecycle.advance()
    assert [Sale.objects.get(pk=each.sale).is_loaded for each in (soon, later, running, over)] == [
        *(True, False, True, False)
    ]
    with pytest.raises(SaleOver):
        preheat_sale(over.sale)


@pytest.mark.parametrize("strategy", ["guarded-update", "lua-queue"])
@pytest.mark.parametrize(("since_placed", "expired"), [(-MINUTE, 0), (MINUTE, 1)])
def test_an_order_expires_when_its_time_is_over(
    skewed: Skewed, strategy: str, since_placed: timedelta, expired: int
) -> None:
    offer = on_sale({"a": 3}, strategy=strategy)
    skewed()
    offers.cache.clear()
    order = buy(offer, a=1).order
    save_queued()
    payable_from = Order.objects.get(pk=order.pk).payable_from
    assert abs(payable_from - clock.now()) < MINUTE
    ttl = timedelta(seconds=settings.ORDER_TTL)
    Order.objects.update(payable_from=payable_from - ttl - since_placed)
    assert expire_unpaid() == expired


def test_an_offer_tells_the_time_of_postgres_without_a_query(
    skewed: Skewed, django_assert_num_queries: Callable[[int], object]
) -> None:
    offer = on_sale({"a": 3})
    skewed()
    before = clock.now()
    known = offers.read(offer.sale)
    assert known is not None
    with django_assert_num_queries(0):  # type: ignore[attr-defined]
        told = [known.clock.now() for _ in range(100)]
    assert told == sorted(told)
    assert before <= told[0]
    assert told[-1] <= clock.now()


def test_the_time_is_that_of_the_moment_also_in_a_long_transaction() -> None:
    with transaction.atomic():
        assert clock.now() < clock.now()
