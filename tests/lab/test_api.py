"""The lab's endpoints: a rung sells from the lab's own tables, only staff stock them, and only while LAB_ENABLED."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from rest_framework.test import APIClient

from inventory.audit import Figures
from inventory.models import StockItem
from lab import ledger
from lab.ladder.stock import RUNGS
from lab.ladder.stock.rung import stock_lock
from lab.models import RungOrder, RungStock
from shop.models import Order
from tests.factories import OnSale, new_customer, new_request, on_sale
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def staff(db: None, redis: Redis) -> Buyer:
    """A buyer whose token says that they belong to the staff."""
    member = Buyer(new_customer())
    member.token["is_staff"] = True
    member.defaults["HTTP_AUTHORIZATION"] = f"Bearer {member.token}"
    return member


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5})


def order(buyer: Buyer, rung: str, body: Any, key: str = "mine") -> Any:
    return buyer.post(f"/lab/rungs/{rung}/orders/", body, format="json", headers={"Idempotency-Key": key})


# Orders


SELLS_MORE = {"refusal-swallowed", "lua-off-by-one"}


@pytest.mark.parametrize("rung", [slug for slug in RUNGS if slug not in {"segmented-keys", *SELLS_MORE}])
def test_the_body_of_a_shops_order_is_sold_by_the_rung_from_the_labs_tables(
    buyer: Buyer, offer: OnSale, rung: str
) -> None:
    ledger.stock_up("a", 2)
    answer = order(buyer, rung, order_body(offer, a=2))
    assert (answer.status_code, answer.json()["rung"]) == (201, rung)
    assert str(RungOrder.objects.get().order) == answer.json()["id"]
    assert ledger.figures("a") == Figures("a", 2, 0, 2)
    said = assert_problem(order(buyer, rung, order_body(offer, a=1)), 409, "sold-out")
    assert said["left"] == 0
    assert not Order.objects.exists()
    assert StockItem.objects.get().on_hand == 5


@pytest.mark.parametrize("rung", sorted(SELLS_MORE))
def test_some_rungs_answer_201_to_whoever_comes_after_the_last_unit(buyer: Buyer, offer: OnSale, rung: str) -> None:
    ledger.stock_up("a", 2)
    assert order(buyer, rung, order_body(offer, a=2)).status_code == 201
    assert order(buyer, rung, order_body(offer, a=1)).status_code == 201
    assert ledger.figures("a").oversold == 1


def test_a_cart_that_no_segment_covers_is_refused_with_what_the_segment_has(buyer: Buyer, offer: OnSale) -> None:
    ledger.stock_up("a", 4)
    said = assert_problem(order(buyer, "segmented-keys", order_body(offer, a=2)), 409, "sold-out")
    assert (said["wanted"], said["left"]) == (2, 1)
    assert ledger.figures("a") == Figures("a", 4, 4, 0)


def test_a_lock_that_is_left_behind_is_answered_with_try_again(buyer: Buyer, offer: OnSale, settings: Any) -> None:
    settings.STOCK_LOCK_WAIT = 0.01
    ledger.stock_up("a", 1)
    with stock_lock("a").hold():
        assert_problem(order(buyer, "exception-leaves-the-lock", order_body(offer, a=1)), 503, "busy")
    assert order(buyer, "exception-leaves-the-lock", order_body(offer, a=1)).status_code == 201


def test_the_same_request_twice_is_two_orders_of_one_key(buyer: Buyer, offer: OnSale) -> None:
    ledger.stock_up("a", 2)
    ids = [order(buyer, "duplicate-click", order_body(offer, a=1)).json()["id"] for _ in range(2)]
    assert len(set(ids)) == 2
    assert ledger.repeated("a") == 1


@pytest.mark.parametrize(
    ("rung", "why"), [("no-such-rung", "no such rung"), ("redis-lock", "not a rung"), ("lua", "not a rung")]
)
def test_only_a_rung_sells_here(buyer: Buyer, offer: OnSale, rung: str, why: str) -> None:
    ledger.stock_up("a", 2)
    said = assert_problem(order(buyer, rung, order_body(offer, a=1)), 404, "not-found")
    assert all(name in said["detail"] for name in RUNGS)
    assert ledger.figures("a") == Figures("a", 2, 2, 0)


def test_what_the_lab_has_no_stock_of_is_not_found(buyer: Buyer, offer: OnSale) -> None:
    said = assert_problem(order(buyer, next(iter(RUNGS)), order_body(offer, a=1)), 404, "not-found")
    assert said["detail"] == "The lab has no stock of a."


def test_bad_input_is_refused_as_in_the_shop(buyer: Buyer, visitor: APIClient, offer: OnSale) -> None:
    rung = next(iter(RUNGS))
    ledger.stock_up("a", 2)
    body = order_body(offer, a=1)
    assert_problem(order(buyer, rung, {**body, "sale": "1"}), 400, "invalid", pointers=["#/sale"])
    assert_problem(order(buyer, rung, {**body, "sale": offer.sale + 1}), 400, "invalid", pointers=["#/sale"])
    assert_problem(order(buyer, rung, {**body, "items": [{"product": 2**62, "quantity": 1}]}), 400, "invalid")
    assert_problem(order(buyer, rung, body, key=""), 400, "idempotency-key")
    assert_problem(order(visitor, rung, body), 401, "unauthenticated")  # type: ignore[arg-type]
    assert ledger.figures("a") == Figures("a", 2, 2, 0)


# Stock


def put(client: APIClient, sku: str, body: Any) -> Any:
    return client.put(f"/lab/stock/{sku}/", body, format="json")


def test_staff_stock_up_and_everybody_may_look(staff: Buyer, buyer: Buyer) -> None:
    nothing_yet = {"sold": 0, "oversold": 0, "conserved": True, "unowned": 0, "repeated": 0}
    expected = {"sku": "a", "received": 3, "on_hand": 3, **nothing_yet}
    answer = put(staff, "a", {"received": 3})
    assert (answer.status_code, answer.json()) == (200, expected)
    assert buyer.get("/lab/stock/a/").json() == expected


def test_what_went_wrong_can_be_seen(buyer: Buyer) -> None:
    ledger.stock_up("a", 1)
    ledger.save([])
    RungStock.objects.update(on_hand=-1)
    RungOrder.objects.create(order="0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e", customer=1, key="x", sku="a", quantity=2)
    assert buyer.get("/lab/stock/a/").json() == {
        "sku": "a",
        "received": 1,
        "on_hand": -1,
        "sold": 2,
        "oversold": 1,
        "conserved": False,
        "unowned": 0,
        "repeated": 0,
    }


def test_what_only_redis_and_the_keys_show_can_be_seen_too(buyer: Buyer, redis: Redis) -> None:
    """A unit that a dead process took from the counter, and an order that came twice: the tables add up."""
    ledger.stock_up("a", 5)
    redis.decr("lab:{redis-taken-then-the-process-dies}:a")
    request = new_request(("a", 1))
    for _ in range(2):
        RUNGS["duplicate-click"].place(request, ledger.save)
    redis.decrby("lab:{redis-taken-then-the-process-dies}:a", 2)
    said = buyer.get("/lab/stock/a/").json()
    assert (said["on_hand"], said["sold"], said["conserved"]) == (3, 2, True)
    assert (said["unowned"], said["repeated"]) == (1, 1)


def test_without_redis_the_stock_is_unavailable(
    staff: Buyer, buyer: Buyer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.stock_up("a", 1)
    monkeypatch.setattr("lab.ladder.stock.counter_rung.get_redis_connection", lambda _: Redis(port=1))
    assert_problem(buyer.get("/lab/stock/a/"), 503, "unavailable")
    assert_problem(put(staff, "a", {"received": 3}), 503, "unavailable")


def test_a_buyer_cannot_stock_up(buyer: Buyer, visitor: APIClient) -> None:
    ledger.stock_up("a", 1)
    assert_problem(put(buyer, "a", {"received": 3}), 403, "forbidden")
    assert_problem(put(visitor, "a", {"received": 3}), 401, "unauthenticated")
    assert ledger.figures("a") == Figures("a", 1, 1, 0)


@pytest.mark.parametrize("received", ["1", 1.0, True, None, -1, 1_000_001, 2**63, [], {}], ids=repr)
def test_stock_is_a_number_of_units(staff: Buyer, received: Any) -> None:
    assert_problem(put(staff, "a", {"received": received}), 400, "invalid", pointers=["#/received"])
    assert not RungStock.objects.exists()


@pytest.mark.parametrize("body", [{}, [], "text", None], ids=repr)
def test_stock_of_another_form_is_refused(staff: Buyer, body: Any) -> None:
    assert_problem(put(staff, "a", body), 400, "invalid")
    assert not RungStock.objects.exists()


def test_a_sku_that_is_too_long_is_refused(staff: Buyer) -> None:
    assert put(staff, "a" * 64, {"received": 1}).status_code == 200
    assert_problem(put(staff, "a" * 65, {"received": 1}), 404, "not-found")
    assert_problem(staff.get(f"/lab/stock/{'a' * 65}/"), 404, "not-found")
    assert RungStock.objects.count() == 1


def test_the_rungs_are_listed(buyer: Buyer, visitor: APIClient) -> None:
    assert buyer.get("/lab/rungs/").json() == {"rungs": list(RUNGS)}
    assert_problem(visitor.get("/lab/rungs/"), 401, "unauthenticated")


# LAB_ENABLED


def addresses(offer: OnSale) -> list[tuple[str, str, Any]]:
    orders = [("post", f"/lab/rungs/{rung}/orders/", order_body(offer, a=1)) for rung in RUNGS]
    return [
        *orders,
        ("get", "/lab/rungs/", None),
        ("get", "/lab/stock/a/", None),
        ("put", "/lab/stock/a/", {"received": 3}),
    ]


def test_without_lab_enabled_there_is_no_lab(lab_disabled: None, staff: Buyer, offer: OnSale) -> None:
    ledger.stock_up("a", 1)
    for method, path, body in addresses(offer):
        answer = getattr(staff, method)(path, body, format="json", headers={"Idempotency-Key": "mine"})
        assert_problem(answer, 404, "not-found")
    assert ledger.figures("a") == Figures("a", 1, 1, 0)
    assert staff.get("/api/sales/").status_code == 200


def test_with_lab_enabled_there_is(staff: Buyer, offer: OnSale, settings: Any) -> None:
    """The negative control."""
    settings.ORDER_RATE = 1_000_000
    ledger.stock_up("a", 4 * len(RUNGS))
    for method, path, body in addresses(offer):
        answer = getattr(staff, method)(path, body, format="json", headers={"Idempotency-Key": "mine"})
        assert answer.status_code in (200, 201)


def test_the_lab_is_no_part_of_the_shops_schema(visitor: APIClient) -> None:
    assert "/lab/" not in visitor.get("/api/schema/").content.decode()
