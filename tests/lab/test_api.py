"""The lab's endpoints sell only the lab's own stock, in no list of sales. Only staff set it. They need LAB_ENABLED."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from redis import Redis
from rest_framework.test import APIClient

from inventory import observing
from inventory.audit import Figures
from inventory.models import StockItem
from lab.checkers import ledger
from lab.ladder.stock import RUNGS
from lab.ladder.stock.rung import stock_lock
from lab.models import RungOrder, RungStock
from loadtest.outcome import close_sale
from loadtest.preparation import prepare
from shop.models import Order, Sale
from shop.overview import document
from tests.factories import OnSale, new_customer, new_request, on_sale
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def staff(db: None, redis: Redis) -> Buyer:
    """A customer whose token marks them as staff."""
    member = Buyer(new_customer())
    member.token["is_staff"] = True
    member.defaults["HTTP_AUTHORIZATION"] = f"Bearer {member.token}"
    return member


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5})


def order(buyer: Buyer, rung: str, body: Any, key: str = "mine") -> Any:
    return buyer.post(f"/lab/rungs/{rung}/orders/", body, format="json", headers={"Idempotency-Key": key})


def put(client: APIClient, sku: str, body: Any) -> Any:
    return client.put(f"/lab/stock/{sku}/", body, format="json")


@pytest.mark.parametrize("rung", ["subtract-in-sql", "redis-taken-then-the-process-dies"])
def test_a_rung_sells_from_the_labs_tables(buyer: Buyer, offer: OnSale, rung: str) -> None:
    ledger.stock_up("a", 2)
    answer = order(buyer, rung, order_body(offer, a=2))
    assert (answer.status_code, answer.json()["rung"]) == (201, rung)
    assert str(RungOrder.objects.get().order) == answer.json()["id"]
    assert ledger.figures("a") == Figures("a", 2, 0, 2)
    problem = assert_problem(order(buyer, rung, order_body(offer, a=1)), 409, "sold-out")
    assert problem["left"] == 0
    assert not Order.objects.exists()
    assert StockItem.objects.get().on_hand == 5


@pytest.mark.parametrize("rung", RUNGS)
def test_each_rung_sells_while_orders_are_measured(
    buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch, rung: str
) -> None:
    """Metrics and traces observe commits, which Django refuses without autocommit."""
    monkeypatch.setattr(observing, "_observers", (observing.Observer(),))
    ledger.stock_up("a", 4)
    assert order(buyer, rung, order_body(offer, a=1)).status_code == 201


def test_a_held_lock_is_answered_with_busy(buyer: Buyer, offer: OnSale, settings: Any) -> None:
    settings.STOCK_LOCK_WAIT = 0.01
    ledger.stock_up("a", 1)
    with stock_lock("a").hold():
        assert_problem(order(buyer, "exception-leaves-the-lock", order_body(offer, a=1)), 503, "busy")
    assert order(buyer, "exception-leaves-the-lock", order_body(offer, a=1)).status_code == 201


@pytest.mark.parametrize("rung", ["no-such-rung", "redis-lock", "lua"])
def test_only_a_flawed_rung_sells_here(buyer: Buyer, offer: OnSale, rung: str) -> None:
    ledger.stock_up("a", 2)
    problem = assert_problem(order(buyer, rung, order_body(offer, a=1)), 404, "not-found")
    assert all(name in problem["detail"] for name in RUNGS)
    assert ledger.figures("a") == Figures("a", 2, 2, 0)


def test_a_sku_without_stock_in_the_lab_or_too_long_is_not_found(staff: Buyer, buyer: Buyer, offer: OnSale) -> None:
    problem = assert_problem(order(buyer, next(iter(RUNGS)), order_body(offer, a=1)), 404, "not-found")
    assert problem["detail"] == "The lab has no stock of a."
    assert_problem(buyer.get("/lab/stock/a/"), 404, "not-found")
    assert put(staff, "a" * 64, {"received": 1}).status_code == 200
    assert_problem(put(staff, "a" * 65, {"received": 1}), 404, "not-found")
    assert_problem(staff.get(f"/lab/stock/{'a' * 65}/"), 404, "not-found")
    assert RungStock.objects.count() == 1


def test_bad_input_is_refused_as_in_the_shop(buyer: Buyer, visitor: APIClient, offer: OnSale) -> None:
    rung = next(iter(RUNGS))
    ledger.stock_up("a", 2)
    body = order_body(offer, a=1)
    for sale in ("1", offer.sale + 1):
        assert_problem(order(buyer, rung, {**body, "sale": sale}), 400, "invalid", pointers=["#/sale"])
    items = [{**body["items"][0], "product": 2**62}]
    assert_problem(order(buyer, rung, {**body, "items": items}), 400, "invalid")
    assert_problem(order(buyer, rung, body, key=""), 400, "idempotency-key")
    assert_problem(order(visitor, rung, body), 401, "unauthenticated")  # type: ignore[arg-type]
    assert ledger.figures("a") == Figures("a", 2, 2, 0)


def test_only_staff_set_the_stock_and_every_user_reads_it(staff: Buyer, buyer: Buyer, visitor: APIClient) -> None:
    nothing_yet = {"sold": 0, "oversold": 0, "conserved": True, "unowned": 0, "repeated": 0}
    expected = {"sku": "a", "received": 3, "on_hand": 3, **nothing_yet}
    answer = put(staff, "a", {"received": 3})
    assert (answer.status_code, answer.json()) == (200, expected)
    assert_problem(put(buyer, "a", {"received": 4}), 403, "forbidden")
    assert_problem(put(visitor, "a", {"received": 4}), 401, "unauthenticated")
    assert buyer.get("/lab/stock/a/").json() == expected


def test_the_figures_show_unowned_units_and_repeated_orders(buyer: Buyer, redis: Redis) -> None:
    ledger.stock_up("a", 5)
    redis.decr("lab:{redis-taken-then-the-process-dies}:a")
    request = new_request(("a", 1))
    for _ in range(2):
        RUNGS["duplicate-click"].place(request, ledger.save)
    redis.decrby("lab:{redis-taken-then-the-process-dies}:a", 2)
    figures = buyer.get("/lab/stock/a/").json()
    assert (figures["on_hand"], figures["sold"], figures["conserved"]) == (3, 2, True)
    assert (figures["unowned"], figures["repeated"]) == (1, 1)


def test_without_redis_the_stock_is_unavailable(staff: Buyer, buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.stock_up("a", 1)
    monkeypatch.setattr("lab.ladder.stock.counter_rung.get_redis_connection", lambda _: Redis(port=1, retry=None))
    assert_problem(buyer.get("/lab/stock/a/"), 503, "unavailable")
    assert_problem(put(staff, "a", {"received": 3}), 503, "unavailable")


INVALID = [{"received": units} for units in ("1", 1.0, True, None, -1, 1_000_001, 2**63, [], {})]


def test_stock_must_be_a_number_of_units(staff: Buyer) -> None:
    for body in (*INVALID, {}, [], "text", None):
        pointers = {"pointers": ["#/received"]} if body in INVALID else {}
        assert_problem(put(staff, "a", body), 400, "invalid", **pointers)
    assert not RungStock.objects.exists()


def test_users_may_list_the_rungs_which_are_not_in_the_shops_schema(buyer: Buyer, visitor: APIClient) -> None:
    assert buyer.get("/lab/rungs/").json() == {"rungs": list(RUNGS)}
    assert_problem(visitor.get("/lab/rungs/"), 401, "unauthenticated")
    assert "/lab/" not in visitor.get("/api/schema/").content.decode()


LISTS = ("/admin/shop/sale/", "/admin/", "/admin/live/", "/", "/sales/", "/api/sales/")
STOREFRONT = {"/", "/sales/"}
"""Lists that show no load test."""


def test_the_sale_of_a_flawed_rung_is_unlisted(redis: Redis, live_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: lists show the sale of a strategy, and the sale of a rung that has a strategy by mistake."""
    operator = Client()
    operator.force_login(User.objects.create_superuser("root"))

    def lists_of(**seller: str) -> list[str]:
        """Sell a unit in a burst. Return the lists that show the sale before the burst ends."""
        customers = [new_customer()]
        burst = prepare(**{"strategy": "lua", **seller}, units=5, customers=customers, limit=1, host=live_server.url)  # type: ignore[arg-type]
        body = burst.body(burst.cart())
        sent = Buyer(customers[0]).post(burst.path, body, format="json", headers={"Idempotency-Key": "mine"})
        assert sent.status_code == 201
        name = Sale.objects.get(pk=burst.sale).name.partition(",")[0]
        monkeypatch.setattr(document, "shared", document.SharedFigures())
        try:
            return [path for path in LISTS if name in operator.get(path).content.decode()]
        finally:
            close_sale(burst)

    assert lists_of(rung="compute-and-overwrite") == []
    assert RungOrder.objects.count() == 1
    assert not Order.objects.exists()
    assert lists_of(strategy="lua") == [path for path in LISTS if path not in STOREFRONT]
    monkeypatch.setattr("loadtest.preparation.NO_STRATEGY", "lua")
    assert lists_of(rung="compute-and-overwrite") == ["/admin/shop/sale/"]


def test_without_lab_enabled_there_is_no_lab(lab_disabled: None, staff: Buyer, offer: OnSale) -> None:
    ledger.stock_up("a", 4 * len(RUNGS))
    orders = [order(staff, rung, order_body(offer, a=1)) for rung in RUNGS]
    others = [staff.get("/lab/rungs/"), staff.get("/lab/stock/a/"), put(staff, "a", {"received": 3})]
    for answer in (*orders, *others):
        assert_problem(answer, 404, "not-found")
    assert not RungOrder.objects.exists()
    assert staff.get("/api/sales/").status_code == 200
