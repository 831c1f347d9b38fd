"""The REST API: placing, listing, paying and cancelling orders, and listing sales."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import transaction
from redis import Redis
from rest_framework.test import APIClient

from inventory.strategies import registry
from inventory.strategies.locks import stock_lock
from shop import conservation
from shop.api import throttles
from shop.models import Order, OrderItem, Sale
from shop.orders import place as placing
from shop.orders.saving import reject
from shop.sales import offers
from tests.factories import SAVING, OnSale, close_now, fast_and_slow, new_request, on_sale
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5, "b": 5}, price="9.90", limit=3)


def assert_sold(**units: int) -> None:
    figures = conservation.figures()
    assert {row.sku: row.sold for row in figures if row.sold} == units
    assert all(row.conserved for row in figures)


@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_an_order_is_201_with_its_location(buyer: Buyer, name: str) -> None:
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
            {"product": offer.products["a"], "sku": "a", "name": "A", "quantity": 2, "price": "9.90", "returned": 0},
            {"product": offer.products["b"], "sku": "b", "name": "B", "quantity": 1, "price": "9.90", "returned": 0},
        ],
        "total": "29.70",
        "currency": "EUR",
        "created_at": answer.json()["created_at"],
        "pay_by": answer.json()["pay_by"],
    }
    assert created_at == order.created_at
    assert datetime.fromisoformat(answer.json()["pay_by"]) - created_at == timedelta(seconds=settings.ORDER_TTL)
    assert buyer.get(answer.headers["Location"]).json() == answer.json()
    assert_sold(a=2, b=1)


def test_the_same_key_with_or_without_quotes_gets_the_same_answer(buyer: Buyer, offer: OnSale) -> None:
    first, again = (buyer.order(order_body(offer, a=1), key=key) for key in ("mine", '"mine"'))
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert_problem(buyer.order(order_body(offer, a=2), key="mine"), 422, "key-reused")
    assert_sold(a=1)


def test_valid_keys_and_json_content_types_are_accepted(buyer: Buyer) -> None:
    keys = ("a", "a" * 128, "0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e", "A-Z_a.z~0:9")
    kinds = ("application/json", "application/json; charset=utf-8", "Application/JSON", "application/json")
    body = json.dumps(order_body(on_sale({"a": 5}), a=1))
    for key, kind in zip(keys, kinds, strict=True):
        answer = buyer.post("/api/orders/", body, content_type=kind, headers={"Idempotency-Key": key})
        assert answer.status_code == 201
    assert set(Order.objects.values_list("key", flat=True)) == {*keys}


def test_the_accept_header_is_ignored(buyer: Buyer, settings: Any) -> None:
    settings.ORDER_RATE = 1000
    offer = on_sale({"a": 5})
    for accept in ("text/html", "application/xml", "*/*;q=0", "nonsense", ""):
        made = buyer.order(order_body(offer, a=1), headers={"Accept": accept})
        assert (made.status_code, made.headers["Content-Type"]) == (201, "application/json")
        refused = buyer.order({}, headers={"Accept": accept})
        assert_problem(refused, 400, "invalid")
        listed = buyer.get("/api/orders/", headers={"Accept": accept})
        assert (listed.status_code, listed.headers["Content-Type"]) == (200, "application/json")


def test_refusals_say_why(buyer: Buyer, offer: OnSale) -> None:
    buyer.order(order_body(offer, a=2))
    problem = assert_problem(buyer.order(order_body(offer, a=2)), 409, "over-limit")
    assert (problem["sku"], problem["limit"], problem["taken"]) == ("a", 3, 2)
    problem = assert_problem(buyer.order(order_body(on_sale({"c": 2}), c=3)), 409, "sold-out")
    assert (problem["sku"], problem["wanted"], problem["left"]) == ("c", 3, 2)
    close_now(offer)
    assert_problem(buyer.order(order_body(offer, a=1)), 409, "sale-not-open")
    assert_sold(a=2)


@pytest.mark.parametrize("strategy", ["guarded-update", "lua", "lua-queue", "segmented-redis", "group-commit"])
@pytest.mark.parametrize("stock_shown", ["hidden", "few"])
def test_a_sale_that_hides_the_number_left_does_not_tell_it_in_a_refusal(
    buyer: Buyer, stock_shown: str, strategy: str
) -> None:
    """A refused order costs nothing. If refusals told how many units are left, anybody could ask for the number."""
    offer = on_sale({"c": 30}, strategy=strategy)
    Sale.objects.filter(pk=offer.sale).update(stock_shown=stock_shown)
    for _ in range(2):  # The second refusal may come from the cache of `inventory.sold_out`.
        problem = assert_problem(buyer.order(order_body(offer, c=100)), 409, "sold-out")
        assert (problem["sku"], problem["wanted"], problem["detail"]) == ("c", 100, "c: fewer than 100 are left")
        assert "left" not in problem
        assert "30" not in str(problem)
    assert buyer.order(order_body(offer, c=30)).status_code in (201, 202)
    problem = assert_problem(buyer.order(order_body(offer, c=1)), 409, "sold-out")
    assert (problem["wanted"], problem["left"]) == (1, 0), "each sale shows that it is sold out"


def test_a_key_in_progress_is_409_with_retry_after(
    buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as running:
        running.setitem(placing._running, (buyer.customer, "mine"), uuid4())
        assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 409, "still-running")
        assert buyer.order(order_body(offer, a=1), key="another").status_code == 201
    assert buyer.order(order_body(offer, a=1), key="mine").status_code == 201
    assert_sold(a=2)


def test_a_lock_timeout_is_busy(buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = on_sale({"a": 1}, strategy="redis-lock")
    monkeypatch.setattr(registry.get("redis-lock"), "wait", 0.01)
    with stock_lock("a").hold():
        assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 503, "busy")
    assert_sold()
    assert buyer.order(order_body(offer, a=1), key="mine").status_code == 201


def test_stock_that_is_not_loaded_is_503(buyer: Buyer) -> None:
    offer = on_sale({"a": 1}, strategy="lua")
    registry.counters().unload(["a"])
    assert_problem(buyer.order(order_body(offer, a=1), key="mine"), 503, "not-loaded")
    # The refused request has loaded the stock.
    assert buyer.order(order_body(offer, a=1), key="mine").status_code == 201
    assert_sold(a=1)


def test_the_rate_limit_is_429_for_one_customer_and_second(
    buyer: Buyer, other_buyer: Buyer, in_one_second: SimpleNamespace, settings: Any
) -> None:
    offer = on_sale({"a": 100})
    settings.ORDER_RATE = rate = 3
    for _ in range(rate):
        assert buyer.order(order_body(offer, a=1)).status_code == 201
    assert assert_problem(buyer.order(order_body(offer, a=1)), 429, "too-fast")
    assert_sold(a=rate)
    assert other_buyer.order(order_body(offer, a=1)).status_code == 201
    assert buyer.get("/api/orders/").status_code == 200
    in_one_second.now += 1
    assert buyer.order(order_body(offer, a=1)).status_code == 201
    assert_sold(a=rate + 2)


def test_refused_requests_count_for_the_rate_limit(
    buyer: Buyer, offer: OnSale, in_one_second: SimpleNamespace, settings: Any
) -> None:
    settings.ORDER_RATE = 2
    assert_problem(buyer.order({}), 400, "invalid")
    assert_problem(buyer.order(order_body(offer, a=1), key=""), 400, "idempotency-key")
    assert_problem(buyer.order(order_body(offer, a=1)), 429, "too-fast")
    assert_sold()


def test_the_first_request_of_a_second_is_counted_without_redis(
    buyer: Buyer, redis: Redis, in_one_second: SimpleNamespace
) -> None:
    offer = on_sale({"a": 100})
    assert buyer.order(order_body(offer, a=1)).status_code == 201
    assert redis.keys("rate:*") == []
    assert buyer.order(order_body(offer, a=1)).status_code == 201
    (key,) = redis.keys("rate:*")
    assert redis.get(key) == b"2"
    assert redis.ttl(key) > 0


@pytest.mark.parametrize(("rate", "expected"), [(3, 3 + 2), (1, 1)])
def test_each_further_process_allows_at_most_one_request_more(
    buyer: Buyer,
    in_one_second: SimpleNamespace,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    rate: int,
    expected: int,
) -> None:
    """Three processes share a limit. A limit of one request is exact."""
    offer = on_sale({"a": 100})
    settings.ORDER_RATE = rate
    answers = []
    for _ in range(3):
        monkeypatch.setattr(throttles, "seen", throttles.Seen())
        answers += [buyer.order(order_body(offer, a=1)).status_code for _ in range(rate + 1)]
    assert (answers.count(201), answers.count(429)) == (expected, len(answers) - expected)
    assert_sold(a=expected)


def test_a_body_that_is_remembered_is_placed_and_refused_as_a_new_one(buyer: Buyer, offer: OnSale) -> None:
    body = order_body(offer, a=1)
    first, second = (buyer.order(body).json() for _ in range(2))
    assert first["id"] != second["id"]
    assert first["items"] == second["items"]
    for _ in range(2):
        assert_problem(buyer.order({**body, "items": []}), 400, "invalid")


def test_items_are_sorted_by_sku(buyer: Buyer, offer: OnSale) -> None:
    first = buyer.order(order_body(offer, b=1, a=1), key="mine")
    items = list(OrderItem.objects.order_by("-product"))
    OrderItem.objects.all().delete()
    OrderItem.objects.bulk_create(OrderItem(order=i.order, product=i.product, quantity=1, price=i.price) for i in items)
    again = buyer.order(order_body(offer, b=1, a=1), key="mine")
    for answer in (first.json(), again.json(), buyer.get("/api/orders/").json()["results"][0]):
        assert [item["sku"] for item in answer["items"]] == ["a", "b"]


def test_the_list_has_pages_of_the_orders_of_the_caller_newest_first(
    buyer: Buyer, other_buyer: Buyer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shop.api.pagination.NewestFirst.page_size", 2)
    offer = on_sale({"a": 9})
    mine = [buyer.order(order_body(offer, a=1)).json() for _ in range(5)]
    other_buyer.order(order_body(offer, a=1))
    seen, page = [], "/api/orders/"
    while page:
        answer = buyer.get(page).json()
        assert len(answer["results"]) <= 2
        seen += answer["results"]
        page = answer["next"]
    assert seen == mine[::-1]


@pytest.mark.parametrize(("action", "state"), [("pay", "paid"), ("cancel", "cancelled")])
def test_repeating_a_change_gets_the_same_answer(buyer: Buyer, offer: OnSale, action: str, state: str) -> None:
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    for replayed in (None, "true"):
        changed = buyer.post(f"{location}{action}/")
        assert (changed.status_code, changed.json()["state"]) == (200, state)
        assert changed.headers.get("Idempotent-Replayed") == replayed
        assert changed.json()["pay_by"] is None
    assert buyer.get(location).json() == buyer.get("/api/orders/").json()["results"][0] == changed.json()
    assert_sold(**({"a": 1} if state == "paid" else {}))


def test_a_paid_order_cannot_be_cancelled_nor_a_cancelled_one_paid(buyer: Buyer, offer: OnSale) -> None:
    paid, cancelled = (buyer.order(order_body(offer, a=1)).headers["Location"] for _ in range(2))
    buyer.post(f"{paid}pay/")
    buyer.post(f"{cancelled}cancel/")
    problem = assert_problem(buyer.post(f"{paid}cancel/"), 409, "not-cancellable")
    assert problem["detail"] == "The order is paid."
    problem = assert_problem(buyer.post(f"{cancelled}pay/"), 409, "not-payable")
    assert problem["detail"] == "The order is cancelled."
    assert_sold(a=1)


def test_a_rejected_order_says_why(buyer: Buyer, offer: OnSale) -> None:
    request = new_request(("a", 2), customer=buyer.customer, sale=offer.sale)
    with transaction.atomic():
        reject({request: "a: 2 wanted, 0 left"})
    order = buyer.get(f"/api/orders/{request.id}/").json()
    assert (order["state"], order["reason"], order["total"]) == ("rejected", "a: 2 wanted, 0 left", "19.80")
    assert_problem(buyer.post(f"/api/orders/{request.id}/pay/"), 409, "not-payable")
    assert_problem(buyer.post(f"/api/orders/{request.id}/cancel/"), 409, "not-cancellable")
    assert_sold()


@pytest.mark.parametrize(("method", "action"), [("get", ""), ("post", "pay/"), ("post", "cancel/")])
def test_an_order_of_another_customer_is_404(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale, method: str, action: str
) -> None:
    order = buyer.order(order_body(offer, a=1)).json()["id"]
    call = getattr(other_buyer, method)
    theirs, unknown = (
        assert_problem(call(f"/api/orders/{which}/{action}"), 404, "not-found") for which in (order, uuid4())
    )
    assert theirs == unknown
    assert Order.objects.get().state == "pending"


def test_open_and_coming_sales_are_listed(visitor: APIClient) -> None:
    later = on_sale({"b": 1}, opens=timedelta(hours=1), closes=timedelta(hours=2))
    now = on_sale({"a": 1}, price="1.50", limit=2)
    on_sale({"c": 1}, opens=timedelta(hours=-2), closes=timedelta(hours=-1))
    listed = visitor.get("/api/sales/").json()
    assert [sale["sale"] for sale in listed] == [now.sale, later.sale]
    assert listed[0]["items"] == [{"product": now.products["a"], "sku": "a", "name": "A", "price": "1.50", "limit": 2}]
    assert visitor.get(f"/api/sales/{now.sale}/").json() == listed[0]


def test_an_unknown_strategy_is_503_and_logged(buyer: Buyer, caplog: pytest.LogCaptureFixture) -> None:
    offer = on_sale({"a": 1})
    Sale.objects.filter(pk=offer.sale).update(strategy="etcd-lock")
    offers.cache.clear()
    assert_problem(buyer.order(order_body(offer, a=1)), 503, "unavailable")
    assert "ETCD_URL" in caplog.text
