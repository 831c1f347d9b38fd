"""The REST API of a shop that sells: what is answered to an order, to its retry, and to who asks for it later."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.db import transaction
from redis import Redis
from rest_framework.test import APIClient

from inventory import stock
from inventory.models import StockItem
from inventory.strategies import registry
from inventory.strategies.registry import stock_lock
from shop import conservation
from shop.api import throttles
from shop.models import Order, OrderItem, Sale
from shop.orders import place as placing
from shop.orders.expiry import expire_unpaid
from shop.orders.saving import reject
from shop.sales import offers
from tests.factories import SAVING, OnSale, close_now, interleaved, new_request, on_sale
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5, "b": 5}, price="9.90", limit=3)


def assert_sold(**units: int) -> None:
    figures = conservation.figures()
    assert {row.sku: row.sold for row in figures if row.sold} == units
    assert all(row.conserved for row in figures)


# 201


@pytest.mark.parametrize("name", SAVING)
def test_an_order_is_answered_with_201_and_is_at_its_location(buyer: Buyer, name: str) -> None:
    offer = on_sale({"a": 5, "b": 5}, strategy=name, price="9.90")
    answer = buyer.order(order_body(offer, a=2, b=1))
    order = Order.objects.get()
    created_at = datetime.fromisoformat(answer.json()["created_at"])
    assert (answer.status_code, answer.headers["Content-Type"]) == (201, "application/json")
    assert answer.headers["Location"] == f"/api/orders/{order.pk}/"
    assert "Idempotent-Replayed" not in answer.headers
    assert answer.json() == {
        "id": str(order.pk),
        "sale": offer.sale,
        "state": "pending",
        "place": None,
        "reason": "",
        "items": [
            {"product": offer.products["a"], "sku": "a", "name": "A", "quantity": 2, "price": "9.90"},
            {"product": offer.products["b"], "sku": "b", "name": "B", "quantity": 1, "price": "9.90"},
        ],
        "total": "29.70",
        "created_at": answer.json()["created_at"],
        "pay_by": answer.json()["pay_by"],
    }
    assert created_at == order.created_at
    assert datetime.fromisoformat(answer.json()["pay_by"]) - created_at == timedelta(seconds=settings.ORDER_TTL)
    assert buyer.get(answer.headers["Location"]).json() == answer.json()
    assert_sold(a=2, b=1)


def test_the_same_key_again_is_the_same_answer_and_no_other_order(buyer: Buyer, offer: OnSale) -> None:
    first, again = (buyer.order(order_body(offer, a=1), key="mine") for _ in range(2))
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert_sold(a=1)


def test_a_key_in_quotes_is_the_same_key(buyer: Buyer, offer: OnSale) -> None:
    first, again = (buyer.order(order_body(offer, a=1), key=key) for key in ("mine", '"mine"'))
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert Order.objects.get().key == "mine"


@pytest.mark.parametrize("key", ["a", "a" * 128, "0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e", "A-Z_a.z~0:9"])
def test_every_key_of_the_documented_form_is_taken(buyer: Buyer, offer: OnSale, key: str) -> None:
    assert buyer.order(order_body(offer, a=1), key=key).status_code == 201
    assert Order.objects.get().key == key


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "*/*;q=0", "nonsense", ""])
def test_whatever_is_accepted_the_answer_is_json(buyer: Buyer, offer: OnSale, accept: str) -> None:
    made = buyer.order(order_body(offer, a=1), headers={"Accept": accept})
    assert (made.status_code, made.headers["Content-Type"]) == (201, "application/json")
    refused = buyer.order({}, headers={"Accept": accept})
    assert_problem(refused, 400, "invalid")
    listed = buyer.get("/api/orders/", headers={"Accept": accept})
    assert (listed.status_code, listed.headers["Content-Type"]) == (200, "application/json")


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_by_any_of_its_names_is_read(buyer: Buyer, offer: OnSale, content_type: str) -> None:
    body = json.dumps(order_body(offer, a=1))
    answer = buyer.post("/api/orders/", body, content_type=content_type, headers={"Idempotency-Key": "mine"})
    assert answer.status_code == 201


# 409, 422: nothing is sold


def test_sold_out_says_what_is_left(buyer: Buyer, redis: Redis) -> None:
    offer = on_sale({"a": 2})
    said = assert_problem(buyer.order(order_body(offer, a=3)), 409, "sold-out")
    assert (said["sku"], said["wanted"], said["left"]) == ("a", 3, 2)
    assert_sold()


def test_over_the_limit_says_what_is_allowed(buyer: Buyer, offer: OnSale) -> None:
    buyer.order(order_body(offer, a=2))
    said = assert_problem(buyer.order(order_body(offer, a=2)), 409, "over-limit")
    assert (said["sku"], said["limit"], said["taken"]) == ("a", 3, 2)
    assert_sold(a=2)


@pytest.mark.parametrize(("opens", "closes"), [(1, 2), (-2, -1)], ids=["not yet", "over"])
def test_a_sale_that_is_not_open_is_told_apart(buyer: Buyer, opens: int, closes: int) -> None:
    offer = on_sale({"a": 1}, opens=timedelta(hours=opens), closes=timedelta(hours=closes))
    assert_problem(buyer.order(order_body(offer, a=1)), 409, "sale-not-open")
    assert_sold()


def test_a_key_for_another_body_is_422(buyer: Buyer, offer: OnSale) -> None:
    buyer.order(order_body(offer, a=1), key="mine")
    assert_problem(buyer.order(order_body(offer, a=2), key="mine"), 422, "key-reused")
    assert_sold(a=1)


def test_a_key_whose_order_is_being_placed_is_409_with_a_time_to_wait(
    buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as running:
        running.setitem(placing._running, (buyer.customer, "mine"), uuid4())
        assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 409, "still-running")
        assert buyer.order(order_body(offer, a=1), key="another").status_code == 201
    assert buyer.order(order_body(offer, a=1), key="mine").status_code == 201
    assert_sold(a=2)


def test_a_retry_gets_201_also_after_the_sale(buyer: Buyer, offer: OnSale) -> None:
    first = buyer.order(order_body(offer, a=1), key="mine")
    close_now(offer)
    again = buyer.order(order_body(offer, a=1), key="mine")
    assert (again.status_code, again.json()) == (201, first.json())
    assert_problem(buyer.order(order_body(offer, a=1)), 409, "sale-not-open")


# 503: try again


def test_a_lock_that_is_not_granted_in_time_is_busy_and_not_sold_out(
    buyer: Buyer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = on_sale({"a": 1}, strategy="redis-lock")
    monkeypatch.setattr(registry.get("redis-lock"), "wait", 0.01)
    with stock_lock("a").hold():
        assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 503, "busy")
    assert_sold()
    assert buyer.order(order_body(offer, a=1), key="mine").status_code == 201


def test_retries_that_are_used_up_are_busy_and_not_sold_out(buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = on_sale({"a": 1}, strategy="optimistic")
    monkeypatch.setattr(registry.get("optimistic"), "attempts", 1)
    with interleaved(lambda: stock.deliver("a", 1), after="^SELECT .*inventory_stockitem"):
        assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 503, "busy")
    assert_sold()
    assert buyer.order(order_body(offer, a=1), key="mine").status_code == 201


def test_stock_that_is_not_loaded_is_not_sold_out(buyer: Buyer) -> None:
    offer = on_sale({"a": 1}, strategy="lua")
    registry.counters().unload(["a"])
    assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 503, "not-loaded")
    assert buyer.order(order_body(offer, a=1), key="mine").status_code == 201  # the first has loaded it
    assert_sold(a=1)


# 429


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the throttle goes by; set `clock[0]`."""
    now = [1_000_000.25]

    class Clock:
        time = staticmethod(lambda: now[0])

    monkeypatch.setattr(throttles, "time", Clock)
    return now


def test_up_to_the_rate_nobody_is_slowed_down_and_the_next_try_is_429(
    buyer: Buyer, other_buyer: Buyer, redis: Redis, clock: list[float], settings: Any
) -> None:
    offer = on_sale({"a": 100})
    settings.ORDER_RATE = rate = 3  # so few that they come within the two seconds for which Redis keeps the count
    for _ in range(rate):
        assert buyer.order(order_body(offer, a=1)).status_code == 201
    assert assert_problem(buyer.order(order_body(offer, a=1)), 429, "too-fast")
    assert_sold(a=rate)
    assert other_buyer.order(order_body(offer, a=1)).status_code == 201
    assert buyer.get("/api/orders/").status_code == 200
    clock[0] += 1
    assert buyer.order(order_body(offer, a=1)).status_code == 201
    assert_sold(a=rate + 2)


def test_tries_that_are_refused_count_too(buyer: Buyer, offer: OnSale, clock: list[float], settings: Any) -> None:
    settings.ORDER_RATE = 2
    assert_problem(buyer.order({}), 400, "invalid")
    assert_problem(buyer.order(order_body(offer, a=1), key=""), 400, "idempotency-key")
    assert_problem(buyer.order(order_body(offer, a=1)), 429, "too-fast")
    assert_sold()


def test_the_count_of_a_second_does_not_stay_in_redis(buyer: Buyer, redis: Redis, clock: list[float]) -> None:
    buyer.order({})
    (key,) = redis.keys("rate:*")
    assert 0 < redis.ttl(key) <= 2


# Looking and paying


def test_a_buyer_sees_their_own_orders_newest_first_and_no_others(
    buyer: Buyer, other_buyer: Buyer, redis: Redis
) -> None:
    offer = on_sale({"a": 9})
    mine = [buyer.order(order_body(offer, a=1)).json() for _ in range(3)]
    other_buyer.order(order_body(offer, a=1))
    listed = buyer.get("/api/orders/").json()
    assert listed["results"] == mine[::-1]
    assert (listed["next"], listed["previous"]) == (None, None)


def test_the_items_of_an_order_are_in_the_order_of_their_skus_wherever_it_is_read(buyer: Buyer, offer: OnSale) -> None:
    first = buyer.order(order_body(offer, b=1, a=1), key="mine")
    items = list(OrderItem.objects.order_by("-product"))
    OrderItem.objects.all().delete()
    OrderItem.objects.bulk_create(OrderItem(order=i.order, product=i.product, quantity=1, price=i.price) for i in items)
    again = buyer.order(order_body(offer, b=1, a=1), key="mine")
    for answer in (first.json(), again.json(), buyer.get("/api/orders/").json()["results"][0]):
        assert [item["sku"] for item in answer["items"]] == ["a", "b"]


def test_a_long_list_comes_in_pages(buyer: Buyer, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shop.api.pagination.NewestFirst.page_size", 2)
    offer = on_sale({"a": 9})
    mine = [buyer.order(order_body(offer, a=1)).json()["id"] for _ in range(5)]
    seen, page = [], "/api/orders/"
    while page:
        answer = buyer.get(page).json()
        assert len(answer["results"]) <= 2
        seen += [order["id"] for order in answer["results"]]
        page = answer["next"]
    assert seen == mine[::-1]


def test_paying_answers_with_the_paid_order_however_often(buyer: Buyer, offer: OnSale) -> None:
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    for before in (False, True):
        paid = buyer.post(f"{location}pay/")
        assert (paid.status_code, paid.json()["state"]) == (200, "paid")
        assert paid.headers.get("Idempotent-Replayed") == ("true" if before else None)
    assert buyer.get(location).json() == paid.json()


def test_an_order_that_has_expired_cannot_be_paid(buyer: Buyer, offer: OnSale) -> None:
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    Order.objects.update(payable_from=datetime.fromisoformat("2020-01-01T00:00:00Z"))
    expire_unpaid()
    assert_problem(buyer.post(f"{location}pay/"), 409, "not-payable")
    assert buyer.get(location).json()["state"] == "expired"
    assert_sold()


def test_cancelling_answers_with_the_cancelled_order_however_often(buyer: Buyer, offer: OnSale) -> None:
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    for before in (False, True):
        cancelled = buyer.post(f"{location}cancel/")
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
        assert cancelled.headers.get("Idempotent-Replayed") == ("true" if before else None)
    assert buyer.get(location).json() == cancelled.json()
    assert_sold()


def test_a_paid_order_cannot_be_cancelled_nor_a_cancelled_one_paid(buyer: Buyer, offer: OnSale) -> None:
    paid, cancelled = (buyer.order(order_body(offer, a=1)).headers["Location"] for _ in range(2))
    buyer.post(f"{paid}pay/")
    buyer.post(f"{cancelled}cancel/")
    said = assert_problem(buyer.post(f"{paid}cancel/"), 409, "not-cancellable")
    assert said["detail"] == "The order is paid."
    said = assert_problem(buyer.post(f"{cancelled}pay/"), 409, "not-payable")
    assert said["detail"] == "The order is cancelled."
    assert_sold(a=1)


def test_a_rejected_order_says_why(buyer: Buyer, offer: OnSale) -> None:
    request = new_request(("a", 2), customer=buyer.customer, sale=offer.sale)
    with transaction.atomic():
        reject({request: "a: 2 wanted, 0 left"})
    said = buyer.get(f"/api/orders/{request.id}/").json()
    assert (said["state"], said["reason"], said["total"]) == ("rejected", "a: 2 wanted, 0 left", "19.80")
    assert_problem(buyer.post(f"/api/orders/{request.id}/pay/"), 409, "not-payable")
    assert_problem(buyer.post(f"/api/orders/{request.id}/cancel/"), 409, "not-cancellable")
    assert_sold()


@pytest.mark.parametrize(
    "call",
    [
        lambda who, order: who.get(f"/api/orders/{order}/"),
        lambda who, order: who.post(f"/api/orders/{order}/pay/"),
        lambda who, order: who.post(f"/api/orders/{order}/cancel/"),
    ],
    ids=["look", "pay", "cancel"],
)
def test_somebody_elses_order_is_as_if_it_were_not_there(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale, call: Callable[[APIClient, Any], Any]
) -> None:
    order = UUID(buyer.order(order_body(offer, a=1)).json()["id"])
    theirs, nobodys = (assert_problem(call(other_buyer, which), 404, "not-found") for which in (order, uuid4()))
    assert theirs == nobodys
    assert Order.objects.get().state == "pending"


# Sales


def test_sales_that_are_open_or_will_be_are_listed_for_everybody(visitor: APIClient) -> None:
    later = on_sale({"b": 1}, opens=timedelta(hours=1), closes=timedelta(hours=2))
    now = on_sale({"a": 1}, price="1.50", limit=2)
    on_sale({"c": 1}, opens=timedelta(hours=-2), closes=timedelta(hours=-1))
    listed = visitor.get("/api/sales/").json()
    assert [sale["sale"] for sale in listed] == [now.sale, later.sale]
    assert listed[0]["items"] == [{"product": now.products["a"], "sku": "a", "name": "A", "price": "1.50", "limit": 2}]
    assert visitor.get(f"/api/sales/{now.sale}/").json() == listed[0]


def test_a_buyer_can_order_from_what_the_list_says(buyer: Buyer, visitor: APIClient, offer: OnSale) -> None:
    (sale,) = visitor.get("/api/sales/").json()
    item = sale["items"][0]
    made = buyer.order({"sale": sale["sale"], "items": [{"product": item["product"], "quantity": 1}]})
    assert (made.status_code, Decimal(made.json()["total"])) == (201, Decimal(item["price"]))
    assert StockItem.objects.get(sku=item["sku"]).on_hand == 4


def test_a_sale_by_a_strategy_that_is_not_known_here_is_503_and_the_log_says_what_to_set(
    buyer: Buyer, caplog: pytest.LogCaptureFixture
) -> None:
    offer = on_sale({"a": 1})
    Sale.objects.filter(pk=offer.sale).update(strategy="etcd-lock")
    offers._remembered.clear()
    assert_problem(buyer.order(order_body(offer, a=1)), 503, "unavailable")
    assert "ETCD_URL" in caplog.text
