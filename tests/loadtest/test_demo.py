"""How often the demo repeats a burst, and what it leaves behind in the shop."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from inventory.models import StockItem
from inventory.strategies import registry
from loadtest import demo_buyers
from loadtest.demo import MAX_BURSTS, close_bursts, left_to_buyers, open_sales, pay_orders, run_until_broken, welcome
from loadtest.demo_buyers import DemoBuyers
from loadtest.preparation import prepare
from loadtest.rush import OnProgress, Rush
from shop import conservation
from shop.models import Order, Product, Sale
from shop.orders.expiry import expire_unpaid
from shop.orders.queued import save_queued
from shop.sales import lifecycle
from shop.sales.preheat import preheat_sale
from tests.factories import OnSale, new_customer, on_sale, orders_in
from tests.shop.conftest import buy, make_due, state
from tests.waiting import wait_for

in_a_shop = pytest.mark.usefixtures("transactional_db", "redis")


@dataclass(frozen=True, kw_only=True)
class ScriptedRush(Rush):
    """A burst that returns prepared verdicts."""

    verdicts: list[bool]

    def run(self, url: str, *, progress: OnProgress = lambda _: None) -> dict[str, Any]:
        return {"strategy": self.name, "conserved": self.verdicts.pop(0), "missing": 0, "unserved": 0}


@pytest.mark.parametrize(
    ("seller", "verdicts", "conserved", "bursts"),
    [
        pytest.param({"rung": "subtract-in-sql"}, [False, True], False, 1, id="flawed, breaks at once"),
        pytest.param({"rung": "subtract-in-sql"}, [True, True, False, True], False, 3, id="flawed, lucky twice"),
        pytest.param({"rung": "subtract-in-sql"}, [True] * 9, True, MAX_BURSTS, id="flawed, never breaks"),
        pytest.param({"strategy": "lua"}, [True, False], True, 1, id="sound"),
        pytest.param({"strategy": "lua"}, [False, True], False, 1, id="sound, breaks"),
    ],
)
def test_only_a_flawed_rung_gets_more_bursts(
    seller: dict[str, str], verdicts: list[bool], conserved: bool, bursts: int
) -> None:
    verdict = run_until_broken(ScriptedRush(**seller, verdicts=list(verdicts)), "", progress=lambda _: None)
    assert (verdict["conserved"], verdict["bursts"]) == (conserved, bursts)


@in_a_shop
@pytest.mark.parametrize("secret", ["", "shared with the provider"])
def test_the_demo_leaves_a_shop_that_has_sold_something(settings: Any, secret: str) -> None:
    settings.PAYMENT_SECRET = secret
    earlier = buy(on_sale({"a": 5}), a=1).order.pk
    began = timezone.now()
    visitor = buy(on_sale({"b": 5}), b=1).order.pk
    burst = prepare(strategy="guarded-update", units=20, customers=[], limit=1)
    for _ in range(20):
        buy(OnSale(burst.sale, burst.products), new_customer(), **dict.fromkeys(burst.products, 1))

    assert pay_orders(began) == 18
    make_due()
    assert expire_unpaid() == 4

    assert (orders_in("paid"), state(earlier), state(visitor)) == (18, "expired", "expired")
    assert sum(row.sold for row in conservation.figures()) == 18


@in_a_shop
def test_the_demo_ends_with_an_open_sale_and_one_that_comes(settings: Any) -> None:
    earlier = prepare(strategy="guarded-update", units=1, customers=[], limit=1).sale
    began = timezone.now()
    prepare(strategy="lua", units=1, customers=[], limit=1)
    close_bursts(began)
    assert "Burst: " not in Client().get("/sales/").text, "the storefront lists no burst"
    open_now, coming = open_sales("last-unit")
    now = timezone.now()
    not_over = Sale.objects.filter(closes_at__gt=now).exclude(pk=earlier)
    assert set(not_over.values_list("slug", flat=True)) == {open_now.slug, coming.slug} == {"tonight", "midnight"}
    assert open_now.opens_at <= now < coming.opens_at
    assert Sale.objects.get(pk=earlier).closes_at > now, "a sale of an earlier demo is left alone"
    said = welcome("http://shop", "last-unit", open_now, coming, mails=Path("/logs/web.log"))
    for address in ("/", "/sales/tonight/", "/sales/midnight/", "/admin/", "/lab/", "/api/docs/"):
        assert f"http://shop{address}" in said
    assert "password last-unit" in said
    assert "/logs/web.log" not in said
    settings.EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
    assert "/logs/web.log" in welcome("", "", open_now, coming, mails=Path("/logs/web.log"))


@in_a_shop
def test_another_demo_delivers_what_was_sold_and_has_a_sale_that_comes() -> None:
    tonight, midnight = open_sales("last-unit")
    poster = tonight.items.get(product__sku="poster").product_id
    buy(OnSale(tonight.pk, {"poster": poster}, "15.00"), poster=1)
    opened = timezone.now()
    Sale.objects.filter(pk=midnight.pk).update(opens_at=opened)
    again, next_one = open_sales("last-unit")
    assert again.pk == tonight.pk
    assert (next_one.slug, Sale.objects.get(pk=midnight.pk).closes_at > timezone.now()) == ("midnight-2", False)
    assert timedelta(minutes=2) <= next_one.opens_at - opened <= timedelta(minutes=3)
    assert StockItem.objects.get(sku="poster").on_hand == 1
    assert all(row.conserved for row in conservation.figures())


@in_a_shop
def test_simulated_buyers_order_pay_and_stop_with_the_demo(live_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_buyers, "AT_ONCE", 6)
    monkeypatch.setattr(demo_buyers, "PAUSE", (3600.0, 3600.0))
    sale, coming = open_sales("last-unit")
    products = left_to_buyers(sale)
    with DemoBuyers(live_server.url, {each.pk: left_to_buyers(each) for each in (sale, coming)}):
        wait_for(lambda: Order.objects.filter(state="paid").count() >= 4, "four of six buyers to pay")
    assert not any(thread.name == "demo-buyers" for thread in threading.enumerate())
    assert orders_in("paid") == 4
    assert not Order.objects.filter(sale=coming).exists(), "nobody buys before the opening"
    assert set(Product.objects.filter(pk__in=products).values_list("sku", flat=True)) == {"headphones", "keyboard"}
    assert StockItem.objects.get(sku="poster").on_hand == 1
    # A visitor may give the coming sale a strategy that queues. Its orders cannot be paid at once.
    Sale.objects.filter(pk=coming.pk).update(strategy="lua-queue", opens_at=timezone.now())
    preheat_sale(coming.pk)
    with DemoBuyers(live_server.url, {coming.pk: left_to_buyers(coming)}):
        wait_for(lambda: len(registry.queue()) == 6, "six buyers to order")
    save_queued()
    assert Order.objects.filter(sale=coming, state="pending").count() == 6


@in_a_shop
def test_simulated_buyers_go_on_without_selling_out(live_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"AT_ONCE": 2, "CUSTOMERS": 30, "PAUSE": (0.0, 0.0), "PAID": 0.05, "WAITING": 2}
    for name, size in sizes.items():
        monkeypatch.setattr(demo_buyers, name, size)
    sale, coming = open_sales("last-unit")
    now = timezone.now()

    def cancelled(of: Sale) -> int:
        return Order.objects.filter(state="cancelled", sale=of).count()

    with DemoBuyers(live_server.url, {each.pk: left_to_buyers(each) for each in (sale, coming)}):
        wait_for(lambda: cancelled(sale) >= 3, "buyers to cancel in the open sale")
        lifecycle.pause(sale.pk)
        Sale.objects.filter(pk=coming.pk).update(opens_at=now)
        wait_for(lambda: cancelled(coming) >= 3, "buyers to cancel in the sale that has opened")
    paid = [Order.objects.filter(state="paid", sale=each).count() for each in (sale, coming)]
    assert paid == [7, 2], "a twentieth of 140 units, and of 42"
    assert all(row.conserved for row in conservation.figures())
    left = sum(StockItem.objects.filter(sku__in=("headphones", "keyboard")).values_list("on_hand", flat=True))
    assert left >= 140 - 7 - 7 // 4 - 1 - demo_buyers.WAITING - 1, "paid, left to expire, and about to be cancelled"
