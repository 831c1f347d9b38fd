"""Orders that a server has lost: the order's URL tells the customer, and the key can be used again."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from redis import Redis

from inventory.errors import StockNotLoaded
from inventory.models import StockItem
from inventory.strategies import registry
from shop.models import Allowance, Order, OrderItem
from shop.orders.ids import is_of, new_order_id, placed_at
from shop.orders.queued import save_queued
from shop.reconcile import reconcile
from shop.sales import lifecycle
from shop.sales.preheat import CannotPreheat, preheat_sale
from tests.factories import OnSale, on_sale, orders_in
from tests.shop.conftest import Buyer, Config, assert_conserved, assert_problem, buy, order_body

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def place_queued(buyer: Buyer, offer: OnSale) -> str:
    answer = buyer.order(order_body(offer, a=1), key="mine")
    assert answer.status_code == 202
    return str(answer.headers["Location"])


@pytest.mark.parametrize("saved", [False, True], ids=["Redis is emptied before it is saved", "Postgres loses it"])
def test_a_lost_order_says_so_at_its_address(
    buyer: Buyer, other_buyer: Buyer, redis: Redis, settings: Any, saved: bool
) -> None:
    address = place_queued(buyer, on_sale({"a": 5}, strategy="lua-queue"))
    if saved:
        assert save_queued() == 1
        OrderItem.objects.all().delete()
        Order.objects.all().delete()
    else:
        redis.flushall()
    answer = assert_problem(buyer.get(address), 409, "still-queued")
    assert answer["detail"] == "The shop is looking for this order. Ask again in a moment."
    for change in ("pay", "cancel"):
        assert_problem(buyer.post(f"{address}{change}/"), 409, "still-queued")
    settings.RECONCILE_GRACE = 0
    found = buyer.get(address)
    assert found.status_code == 200
    order = found.json()
    lost = (address.split("/")[-2], "rejected", None, [])
    assert tuple(order[name] for name in ("id", "state", "sale", "items")) == lost
    assert order["reason"].startswith("The shop has lost this order")
    assert other_buyer.get(address).status_code == 404
    for change, problem in (("pay", "not-payable"), ("cancel", "not-cancellable")):
        refused = assert_problem(buyer.post(f"{address}{change}/"), 409, problem)
        assert refused["detail"] == "The order is rejected."
        assert_problem(other_buyer.post(f"{address}{change}/"), 404, "not-found")


def test_an_order_that_never_was_is_not_found(buyer: Buyer, settings: Any) -> None:
    settings.RECONCILE_GRACE = 0
    of_another = new_order_id(buyer.customer + 1, timezone.now())
    for order in (uuid4(), of_another):
        assert_problem(buyer.get(f"/api/orders/{order}/"), 404, "not-found")
    mine = new_order_id(buyer.customer, timezone.now())
    assert buyer.get(f"/api/orders/{mine}/").status_code == 200, "the control"


def test_an_id_tells_whose_it_is_and_when_it_was_made(settings: Any) -> None:
    now = timezone.now()
    made = {new_order_id(7, now) for _ in range(1000)}
    assert len(made) == 1000
    for order in list(made)[:100]:
        assert (order.version, is_of(order, 7), is_of(order, 8)) == (7, True, False)
        assert abs((placed_at(order) - now).total_seconds()) < 0.002
    settings.SECRET_KEY = "another secret"
    assert not any(is_of(order, 7) for order in made)


def test_after_a_loss_the_same_key_buys_once(buyer: Buyer, redis: Redis) -> None:
    offer = on_sale({"a": 5}, strategy="lua-queue")
    place_queued(buyer, offer)
    redis.flushall()
    # This request makes the shop load the stock.
    assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 503, "not-loaded")
    address = place_queued(buyer, offer)
    assert save_queued() == 1
    assert buyer.order(order_body(offer, a=1), key="mine").json()["id"] in address
    assert orders_in("pending") == 1
    assert_conserved()


def restore_postgres(offer: OnSale, units: int) -> None:
    """Reset Postgres to its state before the orders, and leave Redis unchanged."""
    OrderItem.objects.all().delete()
    Order.objects.all().delete()
    Allowance.objects.all().delete()
    StockItem.objects.update(on_hand=units)


@pytest.mark.parametrize("limit", [None, 1])
def test_the_key_of_an_order_that_postgres_has_lost_places_it_again(buyer: Buyer, limit: int | None) -> None:
    offer = on_sale({"a": 5}, strategy="lua-queue", limit=limit)
    first = place_queued(buyer, offer)
    assert save_queued() == 1
    restore_postgres(offer, 5)
    again = place_queued(buyer, offer)
    assert again != first
    assert save_queued() == 1
    assert buyer.get(again).json()["state"] == "pending"
    assert buyer.order(order_body(offer, a=1), key="mine").json()["id"] in again
    assert orders_in() == 1
    reconcile(grace=0)
    assert registry.counters().left(["a"]) == {"a": 4}
    assert_conserved()


@pytest.mark.parametrize("when", ["queued", "being saved", "saved", "rejected"])
def test_the_key_of_an_order_that_is_not_lost_stays_with_it(buyer: Buyer, when: str) -> None:
    """Negative control: an order that is not lost keeps its key."""
    offer = on_sale({"a": 5}, strategy="lua-queue")
    address = place_queued(buyer, offer)
    if when == "being saved":
        assert len(registry.queue().read("worker", 1)) == 1
    elif when == "saved":
        save_queued()
    elif when == "rejected":
        User.objects.update(is_active=False)
        save_queued()
        User.objects.update(is_active=True)
        Order.objects.all().delete()
    answer = buyer.order(order_body(offer, a=1), key="mine")
    assert answer.json()["id"] == address.split("/")[-2]
    assert len(registry.counters().order_ids()) == (1 if when in ("queued", "being saved") else 0)


RISKS = [("maxmemory-policy", "allkeys-lru"), ("maxmemory-policy", "volatile-ttl"), ("appendonly", "no")]


@pytest.mark.parametrize(("name", "value"), RISKS)
def test_a_sale_that_queues_is_not_preheated_on_a_redis_that_may_lose_orders(
    config: Config, settings: Any, name: str, value: str
) -> None:
    offer = on_sale({"a": 5}, strategy="lua-queue", preheat=False)
    config(name, value)
    with pytest.raises(CannotPreheat, match=rf"may lose them: {name} is {value}.* QUEUED_ORDERS_MAY_BE_LOST=1"):
        preheat_sale(offer.sale)
    lifecycle.advance()
    with pytest.raises(StockNotLoaded):
        buy(offer, a=1)
    assert registry.counters().left(["a"]) == {"a": None}
    settings.QUEUED_ORDERS_MAY_BE_LOST = True
    preheat_sale(offer.sale)
    assert registry.counters().left(["a"]) == {"a": 5}


@pytest.mark.parametrize("strategy", ["lua", "segmented-redis", "redis-lock", "guarded-update"])
def test_sales_that_save_before_they_answer_are_preheated_on_any_redis(config: Config, strategy: str) -> None:
    config("maxmemory-policy", "allkeys-lru")
    assert not buy(on_sale({"a": 5}, strategy=strategy), a=1).queued


def test_the_overview_shows_that_queued_orders_may_be_lost(config: Config, admin_client: Client, settings: Any) -> None:
    settings.QUEUED_ORDERS_MAY_BE_LOST = True
    warning = "Queued orders may be lost: maxmemory-policy is allkeys-lru"
    config("maxmemory-policy", "allkeys-lru")
    on_sale({"a": 5}, strategy="lua")
    assert warning not in admin_client.get("/admin/").text, "no sale queues"
    on_sale({"b": 5}, strategy="lua-queue")
    assert warning in admin_client.get("/admin/").text
    config("maxmemory-policy", "noeviction")
    assert warning not in admin_client.get("/admin/").text


def test_each_lost_order_is_logged_once(
    buyer: Buyer, redis: Redis, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Each lost order is logged once, although its customer may poll it every second."""
    offer = on_sale({"a": 5}, strategy="lua-queue")
    addresses = [str(buyer.order(order_body(offer, a=1)).headers["Location"]) for _ in range(2)]
    redis.flushall()
    settings.RECONCILE_GRACE = 0
    for address in addresses * 3:
        assert buyer.get(address).json()["state"] == "rejected"
    assert len([each for each in caplog.records if "is lost" in each.message]) == 2
