"""What processes that died have left between Redis and Postgres is found, put right once, and nothing else is."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from io import StringIO
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, ProgrammingError, transaction
from django.utils import timezone
from redis import Redis, RedisError

from inventory import sold_out, stock
from inventory.counters.whole import NOTES, UNITS, Counters, counter_key
from inventory.errors import OverLimit, SoldOut, StockNotLoaded, TryAgain
from inventory.models import StockItem, StockUnit
from inventory.queue.stream import STREAM, Queue, bought_key
from inventory.strategies import registry
from inventory.strategies.lua_queue import LuaQueue
from shop import conservation
from shop.models import Order, Sale
from shop.orders.customer_changes import cancel_order
from shop.orders.lookup import find_order
from shop.orders.place import place_order
from shop.orders.queued import save_queued
from shop.orders.receipts import Placed
from shop.reconcile import reconcile
from shop.runtime import tasks
from shop.sales import lifecycle
from tests.factories import OnSale, at_once, interleaved, new_customer, new_request, on_sale, tally
from tests.shop.conftest import Gone
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5, "b": 5}, strategy="lua")


@pytest.fixture
def counters(redis: Redis) -> Counters:
    return registry.counters()


def buy(offer: OnSale, **cart: int) -> Placed:
    return place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(**cart), key="k")


def assert_law(**on_hand: int) -> None:
    """Both laws: nobody's units are reserved, and Redis admits what is on hand."""
    assert all(figures.conserved for figures in conservation.figures())
    assert {item.sku: item.on_hand for item in StockItem.objects.all()} == on_hand
    assert registry.counters().reserved() == {}
    assert registry.counters().left(list(on_hand)) == on_hand


def test_at_rest_there_is_nothing_to_repair(offer: OnSale) -> None:
    buy(offer, a=2, b=1)
    assert reconcile(grace=0) == []
    assert_law(a=3, b=4)


def test_units_of_a_process_that_died_before_its_commit_go_back(offer: OnSale, counters: Counters) -> None:
    request = new_request(("a", 2), ("b", 1))
    counters.take(request)
    (repair,) = reconcile(grace=0)
    assert (repair.what, repair.name, repair.units) == ("units reserved for nobody", str(request.id), 3)
    assert reconcile(grace=0) == []
    assert_law(a=5, b=5)


def test_an_order_whose_process_died_after_its_commit_keeps_its_units(
    offer: OnSale, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(Counters, "confirm_reservation", lambda *rest: False)
        order = buy(offer, a=2).order
    assert counters.requests() == {order.pk}
    (repair,) = reconcile(grace=0)
    assert (repair.what, repair.units) == ("an order whose reservation had not ended", 0)
    assert_law(a=3, b=5)


def test_who_does_not_ask_postgres_gives_sold_units_back(
    offer: OnSale, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: every old note is taken for nobody's."""
    monkeypatch.setattr("shop.reconcile.saved", lambda requests: set())
    with monkeypatch.context() as dying:
        dying.setattr(Counters, "confirm_reservation", lambda *rest: False)
        buy(offer, a=2)
    given_back = [repair.units for repair in reconcile(grace=0) if repair.what == "units reserved for nobody"]
    assert given_back == [2]


@pytest.mark.parametrize("strategy", ["lua", "lua-queue", "segmented-redis"])
@pytest.mark.parametrize("lost", [NOTES, UNITS, "one note"])
def test_what_redis_has_lost_of_the_two_keys_of_a_reservation_is_counted_again(
    redis: Redis, counters: Counters, lost: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too much reserved, and everybody is told to come back for ever; too little, and Redis admits what is taken."""
    monkeypatch.setattr("shop.reconcile.save_queued", lambda **_: 0)  # no worker comes
    offer = on_sale({"a": 5, "b": 5}, strategy=strategy)
    requests = []
    for _ in range(2):
        with monkeypatch.context() as dying:
            dying.setattr(Counters, "confirm_reservation", lambda *rest: False)
            dying.setattr(Counters, "give_back", lambda *rest: False)
            dying.setattr("inventory.stock.take", lambda *rest: (_ for _ in ()).throw(IntegrityError("gone")))
            with suppress(IntegrityError):
                buy(offer, a=2, b=1)
    requests = [note.request for note in counters.notes()]
    assert len(requests) == 2
    if lost == "one note":
        redis.hdel(NOTES, str(requests[0]))
    else:
        redis.delete(lost)
    noted = {UNITS: 2, NOTES: 0, "one note": 1}[lost]

    repairs = reconcile(grace=60)

    assert {repair.name for repair in repairs} >= {"a", "b"}
    assert sums(counters.reserved()) == ({"a": 2 * noted, "b": noted} if noted else {})
    admitted = {sku: units for sku, (units, _) in registry.in_redis(["a", "b"]).items()}
    assert admitted == {"a": 5 - 2 * noted, "b": 5 - noted}
    assert reconcile(grace=60) == []


def sums(reserved: Mapping[str, int]) -> dict[str, int]:
    """What is reserved of each sku, from whichever of its counters."""
    units: Counter[str] = Counter()
    for name, each in reserved.items():
        units[name.partition("\0")[0]] += each
    return dict(units)


@pytest.mark.parametrize(
    "said",
    [
        {"items": [["a"]]},
        {"items": [5]},
        {"items": [["a", "x"]]},
        {"items": [["a", 1]], "buyer": "x", "entry": "1-1"},
        {"items": [["a", 1]], "buyer": 5, "entry": "1-1"},
        {"items": [["a", 1]], "buyer": "1:2", "entry": "nonsense"},
        {"items": [["a", 1]], "buyer": "1:2"},
    ],
)
def test_a_note_that_says_nonsense_keeps_nobody_from_anything(redis: Redis, said: dict[str, Any]) -> None:
    before = on_sale({"a": 5, "b": 5}, strategy="lua-queue")
    lifecycle.close(before.sale)
    nonsense = str(uuid4())
    redis.hset(NOTES, nonsense, json.dumps({"at": 1, **said}))
    after = on_sale({"a": 0, "b": 0}, strategy="lua", preheat=False)
    lifecycle.tend()
    assert Sale.objects.get(pk=after.sale).is_loaded
    request = new_request(("b", 2))
    registry.counters().take(request)

    repairs = reconcile(grace=0)

    assert str(request.id) in {repair.name for repair in repairs}
    assert registry.counters().confirm_reservation(UUID(nonsense), ["a"]) in {False, said["items"] == [["a", 1]]}
    assert registry.counters().left(["b"]) == {"b": 5}


def test_while_a_note_cannot_be_read_nobody_knows_what_is_reserved(
    offer: OnSale, counters: Counters, redis: Redis
) -> None:
    counters.take(new_request(("a", 2)))
    (request,) = counters.requests()
    redis.hset(NOTES, str(request), "{")
    assert reconcile(grace=0) == []
    assert counters.reserved() == {"a": 2}
    redis.hdel(NOTES, str(request))  # by somebody who has looked at it
    assert [repair.units for repair in reconcile(grace=0)] == [0, 2]
    assert_law(a=5, b=5)


def test_a_reservation_within_its_grace_is_on_its_way(offer: OnSale, counters: Counters) -> None:
    request = new_request(("a", 2))
    counters.take(request)
    assert reconcile(grace=60) == []
    assert counters.requests() == {request.id}


@pytest.mark.parametrize("wrong", [-3, 2])
def test_a_counter_that_differs_is_mended(offer: OnSale, counters: Counters, redis: Redis, wrong: int) -> None:
    redis.incrby("{stock}:counter:a", wrong)
    (repair,) = reconcile()
    assert (repair.what, repair.name, repair.units) == ("a counter that differed from what is on hand", "a", -wrong)
    assert_law(a=5, b=5)


def test_a_counter_of_what_is_not_on_sale_is_removed(offer: OnSale, counters: Counters) -> None:
    Sale.objects.update(opens_at=timezone.now() - timezone.timedelta(hours=2), closes_at=timezone.now())
    assert {(repair.what, repair.name) for repair in reconcile()} == {
        ("a copy of stock that is not on sale", "a"),
        ("a copy of stock that is not on sale", "b"),
    }
    assert counters.skus() == []


def test_pieces_of_stock_that_is_not_on_sale_are_gathered(redis: Redis) -> None:
    """Who split the stock died before it gathered it again: its units are on hand, and nobody would find them."""
    on_sale({"a": 5}, strategy="guarded-update")
    Sale.objects.update(opens_at=timezone.now() - timezone.timedelta(hours=2), closes_at=timezone.now())
    StockItem.objects.update(on_hand=3, split_by="unit-rows")
    StockUnit.objects.bulk_create(StockUnit(item_id="a") for _ in range(2))
    assert conservation.figures()[0].conserved
    assert [(repair.what, repair.name) for repair in reconcile()] == [("a copy of stock that is not on sale", "a")]
    assert StockItem.objects.get(sku="a").on_hand == 5
    assert StockUnit.objects.count() == 0


def test_what_is_queued_is_saved_and_not_taken_for_nobodys(redis: Redis) -> None:
    offer = on_sale({"a": 5}, strategy="lua-queue")
    order = buy(offer, a=2).order
    waiting = registry.waiting(order.pk)
    assert waiting is not None
    assert waiting.request is not None
    assert reconcile(grace=0) == []
    assert find_order(order.pk, customer=waiting.request.customer).order.state == "pending"
    assert_law(a=3)


def test_a_request_whose_entry_was_lost_is_rejected_and_gives_back_all_that_it_has(redis: Redis) -> None:
    offer = on_sale({"a": 5}, strategy="lua-queue", limit=2)
    customer = new_customer()

    def order(key: str) -> Placed:
        return place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=2), key=key)

    lost = order("lost").order
    redis.xtrim(STREAM, maxlen=0)
    assert [(repair.what, repair.units) for repair in reconcile(grace=0)] == [("units reserved for nobody", 2)]
    assert_law(a=5)
    rejected = find_order(lost.pk, customer=customer).order
    assert (rejected.state, rejected.reason) == ("rejected", "The queue has lost this order before it was saved.")
    retry = order("lost").order
    save_queued()
    assert find_order(retry.pk, customer=customer).order.pk == lost.pk
    assert order("another").queued, "neither the units nor the limit are used up"


@pytest.mark.parametrize(("wrong", "taken"), [(1, 0), (-1, 2), (2, 1)])
def test_what_a_customer_has_bought_is_counted_again(redis: Redis, wrong: int, taken: int) -> None:
    """By orders that are saved, and by what is still queued, which a worker that cannot work leaves there."""
    offer = on_sale({"a": 9}, strategy="lua-queue", limit=3)
    customer = new_customer()
    for number in range(taken):
        place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=1), key=str(number))
        if number == 0:
            save_queued()
    queue = registry.queue()
    queue.read("busy", 10)
    redis.hincrby(bought_key("a"), f"{offer.sale}:{customer}", wrong)
    (repair,) = reconcile(grace=60)
    said = f"a, customer {customer} in sale {offer.sale}: {taken + wrong}, not {taken}"
    assert (repair.what, repair.name, repair.units) == ("a count of what a customer has bought", said, 0)
    assert queue.bought("a") == {(offer.sale, customer): taken}
    assert reconcile(grace=60) == []


class Dies(BaseException):
    """What ends a process, and nobody catches."""


def test_what_a_dead_worker_has_committed_is_counted_once_as_bought(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = on_sale({"a": 5}, strategy="lua-queue", limit=2)
    customer = new_customer()
    place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=1), key="one")
    with monkeypatch.context() as dying:
        dying.setattr(Queue, "done", lambda *rest: (_ for _ in ()).throw(Dies))
        with pytest.raises(Dies):
            save_queued()
    assert redis.hlen(NOTES) == 1

    assert reconcile() == []

    assert registry.queue().bought("a") == {(offer.sale, customer): 1}
    assert place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=1), key="two").queued


def test_no_order_is_saved_between_the_look_at_what_is_bought_and_at_what_is_noted(redis: Redis) -> None:
    """It would be missing from both, or in both."""
    offer = on_sale({"a": 5}, strategy="lua-queue", limit=2)
    customer = new_customer()
    place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=1), key="one")
    queue = registry.queue()
    queue.read("busy", 10)
    free: list[bool] = []

    def look() -> None:
        with transaction.atomic():
            free.append(StockItem.objects.select_for_update(skip_locked=True).filter(sku="a").exists())

    with interleaved(look, after="shop_allowance"):
        assert reconcile(grace=60) == []
    assert free == [False]


def test_a_count_that_changes_meanwhile_is_left_alone(redis: Redis) -> None:
    redis.hset(bought_key("a"), "1:2", 5)
    assert registry.queue().correct("a", (1, 2), 4, 3) is False
    assert registry.queue().bought("a") == {(1, 2): 5}


def test_who_gave_units_back_while_redis_was_gone_may_buy_as_many_again(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = on_sale({"a": 5}, strategy="lua-queue", limit=2)
    customer = new_customer()

    def order(key: str) -> Placed:
        return place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=2), key=key)

    first = order("first").order
    save_queued()
    with monkeypatch.context() as gone:
        gone.setattr(LuaQueue, "given_back", lambda *rest: (_ for _ in ()).throw(RedisError("gone")))
        cancel_order(first.pk, customer=customer)
    with pytest.raises(OverLimit):
        order("second")
    reconcile()
    assert order("second").queued


def test_a_note_that_cannot_be_read_stops_nobody(
    offer: OnSale, counters: Counters, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for request, note in [("nobody", "{}"), (str(uuid4()), "x"), (str(uuid4()), "{}"), (str(uuid4()), '{"items": 1}')]:
        redis.hset(NOTES, request, note)
    redis.incrby("{stock}:counter:a", 1)
    assert [repair.name for repair in reconcile(grace=0)] == ["a"]
    assert caplog.text.count("cannot be read: ") >= 4
    assert redis.hlen(NOTES) == 4


def test_what_was_repaired_is_logged_although_the_next_repair_fails(
    offer: OnSale, counters: Counters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request = new_request(("a", 2))
    counters.take(request)
    monkeypatch.setattr(registry, "refresh", lambda *rest: (_ for _ in ()).throw(RedisError("gone")))
    with pytest.raises(RedisError):
        reconcile(grace=0)
    assert f"Repaired: units reserved for nobody, {request.id}, +2 units" in caplog.text


def test_a_sale_that_is_preheated_meanwhile_keeps_its_pieces(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copies are found, and then it is looked at whether they are on sale."""
    on_sale({"a": 6}, strategy="unit-rows")
    hour = timezone.timedelta(hours=1)
    Sale.objects.update(preheated_at=None, opens_at=timezone.now() + hour, closes_at=timezone.now() + 2 * hour)
    skus = Counters.skus

    def preheated_meanwhile(counters: Counters) -> list[str]:
        Sale.objects.update(preheated_at=timezone.now())
        return skus(counters)

    monkeypatch.setattr(Counters, "skus", preheated_meanwhile)
    assert reconcile() == []
    assert StockUnit.objects.filter(item="a").count() == 6


def test_a_queue_that_a_worker_is_busy_with_is_left_alone(redis: Redis) -> None:
    offer = on_sale({"a": 5}, strategy="lua-queue")
    buy(offer, a=2)
    assert len(registry.queue().read("busy", 10)) == 1
    assert reconcile(grace=0) == []
    assert redis.hlen(NOTES) == 1


def test_it_repairs_while_the_shop_sells(offer: OnSale, counters: Counters) -> None:
    for request in (new_request(("a", 1)), new_request(("a", 1))):
        counters.take(request)
        note = json.loads(counters.client.hget(NOTES, str(request.id)))
        counters.client.hset(NOTES, str(request.id), json.dumps({**note, "at": 0}))  # long ago
    customers = [new_customer() for _ in range(12)]

    def order(customer: int) -> Any:
        def once() -> Any:
            try:
                return place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=1), key="k").order.state
            except TryAgain:  # what is left is reserved, and comes back
                return None

        return wait_for(once, "an answer other than to try again")

    answers = at_once(*[partial(order, customer) for customer in customers], *[partial(reconcile, grace=60)] * 3)
    counts = tally(answers)
    assert (counts["pending"], counts["SoldOut"]) == (5, 7)
    assert all(isinstance(repairs, list) for repairs in answers[-3:]), answers[-3:]
    assert all(figures.conserved for figures in conservation.figures())
    assert counters.reserved() == {}
    assert counters.left(["a"]) == {"a": StockItem.objects.get(sku="a").on_hand}


# The command


def test_the_command_says_what_it_repaired(offer: OnSale, counters: Counters, caplog: pytest.LogCaptureFixture) -> None:
    request = new_request(("a", 2))
    counters.take(request)
    said = StringIO()
    with caplog.at_level(logging.WARNING):
        call_command("reconcile", "--grace", "0", "--json", stdout=said)
    assert json.loads(said.getvalue()) == {
        "broken_before": [],
        "repairs": [{"what": "units reserved for nobody", "name": str(request.id), "units": 2}],
        "broken_after": [],
    }
    assert str(request.id) in caplog.text
    said = StringIO()
    call_command("reconcile", stdout=said)
    assert said.getvalue() == "0 repairs. The conservation law holds.\n"


def test_what_it_cannot_repair_is_status_1(offer: OnSale) -> None:
    StockItem.objects.filter(sku="a").update(on_hand=4)
    with pytest.raises(SystemExit) as ended:
        call_command("reconcile", stdout=(said := StringIO()))
    assert ended.value.code == 1
    assert "BROKEN for a" in said.getvalue()


@pytest.mark.parametrize("on_hand", [4, 5], ids=["broken", "whole"])
def test_celery_reconciles_between_two_audits(offer: OnSale, caplog: pytest.LogCaptureFixture, on_hand: int) -> None:
    StockItem.objects.filter(sku="a").update(on_hand=on_hand)
    assert tasks.reconcile() == (on_hand == 4)  # the counter follows the row, whatever that says
    said = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert said == (
        ["The conservation law is broken for ['a'], and after reconciling for ['a']."] if on_hand == 4 else []
    )


def test_without_redis_it_is_status_2(redis_gone: Gone) -> None:
    with redis_gone(), pytest.raises(CommandError, match="did not answer") as failed:
        call_command("reconcile")
    assert failed.value.returncode == 2


def test_what_is_reserved_for_nobody_comes_back_also_while_what_is_queued_cannot_be_saved(
    offer: OnSale, counters: Counters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counters.take(new_request(("a", 2)))

    def fail(**_: float) -> int:
        raise ProgrammingError("no such column")

    monkeypatch.setattr("shop.reconcile.save_queued", fail)
    assert [repair.units for repair in reconcile(grace=0)] == [2]
    assert "What is queued cannot be saved now, and stays queued." in caplog.messages
    assert_law(a=5, b=5)


def test_units_reserved_that_are_no_number_are_counted_again(offer: OnSale, redis: Redis) -> None:
    redis.hset(UNITS, "a", "no number")
    assert [(repair.what, repair.name) for repair in reconcile()] == [
        ("0 units reserved, where requests have noted 0", "a")
    ]
    assert_law(a=5, b=5)


def test_a_counter_that_keeps_the_queue_from_giving_back_is_mended(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    offer = on_sale({"a": 3}, strategy="lua-queue")
    order = buy(offer, a=1).order
    User.objects.update(is_active=False)
    redis.set(counter_key("a"), "no number")
    reconcile()
    assert "What is queued cannot be saved now, and stays queued." in caplog.messages
    reconcile()
    assert Order.objects.get(pk=order.pk).state == "rejected"
    assert_law(a=3)


# Redis comes back as it was a while ago


def saved_keys(redis: Redis) -> dict[bytes, bytes]:
    return {key: redis.dump(key) for key in redis.scan_iter("{stock}*")}


def come_back(redis: Redis, keys: Mapping[bytes, bytes]) -> None:
    redis.flushall()
    for key, value in keys.items():
        redis.restore(key, 0, value)


def buy_until_sold_out(offer: OnSale) -> None:
    """As many customers as it takes, who come again when they are told to."""
    for _ in range(30):
        try:
            buy(offer, a=1)
        except SoldOut:
            save_queued()
            if stock.on_hand("a") == 0:
                return
            sold_out.forget()  # as a moment later
        except StockNotLoaded:
            pass
    pytest.fail("there is no end to it")


@pytest.mark.parametrize("reconciled", [True, False], ids=["reconciled", "before it is reconciled"])
@pytest.mark.parametrize("more", [0, 3], ids=["only its end was lost", "three orders were lost"])
@pytest.mark.parametrize("name", ["lua", "lua-queue", "segmented-redis"])
def test_a_redis_that_is_older_than_the_truth_loses_and_sells_twice_nothing(
    redis: Redis, name: str, more: int, reconciled: bool
) -> None:
    """All of it is older: counters, notes, segments, the queue, keys and what was bought."""
    offer = on_sale({"a": 10}, strategy=name)
    first = [buy(offer, a=1).order.pk for _ in range(2)]
    older = saved_keys(redis)
    assert older
    save_queued()
    later = [buy(offer, a=1).order.pk for _ in range(more)]
    save_queued()
    cancel_order(first[0], customer=Order.objects.get(pk=first[0]).customer_id)
    come_back(redis, older)

    if reconciled:
        reconcile(grace=0)
    buy_until_sold_out(offer)
    reconcile(grace=0)

    states = Counter(Order.objects.values_list("state", flat=True))
    assert (states["pending"], states["cancelled"]) == (10, 1)
    assert {*first[1:], *later} <= set(Order.objects.filter(state="pending").values_list("pk", flat=True))
    assert all(figures.conserved for figures in conservation.figures())
    assert registry.counters().reserved() == {}
    assert reconcile(grace=0) == []
