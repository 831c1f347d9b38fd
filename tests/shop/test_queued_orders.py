"""Queued orders over the API, from the 202 until they are saved or rejected."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.db import IntegrityError
from django.utils import timezone
from redis import Redis, RedisError

from inventory.counters.whole import RESERVATIONS
from inventory.queue.stream import STREAM, Queue, idempotency_key
from inventory.strategies import registry
from shop import conservation
from shop.models import Allowance, Order, Product, Sale, SaleItem
from shop.orders import queued
from shop.orders.customer_changes import cancel_order, pay_order
from shop.orders.errors import StillQueued
from shop.orders.expiry import expire_unpaid
from shop.orders.place import make_request
from shop.orders.queued import save_queued
from shop.orders.saving import save
from shop.runtime.tasks import save_queued_orders
from shop.sales import lifecycle, offers
from shop.sales.preheat import CannotPreheat, preheat_sale
from shop.sold import saved
from tests.factories import OnSale, close_now, elsewhere, interleaved, on_sale, orders_in, slow
from tests.shop.conftest import Buyer, Gone, assert_conserved, assert_problem, order_body, raising

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 3, "b": 3}, strategy="lua-queue", limit=2)


def location_of(buyer: Buyer, offer: OnSale, key: str | None = None, **units: int) -> str:
    """Queue an order, and return the URL in its Location header."""
    answer = buyer.order(order_body(offer, **units), key=key)
    assert answer.status_code == 202
    return answer.headers["Location"]


def state_at(buyer: Buyer, location: str) -> str:
    return str(buyer.get(location).json()["state"])


def test_a_queued_order_is_202_and_is_saved_later(buyer: Buyer, offer: OnSale) -> None:
    answer = buyer.order(order_body(offer, a=1, b=1), key="mine")
    queued, location = answer.json(), answer.headers["Location"]
    assert (answer.status_code, location) == (202, f"/api/orders/{queued['id']}/")
    assert (queued["state"], queued["place"], queued["pay_by"]) == ("queued", 1, None)
    assert [item["sku"] for item in queued["items"]] == ["a", "b"]
    assert (buyer.get(location).json(), orders_in()) == (queued, 0)

    assert save_queued_orders() == 1
    saved = buyer.get(location).json()
    assert saved == {**queued, "state": "pending", "place": None, "pay_by": saved["pay_by"]}
    assert [(row.on_hand, row.sold, row.conserved) for row in conservation.figures()] == [(2, 1, True)] * 2


def test_a_retry_after_the_sale_finds_the_queued_order(buyer: Buyer, offer: OnSale) -> None:
    first = location_of(buyer, offer, "mine", a=1)
    close_now(offer)
    assert location_of(buyer, offer, "mine", a=1) == first


def test_a_queued_order_is_hidden_from_others(buyer: Buyer, other_buyer: Buyer, offer: OnSale) -> None:
    location = location_of(buyer, offer, a=1)
    assert_problem(other_buyer.get(location), 404, "not-found")
    assert_problem(buyer.get(f"/api/orders/{uuid4()}/"), 404, "not-found")
    assert other_buyer.order(order_body(offer, a=1)).json()["place"] == 2
    assert save_queued_orders() == 2
    assert buyer.order(order_body(offer, a=1)).json()["place"] == 1


def test_refusals_are_immediate_and_the_key_may_be_used_again(buyer: Buyer, other_buyer: Buyer, offer: OnSale) -> None:
    assert buyer.order(order_body(offer, a=2)).status_code == 202
    assert_problem(buyer.order(order_body(offer, a=1)), 409, "over-limit")
    assert_problem(other_buyer.order(order_body(offer, a=2), key="mine"), 409, "sold-out")
    assert other_buyer.order(order_body(offer, a=1), key="mine").status_code == 202
    save_queued()
    assert orders_in("pending") == 2


def test_an_order_that_postgres_refuses_is_rejected(buyer: Buyer, offer: OnSale) -> None:
    """Postgres rejects a queued order over the limit, after Redis has lost the customer's count."""
    Allowance.objects.create(sale_id=offer.sale, customer_id=buyer.customer, sku="a", taken=2)
    location = location_of(buyer, offer, "mine", a=1)
    save_queued()
    rejected = buyer.get(location).json()
    assert (rejected["state"], rejected["reason"]) == ("rejected", "a: at most 2 per customer, 2 taken already")
    assert registry.counters().left(["a"]) == {"a": 3}
    assert [(row.sold, row.conserved) for row in conservation.figures(["a"])] == [(0, True)]
    for over in (False, True):
        if over:
            close_now(offer)
        again = buyer.order(order_body(offer, a=1), key="mine")
        assert (again.status_code, again.json()) == (202, rejected)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert_problem(buyer.order(order_body(offer, a=2), key="mine"), 422, "key-reused")
    assert len(registry.queue()) == 0


def test_units_of_a_rejected_order_stay_reserved_until_its_note_is_gone(
    buyer: Buyer, offer: OnSale, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies after it has committed a rejection. The next worker releases the reserved units."""
    Allowance.objects.create(sale_id=offer.sale, customer_id=buyer.customer, sku="a", taken=2)
    buyer.order(order_body(offer, a=1), key="mine")
    with monkeypatch.context() as dying:
        dying.setattr(Queue, "finish_refused", raising(RedisError("gone")))
        with pytest.raises(RedisError):
            save_queued()
    assert orders_in("rejected") == 1
    registry.preheat("lua-queue", ["a"], saved)
    assert registry.counters().left(["a"]) == {"a": 2}
    assert save_queued() == 1
    assert registry.counters().left(["a"]) == {"a": 3}
    assert registry.queue().bought.of("a") == {(offer.sale, buyer.customer): 0}
    assert orders_in("rejected") == 1
    assert redis.exists(idempotency_key(buyer.customer, "mine")), "the key belongs to the rejected order"


def test_the_time_to_pay_starts_when_the_order_is_saved(buyer: Buyer, offer: OnSale) -> None:
    location = location_of(buyer, offer, a=1)
    saved_at = timezone.now()
    save_queued()
    order = Order.objects.get()
    assert order.created_at < saved_at <= order.payable_from
    pay_by = datetime.fromisoformat(buyer.get(location).json()["pay_by"])
    assert pay_by == order.payable_from + timedelta(seconds=settings.ORDER_TTL)
    Order.objects.update(created_at="2020-01-01T00:00Z")
    assert expire_unpaid() == 0


@pytest.mark.parametrize("first", ["queued", "saved"])
def test_of_two_sales_the_queued_order_under_a_key_is_rejected(buyer: Buyer, offer: OnSale, first: str) -> None:
    """A strategy without Redis does not see queued orders, and Redis does not see saved orders."""
    bodies = {"queued": order_body(offer, a=1), "saved": order_body(on_sale({"c": 1}), c=1)}
    answers = {which: buyer.order(bodies[which], key="mine") for which in sorted(bodies, reverse=first == "saved")}
    assert (answers["queued"].status_code, answers["saved"].status_code) == (202, 201)

    save_queued()

    queued, saved = (buyer.get(f"/api/orders/{answers[which].json()['id']}/").json() for which in bodies)
    assert (queued["state"], [item["sku"] for item in queued["items"]]) == ("rejected", ["a"])
    assert queued["reason"] == f"the key belongs to another order, order {saved['id']}"
    assert (saved["state"], [item["sku"] for item in saved["items"]]) == ("pending", ["c"])
    assert (orders_in("rejected"), orders_in("pending")) == (1, 1)
    assert registry.counters().left(["a"]) == {"a": 3}
    assert buyer.order(order_body(offer, a=2)).status_code == 202  # A rejected order does not count towards the limit.


def test_a_queued_order_of_a_deleted_product_is_found(buyer: Buyer, offer: OnSale) -> None:
    answer = buyer.order(order_body(offer, a=1), key="mine")
    SaleItem.objects.filter(product__sku="a").delete()
    Product.objects.filter(sku="a").delete()
    offers.cache.clear()
    looked = buyer.get(answer.headers["Location"])
    assert (looked.status_code, looked.json()["state"], looked.json()["items"][0]["sku"]) == (200, "queued", "a")
    assert buyer.order(order_body(offer, a=1), key="mine").json() == looked.json()
    assert_problem(buyer.order(order_body(offer, a=1), key="new"), 400, "invalid")
    assert_problem(buyer.order(order_body(offer, a=2), key="mine"), 422, "key-reused")
    save_queued()
    assert buyer.get(answer.headers["Location"]).json()["state"] == "rejected"


def replace_entry(redis: Redis, order: str, changed: dict[Any, Any]) -> None:
    """Replace the queue's only entry. The reservation of the order then names the new entry."""
    redis.delete(STREAM)
    number = redis.xadd(STREAM, changed).decode()
    note = json.loads(redis.hget(RESERVATIONS, order))
    redis.hset(RESERVATIONS, order, json.dumps({**note, "entry": number}))


ITEM = {"sku": "a", "quantity": 1, "price": "9.90", "limit": None, "name": "A"}


@pytest.mark.parametrize(
    "instead",
    [
        {"customer": [1]},
        {"key": "\0", "items": [ITEM]},  # The reservation has two items.
        {"items": []},
        {"items": [{**ITEM, "quantity": True}]},
        {"sale": "x"},
        *slow({"items": [ITEM, ITEM]}, {"sale": True}, {"key": {"a": 1}}, {"key": "\0"}, {"body_hash": None}),
        *slow(*({"items": [{**ITEM, **wrong}]} for wrong in ({"sku": True}, {"sku": 5}, {"limit": "x"}, {"name": 5}))),
    ],
    ids=repr,
)
def test_an_invalid_entry_is_rejected_and_stops_no_other(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale, redis: Redis, instead: dict[str, Any]
) -> None:
    poison = location_of(buyer, offer, "mine", a=1, b=1)
    queued = buyer.get(poison).json()
    ((_, entry),) = redis.xrange(STREAM)
    invalid = json.dumps({**json.loads(entry[b"request"]), **instead})
    replace_entry(redis, poison.split("/")[-2], {**entry, "request": invalid})
    healthy = [location_of(other_buyer, offer, b=1) for _ in range(2)]

    assert save_queued() == 3

    assert [state_at(other_buyer, location) for location in healthy] == ["pending", "pending"]
    rejected = buyer.get(poison).json()
    has_row = instead.get("key") != "\0"  # No row of Postgres can have such a key.
    shown = ("rejected", queued["items"], queued["total"]) if has_row else ("rejected", [], "0.00")
    assert (rejected["state"], rejected["items"], rejected["total"]) == shown
    again = buyer.order(order_body(offer, a=1, b=1), key="mine")
    assert (again.status_code, again.json()) == (202, rejected)
    assert (len(registry.queue()), len(registry.queue().dead_letters.newest())) == (0, 1)
    registry.refresh(["a", "b"], saved)
    assert registry.redis_stock(["a", "b"]) == {"a": (3, 0), "b": (1, 0)}
    assert_conserved()


def lose_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a worker that fails to save orders and fails to reject them."""
    with monkeypatch.context() as broken:
        for name in ("save_from_queue", "reject"):
            broken.setattr(queued, name, raising(IntegrityError("no such thing")))
        save_queued()


def test_a_key_of_an_order_without_a_row_is_kept(buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rejected order has no row in Postgres, Redis keeps its key for a day."""
    first = buyer.order(order_body(offer, a=1), key="mine").json()
    lose_queued(monkeypatch)
    assert orders_in() == 0
    again = buyer.order(order_body(offer, a=1), key="mine")
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (202, first["id"], "rejected")
    assert again.json()["reason"] == "IntegrityError: no such thing"
    other = on_sale({"c": 1}, strategy="lua-queue")
    for body in (order_body(offer, a=2), order_body(other, c=1)):
        assert_problem(buyer.order(body, key="mine"), 422, "key-reused")
    assert buyer.order(order_body(offer, a=1), key="new").status_code == 202


def test_an_order_whose_note_is_lost_is_rejected(
    buyer: Buyer, offer: OnSale, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = location_of(buyer, offer, "mine", a=1)
    redis.delete(RESERVATIONS)
    lose_queued(monkeypatch)
    assert state_at(buyer, location) == "rejected"
    assert buyer.order(order_body(offer, a=1), key="mine").json()["state"] == "rejected"


def test_an_order_queued_during_preheating_keeps_its_stock(buyer: Buyer) -> None:
    """The order enters the queue after preheating of the next sale has read the queue once."""
    offer = on_sale({"a": 1}, strategy="lua-queue")
    known = offers.read(offer.sale)
    cart = {"quantities": offer.cart(a=1), "expected_prices": offer.prices}
    request = make_request(known, customer=buyer.customer, key="late", **cart)
    Sale.objects.update(closes_at=timezone.now())
    after = on_sale({"a": 0}, strategy="segmented-lock", preheat=False)
    queue = partial(registry.get("lua-queue").place, request, save)
    with interleaved(queue, before="FOR NO KEY UPDATE.*a"), pytest.raises(CannotPreheat, match="are queued"):
        preheat_sale(after.sale)
    assert not Sale.objects.get(pk=after.sale).is_loaded
    save_queued()
    assert buyer.get(f"/api/orders/{request.id}/").json()["state"] == "pending"


def test_a_queued_order_of_a_removed_item_keeps_its_stock(buyer: Buyer) -> None:
    offer = on_sale({"a": 1}, strategy="lua-queue")
    location = location_of(buyer, offer, a=1)
    lifecycle.close(offer.sale)
    SaleItem.objects.all().delete()
    after = on_sale({"a": 0}, strategy="segmented-lock", preheat=False)
    with pytest.raises(CannotPreheat, match=f"Orders of sale {offer.sale}"):
        preheat_sale(after.sale)
    save_queued()
    assert state_at(buyer, location) == "pending"
    preheat_sale(after.sale)


@pytest.mark.parametrize("second", ["guarded-update", "segmented-lock", "unit-rows", "lua", "lua-queue"])
def test_the_next_sale_waits_for_queued_orders(buyer: Buyer, other_buyer: Buyer, second: str) -> None:
    offer = on_sale({"a": 2}, strategy="lua-queue")
    location = location_of(buyer, offer, a=2)
    lifecycle.close(offer.sale)
    after = on_sale({"a": 1}, strategy=second, preheat=False)
    for _ in range(2):
        lifecycle.advance()
        offers.cache.clear()
        assert_problem(other_buyer.order(order_body(after, a=1)), 503, "not-loaded")
    assert not Sale.objects.get(pk=after.sale).is_loaded

    save_queued()

    assert state_at(buyer, location) == "pending"
    lifecycle.advance()
    offers.cache.clear()
    assert other_buyer.order(order_body(after, a=1)).status_code == (202 if second == "lua-queue" else 201)
    assert_problem(other_buyer.order(order_body(after, a=1)), 409, "sold-out")
    assert_conserved()


@pytest.mark.parametrize("second", ["guarded-update", "segmented-lock", "unit-rows"])
def test_without_waiting_the_next_sale_sells_queued_units(
    buyer: Buyer, other_buyer: Buyer, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: without waiting for queued orders, the next sale sells their units."""
    offer = on_sale({"a": 1}, strategy="lua-queue")
    location = location_of(buyer, offer, a=1)
    lifecycle.close(offer.sale)
    monkeypatch.setattr(registry, "sales_with_queued_orders", lambda skus: set())
    after = on_sale({"a": 0}, strategy=second)
    assert other_buyer.order(order_body(after, a=1)).status_code == 201
    save_queued()
    assert state_at(buyer, location) == "rejected"


def test_an_order_of_a_deleted_sale_is_rejected_without_a_row(buyer: Buyer, other_buyer: Buyer, offer: OnSale) -> None:
    answer = buyer.order(order_body(offer, a=1))
    SaleItem.objects.all().delete()
    Sale.objects.all().delete()
    save_queued()
    assert orders_in() == 0
    rejected = buyer.get(answer.headers["Location"]).json()
    assert rejected.items() >= {
        "id": answer.json()["id"], "sale": offer.sale, "state": "rejected", "items": [], "total": "0.00",
        "pay_by": None, "reason": f"Sale {offer.sale} does not take orders now.",
    }.items()  # fmt: skip
    placed, shown = (datetime.fromisoformat(each["created_at"]) for each in (answer.json(), rejected))
    assert abs(placed - shown) < timedelta(seconds=1)
    assert_problem(other_buyer.get(answer.headers["Location"]), 404, "not-found")
    for change, problem in (("pay", "not-payable"), ("cancel", "not-cancellable")):
        assert_problem(buyer.post(f"{answer.headers['Location']}{change}/"), 409, problem)
        assert_problem(other_buyer.post(f"{answer.headers['Location']}{change}/"), 404, "not-found")


def test_a_change_of_a_queued_order_loads_no_offer(
    buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change holds a connection. A thread that loads the offer may be waiting for one."""
    order = UUID(buyer.order(order_body(offer, a=1)).json()["id"])
    monkeypatch.setattr(offers, "get", raising(AssertionError("loads an offer")))
    for change in (pay_order, cancel_order):
        with pytest.raises(StillQueued):
            change(order, customer=buyer.customer)


@pytest.mark.parametrize("what", ["pay", "cancel"])
def test_a_queued_order_can_be_changed_once_it_is_saved(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale, what: str
) -> None:
    location = location_of(buyer, offer, a=1)
    answer = buyer.post(f"{location}{what}/")
    assert_problem(answer, 409, "still-queued")
    assert answer.headers["Retry-After"] == "1"
    assert_problem(other_buyer.post(f"{location}{what}/"), 404, "not-found")
    save_queued()
    assert buyer.post(f"{location}{what}/").status_code == 200


@pytest.mark.parametrize("what", ["pay", "cancel"])
def test_an_order_saved_between_two_reads_is_found_and_can_be_changed(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    location = location_of(buyer, offer, a=1)
    waiting = registry.queued_order
    monkeypatch.setattr(registry, "queued_order", lambda order: (elsewhere(save_queued), waiting(order))[1])
    assert_problem(other_buyer.post(f"{location}{what}/"), 404, "not-found")
    again = location_of(buyer, offer, a=1)
    assert buyer.post(f"{again}{what}/").status_code == 200
    assert state_at(buyer, location_of(buyer, offer, b=1)) == "pending"


@pytest.mark.parametrize("what", ["pay", "cancel"])
def test_changing_a_queued_order_changes_the_order_with_its_key(
    buyer: Buyer, offer: OnSale, redis: Redis, what: str
) -> None:
    first = buyer.order(order_body(offer, a=1), key="mine").json()
    save_queued()
    redis.delete(idempotency_key(buyer.customer, "mine"))
    location = location_of(buyer, offer, "mine", a=1)
    save_queued()
    assert (buyer.get(location).json()["id"], orders_in()) == (first["id"], 1), "Redis has lost the key"
    changed = buyer.post(f"{location}{what}/")
    assert (changed.status_code, changed.json()["id"]) == (200, first["id"])
    left = 3 if what == "cancel" else 2
    assert [(row.on_hand, row.conserved) for row in conservation.figures(["a"])] == [(left, True)]
    assert registry.counters().left(["a"]) == {"a": left}
    assert [allowance.taken for allowance in Allowance.objects.all()] == [3 - left]
    again = buyer.post(f"/api/orders/{first['id']}/{what}/")
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")


def test_without_redis_queueing_is_unavailable(buyer: Buyer, offer: OnSale, redis_gone: Gone) -> None:
    location = location_of(buyer, offer, a=1)
    with redis_gone():
        assert_problem(buyer.order(order_body(offer, a=1)), 503, "unavailable")
        assert_problem(buyer.get(location), 503, "unavailable")
