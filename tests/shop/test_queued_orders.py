"""An order that is queued: what its customer is told, from 202 to what has become of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import orjson
import pytest
from django.conf import settings
from django.db import IntegrityError
from django.utils import timezone
from redis import Redis, RedisError

from inventory.counters.whole import NOTES
from inventory.models import StockItem
from inventory.queue.stream import STREAM, Queue, key_key
from inventory.strategies import registry
from shop import conservation
from shop.models import Allowance, Order, Product, Sale, SaleItem
from shop.orders import queued
from shop.orders.expiry import expire_unpaid
from shop.orders.place import hash_of_body, make_request
from shop.orders.queued import save_queued
from shop.orders.saving import save, saved
from shop.runtime.tasks import save_queued_orders
from shop.sales import lifecycle, offers
from tests.factories import OnSale, close_now, elsewhere, interleaved, on_sale, orders_in
from tests.shop.conftest import Buyer, Gone, assert_problem, order_body

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 3, "b": 3}, strategy="lua-queue", limit=2)


def test_an_order_is_202_with_its_location_and_then_an_order(buyer: Buyer, offer: OnSale) -> None:
    answer = buyer.order(order_body(offer, a=1, b=1), key="mine")
    assert answer.status_code == 202
    queued = answer.json()
    assert (queued["state"], [item["sku"] for item in queued["items"]]) == ("queued", ["a", "b"])
    assert answer.headers["Location"] == f"/api/orders/{queued['id']}/"

    looked = buyer.get(answer.headers["Location"])
    assert (looked.status_code, looked.json()) == (200, queued)
    assert queued["place"] == 1
    assert orders_in() == 0

    assert save_queued_orders() == 1
    saved = buyer.get(answer.headers["Location"]).json()
    assert saved == {**queued, "state": "pending", "place": None, "pay_by": saved["pay_by"]}
    assert [(row.on_hand, row.sold, row.conserved) for row in conservation.figures()] == [(2, 1, True)] * 2


def test_a_retry_is_the_same_order_before_and_after_it_is_saved(buyer: Buyer, offer: OnSale) -> None:
    first = buyer.order(order_body(offer, a=1), key="mine")
    again = buyer.order(order_body(offer, a=1), key="mine")
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert again.headers["Idempotent-Replayed"] == "true"
    assert_problem(buyer.order(order_body(offer, a=2), key="mine"), 422, "key-reused")
    save_queued()
    after = buyer.order(order_body(offer, a=1), key="mine")
    assert (after.status_code, after.json()["id"]) == (201, first.json()["id"])
    assert_problem(buyer.order(order_body(offer, a=2), key="mine"), 422, "key-reused")
    assert orders_in() == 1


def test_a_retry_after_the_sale_finds_what_is_queued(buyer: Buyer, offer: OnSale) -> None:
    first = buyer.order(order_body(offer, a=1), key="mine")
    close_now(offer)
    again = buyer.order(order_body(offer, a=1), key="mine")
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])


def test_who_leaves_the_queue_between_the_two_looks_is_found(
    buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = buyer.order(order_body(offer, a=1), key="mine").headers["Location"]
    waiting = registry.waiting
    monkeypatch.setattr(registry, "waiting", lambda order: (save_queued(), waiting(order))[1])
    assert buyer.get(location).json()["state"] == "pending"
    assert Order.objects.filter(pk=location.split("/")[-2]).exists()


def test_nobody_sees_what_somebody_else_has_queued(buyer: Buyer, other_buyer: Buyer, offer: OnSale) -> None:
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    assert_problem(other_buyer.get(location), 404, "not-found")
    assert_problem(buyer.get(f"/api/orders/{uuid4()}/"), 404, "not-found")


def test_refusals_are_answered_at_once_and_a_later_try_is_a_new_one(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale
) -> None:
    assert buyer.order(order_body(offer, a=2)).status_code == 202
    assert_problem(buyer.order(order_body(offer, a=1)), 409, "over-limit")
    assert_problem(other_buyer.order(order_body(offer, a=2), key="mine"), 409, "sold-out")
    assert other_buyer.order(order_body(offer, a=1), key="mine").status_code == 202
    save_queued()
    assert orders_in("pending") == 2


def test_what_postgres_refuses_is_rejected_with_its_reason(buyer: Buyer, offer: OnSale) -> None:
    """Redis has forgotten what the customer has; the tables have not."""
    Allowance.objects.create(sale_id=offer.sale, customer_id=buyer.customer, sku="a", taken=2)
    answer = buyer.order(order_body(offer, a=1), key="mine")
    assert answer.status_code == 202
    save_queued()
    rejected = buyer.get(answer.headers["Location"]).json()
    assert (rejected["state"], rejected["reason"]) == ("rejected", "a: at most 2 per customer, 2 taken already")
    assert registry.counters().left(["a"]) == {"a": 3}
    assert [(row.sold, row.conserved) for row in conservation.figures(["a"])] == [(0, True)]
    for over in (False, True):
        if over:
            close_now(offer)
        again = buyer.order(order_body(offer, a=1), key="mine")
        assert (again.status_code, again.json()) == (202, rejected), "201 is for who has bought something"
        assert again.headers["Idempotent-Replayed"] == "true"
        assert_problem(buyer.order(order_body(offer, a=2), key="mine"), 422, "key-reused")
    assert len(registry.queue()) == 0


def test_who_comes_later_is_told_a_later_place(buyer: Buyer, other_buyer: Buyer, offer: OnSale) -> None:
    assert buyer.order(order_body(offer, a=1)).json()["place"] == 1
    assert other_buyer.order(order_body(offer, a=1)).json()["place"] == 2
    assert save_queued_orders() == 2
    assert buyer.order(order_body(offer, a=1)).json()["place"] == 1


def test_units_of_an_order_that_is_rejected_and_still_noted_are_not_sold(
    buyer: Buyer, offer: OnSale, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has died between its commit and Redis, in which the units are reserved until the next takes over."""
    Allowance.objects.create(sale_id=offer.sale, customer_id=buyer.customer, sku="a", taken=2)
    buyer.order(order_body(offer, a=1), key="mine")
    with monkeypatch.context() as dying:
        dying.setattr(Queue, "back", lambda *rest, **more: (_ for _ in ()).throw(RedisError("gone")))
        with pytest.raises(RedisError):
            save_queued()
    assert orders_in("rejected") == 1
    registry.preheat("lua-queue", ["a"], saved)
    assert registry.counters().left(["a"]) == {"a": 2}
    assert save_queued() == 1
    assert registry.counters().left(["a"]) == {"a": 3}
    assert registry.queue().bought("a") == {(offer.sale, buyer.customer): 0}
    assert orders_in("rejected") == 1
    assert redis.exists(key_key(buyer.customer, "mine")), "the key stands for what is rejected"


def test_an_order_can_be_paid_for_as_long_when_it_was_queued_for_long(buyer: Buyer, offer: OnSale) -> None:
    answer = buyer.order(order_body(offer, a=1))
    assert answer.json()["pay_by"] is None
    assert buyer.get(answer.headers["Location"]).json()["pay_by"] is None
    saved_at = timezone.now()
    save_queued()
    order = Order.objects.get()
    assert order.created_at < saved_at <= order.payable_from
    pay_by = datetime.fromisoformat(buyer.get(answer.headers["Location"]).json()["pay_by"])
    assert pay_by == order.payable_from + timedelta(seconds=settings.ORDER_TTL)
    Order.objects.update(created_at="2020-01-01T00:00Z")
    assert expire_unpaid() == 0


def test_an_order_that_was_queued_in_time_counts_when_the_sale_has_ended_meanwhile(buyer: Buyer, offer: OnSale) -> None:
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    lifecycle.close(offer.sale)
    offers._remembered.clear()
    assert_problem(buyer.order(order_body(offer, a=1)), 409, "sale-not-open")
    save_queued()
    assert buyer.get(location).json()["state"] == "pending"
    assert registry.counters().left(["a"]) == {"a": None}


@pytest.mark.parametrize("first", ["queued", "saved"])
def test_of_two_orders_of_two_sales_under_one_key_the_one_that_is_queued_is_rejected(
    buyer: Buyer, offer: OnSale, first: str
) -> None:
    """Who sells without Redis does not know what is queued there, nor Redis what is saved."""
    other = on_sale({"c": 1})
    answers = {}
    for which in ("queued", "saved") if first == "queued" else ("saved", "queued"):
        body = order_body(offer, a=1) if which == "queued" else order_body(other, c=1)
        answers[which] = buyer.order(body, key="mine")
    assert (answers["queued"].status_code, answers["saved"].status_code) == (202, 201)

    save_queued()

    queued, saved = (buyer.get(f"/api/orders/{answers[which].json()['id']}/").json() for which in ("queued", "saved"))
    assert (queued["state"], [item["sku"] for item in queued["items"]]) == ("rejected", ["a"])
    assert queued["reason"] == f"the key belongs to another order, order {saved['id']}"
    assert (saved["state"], [item["sku"] for item in saved["items"]]) == ("pending", ["c"])
    assert (orders_in("rejected"), orders_in("pending")) == (1, 1)
    assert registry.counters().left(["a"]) == {"a": 3}
    assert buyer.order(order_body(offer, a=2)).status_code == 202  # what was rejected counts for no limit


def test_a_key_that_redis_has_forgotten_stands_for_the_order_that_has_it(
    buyer: Buyer, offer: OnSale, redis: Redis
) -> None:
    first = buyer.order(order_body(offer, a=1), key="mine").json()
    save_queued()
    redis.delete(key_key(buyer.customer, "mine"))
    answer = buyer.order(order_body(offer, a=1), key="mine")
    assert answer.status_code == 202
    save_queued()
    assert buyer.get(answer.headers["Location"]).json()["id"] == first["id"]
    assert orders_in() == 1


def test_a_retry_after_the_product_has_left_the_sale_finds_what_is_queued(buyer: Buyer, offer: OnSale) -> None:
    first = buyer.order(order_body(offer, a=1), key="mine")
    SaleItem.objects.filter(product__sku="a").delete()
    offers._remembered.clear()
    again = buyer.order(order_body(offer, a=1), key="mine")
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert_problem(buyer.order(order_body(offer, a=1), key="new"), 400, "invalid")
    assert_problem(buyer.order(order_body(offer, a=2), key="mine"), 422, "key-reused")


def test_an_order_of_a_product_that_is_deleted_while_it_is_queued_is_found(buyer: Buyer, offer: OnSale) -> None:
    answer = buyer.order(order_body(offer, a=1), key="mine")
    SaleItem.objects.filter(product__sku="a").delete()
    Product.objects.filter(sku="a").delete()
    offers._remembered.clear()
    looked = buyer.get(answer.headers["Location"])
    assert (looked.status_code, looked.json()["state"], looked.json()["items"][0]["sku"]) == (200, "queued", "a")
    assert buyer.order(order_body(offer, a=1), key="mine").json() == looked.json()
    save_queued()
    assert buyer.get(answer.headers["Location"]).json()["state"] == "rejected"


ONE_ITEM = [{"sku": "a", "quantity": 1, "price": "9.90", "limit": None}]


@pytest.mark.parametrize(
    "instead",
    [
        pytest.param({"customer": [1]}, id="a customer that is none"),
        pytest.param({"key": "\0", "items": ONE_ITEM}, id="fewer items than are noted, too"),
        pytest.param({"items": []}, id="no items"),
        pytest.param({"items": [*ONE_ITEM, *ONE_ITEM]}, id="a sku twice"),
        pytest.param({"sale": "x"}, id="a sale that is none"),
        pytest.param({"sale": True}, id="a sale that is true"),
        pytest.param({"items": [{**ONE_ITEM[0], "quantity": True}]}, id="a quantity that is true"),
        pytest.param({"items": [{**ONE_ITEM[0], "sku": True}]}, id="a sku that is true"),
        pytest.param({"items": [{**ONE_ITEM[0], "sku": 5}]}, id="a sku that is a number"),
        pytest.param({"items": [{**ONE_ITEM[0], "limit": "x"}]}, id="a limit that is none"),
        pytest.param({"key": {"a": 1}}, id="a key that is no text"),
        pytest.param({"key": "\0"}, id="a key that Postgres refuses"),
        pytest.param({"body_hash": None}, id="no hash"),
    ],
)
def test_an_entry_that_says_nonsense_legibly_stops_nobody(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale, redis: Redis, instead: dict[str, Any]
) -> None:
    poison = buyer.order(order_body(offer, a=1, b=1))
    ((number, said),) = redis.xrange(STREAM)
    redis.xdel(STREAM, number)
    worse = redis.xadd(STREAM, {**said, "request": orjson.dumps({**orjson.loads(said[b"request"]), **instead})})
    note = orjson.loads(redis.hget(NOTES, poison.json()["id"]))
    redis.hset(NOTES, poison.json()["id"], orjson.dumps({**note, "entry": worse.decode()}))
    healthy = [other_buyer.order(order_body(offer, b=1)).headers["Location"] for _ in range(2)]

    assert save_queued() == 3

    assert [other_buyer.get(location).json()["state"] for location in healthy] == ["pending", "pending"]
    assert buyer.get(poison.headers["Location"]).json()["state"] == "rejected"
    assert len(registry.queue()) == 0
    assert len(registry.queue().aside()) == 1
    registry.refresh(["a", "b"], saved)
    assert registry.in_redis(["a", "b"]) == {"a": (3, 0), "b": (1, 0)}
    assert all(figures.conserved for figures in conservation.figures())


def test_an_order_that_cannot_be_saved_is_rejected_and_set_aside(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = buyer.order(order_body(offer, a=1)).headers["Location"]
    healthy = other_buyer.order(order_body(offer, a=1)).headers["Location"]
    save = queued.save

    def fail(requests, **how):  # type: ignore[no-untyped-def]
        if any(request.customer == buyer.customer for request in requests):
            raise IntegrityError("no such thing")
        return save(requests, **how)

    monkeypatch.setattr(queued, "save", fail)
    assert save_queued() == 2
    assert buyer.get(poison).json()["state"] == "rejected"
    assert other_buyer.get(healthy).json()["state"] == "pending"
    assert [reason for *_, reason in registry.queue().aside()] == ["IntegrityError: no such thing"]


def test_an_order_whose_entry_cannot_be_read_is_rejected(buyer: Buyer, offer: OnSale, redis: Redis) -> None:
    """A worker of another version, say, does not know what it says. Its note is simpler."""
    answer = buyer.order(order_body(offer, a=1), key="mine")
    queued = answer.json()
    redis.delete(STREAM)
    number = redis.xadd(STREAM, {"request": "{}"}).decode()
    note = orjson.loads(redis.hget(NOTES, queued["id"]))
    redis.hset(NOTES, queued["id"], orjson.dumps({**note, "entry": number}))
    waiting = buyer.get(answer.headers["Location"]).json()
    assert (waiting["state"], waiting["items"]) == ("queued", queued["items"])

    assert save_queued() == 1

    rejected = buyer.get(answer.headers["Location"]).json()
    assert (rejected["state"], rejected["reason"]) == ("rejected", "ValueError: An entry cannot be read.")
    assert (rejected["items"], rejected["total"]) == (queued["items"], queued["total"])
    assert Order.objects.get().body_hash == hash_of_body(offer.sale, offer.cart(a=1))
    assert registry.counters().left(["a"]) == {"a": 3}
    assert redis.exists(key_key(buyer.customer, "mine")), "the key stands for what is rejected"
    again = buyer.order(order_body(offer, a=1), key="mine")
    assert (again.status_code, again.json()) == (202, rejected)


def test_the_key_of_an_order_that_could_not_even_be_written_as_rejected_stands_for_it(
    buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis alone remembers it, for a day."""
    first = buyer.order(order_body(offer, a=1), key="mine").json()

    def fail(*_: object, **__: object) -> None:
        raise IntegrityError("no such thing")

    with monkeypatch.context() as broken:
        broken.setattr(queued, "save", fail)
        broken.setattr(queued, "reject", fail)
        save_queued()
    assert orders_in() == 0
    again = buyer.order(order_body(offer, a=1), key="mine")
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (202, first["id"], "rejected")
    assert again.json()["reason"] == "IntegrityError: no such thing"
    other = on_sale({"c": 1}, strategy="lua-queue")
    for body in (order_body(offer, a=2), order_body(other, c=1)):
        assert_problem(buyer.order(body, key="mine"), 422, "key-reused")
    assert buyer.order(order_body(offer, a=1), key="new").status_code == 202


def test_an_order_of_which_redis_has_lost_the_note_has_an_outcome(
    buyer: Buyer, offer: OnSale, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot even be written as rejected, and its entry was all that Redis knew."""
    location = buyer.order(order_body(offer, a=1), key="mine").headers["Location"]
    redis.delete(NOTES)

    def fail(*_: object, **__: object) -> None:
        raise IntegrityError("no such thing")

    with monkeypatch.context() as broken:
        broken.setattr(queued, "save", fail)
        broken.setattr(queued, "reject", fail)
        save_queued()
    assert buyer.get(location).json()["state"] == "rejected"
    assert buyer.order(order_body(offer, a=1), key="mine").json()["state"] == "rejected"


def test_what_is_queued_while_the_next_sale_is_preheated_is_promised_too(buyer: Buyer) -> None:
    """The order was requested before the end, and comes to Redis after the first look at the queue."""
    offer = on_sale({"a": 1}, strategy="lua-queue")
    known = offers.read(offer.sale)
    assert known is not None
    request = make_request(known, customer=buyer.customer, quantities=offer.cart(a=1), key="late")
    Sale.objects.update(closes_at=timezone.now())
    after = on_sale({"a": 0}, strategy="segmented-lock", preheat=False)
    queue = partial(registry.get("lua-queue").place, request, save)
    with interleaved(queue, before="FOR NO KEY UPDATE.*a"), pytest.raises(lifecycle.NotNow, match="are queued"):
        lifecycle.preheat(after.sale)
    assert not Sale.objects.get(pk=after.sale).is_loaded
    save_queued()
    assert buyer.get(f"/api/orders/{request.id}/").json()["state"] == "pending"


def test_what_is_queued_is_promised_also_when_the_sale_does_not_offer_it_any_more(buyer: Buyer) -> None:
    offer = on_sale({"a": 1}, strategy="lua-queue")
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    lifecycle.close(offer.sale)
    SaleItem.objects.all().delete()
    after = on_sale({"a": 0}, strategy="segmented-lock", preheat=False)
    with pytest.raises(lifecycle.NotNow, match=f"Orders of sale {offer.sale}"):
        lifecycle.preheat(after.sale)
    save_queued()
    assert buyer.get(location).json()["state"] == "pending"
    lifecycle.preheat(after.sale)


@pytest.mark.parametrize("second", ["guarded-update", "segmented-lock", "unit-rows", "group-commit", "lua"])
def test_the_next_sale_gets_the_stock_when_all_that_was_queued_for_it_is_saved(
    buyer: Buyer, other_buyer: Buyer, second: str
) -> None:
    offer = on_sale({"a": 2}, strategy="lua-queue")
    location = buyer.order(order_body(offer, a=2)).headers["Location"]
    lifecycle.close(offer.sale)
    after = on_sale({"a": 1}, strategy=second, preheat=False)
    for _ in range(2):
        lifecycle.tend()
        offers._remembered.clear()
        assert_problem(other_buyer.order(order_body(after, a=1)), 503, "not-loaded")
    assert not Sale.objects.get(pk=after.sale).is_loaded

    save_queued()

    assert buyer.get(location).json()["state"] == "pending", "it was promised"
    lifecycle.tend()
    offers._remembered.clear()
    assert other_buyer.order(order_body(after, a=1)).status_code == 201
    assert_problem(other_buyer.order(order_body(after, a=1)), 409, "sold-out")
    assert all(figures.conserved for figures in conservation.figures())


@pytest.mark.parametrize("second", ["guarded-update", "segmented-lock", "unit-rows"])
def test_without_waiting_for_what_is_queued_the_next_sale_has_its_stock(
    buyer: Buyer, other_buyer: Buyer, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    offer = on_sale({"a": 1}, strategy="lua-queue")
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    lifecycle.close(offer.sale)
    monkeypatch.setattr(registry, "promised", lambda skus: set())
    after = on_sale({"a": 0}, strategy=second)
    assert other_buyer.order(order_body(after, a=1)).status_code == 201
    save_queued()
    assert buyer.get(location).json()["state"] == "rejected"


def test_an_order_that_cannot_even_be_written_as_rejected_has_an_outcome(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale
) -> None:
    answer = buyer.order(order_body(offer, a=1))
    SaleItem.objects.all().delete()
    Sale.objects.all().delete()
    save_queued()
    assert orders_in() == 0
    rejected = buyer.get(answer.headers["Location"]).json()
    assert (rejected["state"], rejected["reason"]) == ("rejected", f"Sale {offer.sale} takes no orders now.")
    assert (rejected["id"], rejected["sale"], rejected["items"]) == (answer.json()["id"], offer.sale, [])
    assert (rejected["total"], rejected["pay_by"]) == ("0.00", None)
    placed, said = (datetime.fromisoformat(each["created_at"]) for each in (answer.json(), rejected))
    assert abs(placed - said) < timedelta(seconds=1)
    assert_problem(other_buyer.get(answer.headers["Location"]), 404, "not-found")


@pytest.mark.parametrize("what", ["pay", "cancel"])
def test_an_order_that_is_queued_can_be_paid_and_cancelled_when_it_is_saved(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale, what: str
) -> None:
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    answer = buyer.post(f"{location}{what}/")
    assert_problem(answer, 409, "still-queued")
    assert answer.headers["Retry-After"] == "1"
    assert_problem(other_buyer.post(f"{location}{what}/"), 404, "not-found")
    save_queued()
    assert buyer.post(f"{location}{what}/").status_code == 200


@pytest.mark.parametrize("what", ["pay", "cancel"])
def test_an_order_that_is_saved_between_the_two_looks_is_paid_and_cancelled(
    buyer: Buyer, other_buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    waiting = registry.waiting
    monkeypatch.setattr(registry, "waiting", lambda order: (elsewhere(save_queued), waiting(order))[1])
    assert_problem(other_buyer.post(f"{location}{what}/"), 404, "not-found")
    again = buyer.order(order_body(offer, a=1)).headers["Location"]
    assert buyer.post(f"{again}{what}/").status_code == 200


@pytest.mark.parametrize("what", ["pay", "cancel"])
def test_who_pays_or_cancels_a_queued_order_changes_the_order_that_stands_for_it(
    buyer: Buyer, offer: OnSale, redis: Redis, what: str
) -> None:
    first = buyer.order(order_body(offer, a=1), key="mine").json()
    save_queued()
    redis.delete(key_key(buyer.customer, "mine"))
    location = buyer.order(order_body(offer, a=1), key="mine").headers["Location"]
    save_queued()
    changed = buyer.post(f"{location}{what}/")
    assert (changed.status_code, changed.json()["id"]) == (200, first["id"])
    left = 3 if what == "cancel" else 2
    assert [(row.on_hand, row.conserved) for row in conservation.figures(["a"])] == [(left, True)]
    assert registry.counters().left(["a"]) == {"a": left}
    assert [allowance.taken for allowance in Allowance.objects.all()] == [3 - left]
    again = buyer.post(f"/api/orders/{first['id']}/{what}/")
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")


def test_without_redis_it_is_unavailable(buyer: Buyer, offer: OnSale, redis_gone: Gone) -> None:
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    with redis_gone():
        assert_problem(buyer.order(order_body(offer, a=1)), 503, "unavailable")
        assert_problem(buyer.get(location), 503, "unavailable")


def test_an_order_that_ends_gives_back_its_allowance_in_redis_too(buyer: Buyer, offer: OnSale) -> None:
    buyer.order(order_body(offer, a=2))
    save_queued()
    assert_problem(buyer.order(order_body(offer, a=1)), 409, "over-limit")
    Order.objects.update(payable_from="2020-01-01T00:00Z")
    assert expire_unpaid() == 1
    assert registry.counters().left(["a"]) == {"a": 3}
    assert buyer.order(order_body(offer, a=1)).status_code == 202
    assert StockItem.objects.get(sku="a").on_hand == 3
    assert Sale.objects.get(pk=offer.sale).strategy == "lua-queue"
