"""Reconciling repairs the differences between Redis and Postgres that crashed processes have left, and no others."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, OperationalError, ProgrammingError, connection, transaction
from django.utils import timezone
from redis import Redis, RedisError, ResponseError

from inventory import sold_out, stock
from inventory.counters.whole import RESERVATIONS, RESERVED_UNITS, Counters, counter_key
from inventory.errors import OverLimit, SoldOut, StockNotLoaded, TryAgain
from inventory.models import StockItem, StockUnit
from inventory.queue.bought import bought_key
from inventory.queue.stream import STREAM, Queue
from inventory.strategies import registry
from inventory.strategies.lua_queue import LuaQueue
from shop.models import Order, Sale
from shop.orders.customer_changes import cancel_order
from shop.orders.lookup import find_order
from shop.orders.queued import save_queued
from shop.reconcile import reconcile, reconcile_and_audit
from shop.runtime import tasks
from shop.sales import lifecycle
from shop.sales.preheat import preheat_sale
from tests.factories import OnSale, at_once, count_by_kind, interleaved, new_customer, new_request, on_sale, slow
from tests.shop.conftest import Gone, assert_conserved, buy, raising, stock_is_free
from tests.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

HOUR = timedelta(hours=1)


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5, "b": 5}, strategy="lua")


@pytest.fixture
def counters(redis: Redis) -> Counters:
    return registry.counters()


def assert_law(**on_hand: int) -> None:
    """Check the conservation law, and that Redis counts the units on hand and has no reservations."""
    assert_conserved()
    assert {item.sku: item.on_hand for item in StockItem.objects.all()} == on_hand
    assert registry.counters().reserved() == {}
    assert registry.counters().left(list(on_hand)) == on_hand


def repairs(grace: float | None = None) -> list[tuple[str, str, int]]:
    """Reconcile, and return the kind, the name and the units of each repair."""
    return [(repair.what, repair.name, repair.units) for repair in reconcile(grace=grace)]


def test_a_reservation_without_an_order_is_released_after_its_grace(offer: OnSale, counters: Counters) -> None:
    request = new_request(("a", 2), ("b", 1))
    counters.take(request)
    assert reconcile(grace=60) == []
    assert counters.order_ids() == {request.id}
    assert repairs(grace=0) == [("abandoned reservation", str(request.id), 3)]
    assert reconcile(grace=0) == []
    assert_law(a=5, b=5)


def unconfirmed(monkeypatch: pytest.MonkeyPatch, offer: OnSale) -> UUID:
    """Place an order of two units, as in a process that dies after its commit."""
    with monkeypatch.context() as dying:
        dying.setattr(Counters, "confirm_reservation", lambda *rest: False)
        return buy(offer, a=2).order.pk


@pytest.mark.slow
def test_a_long_queue_can_be_reconciled(redis: Redis, counters: Counters) -> None:
    """Very many reservations can be reconciled. Control: a query with a parameter for each exceeds Postgres's limit."""
    offer = on_sale({"a": 70_000}, strategy="lua")
    note = json.dumps({"items": [["a", 1]], "at": time.time()})
    orders = [uuid4() for _ in range(70_000)]
    with redis.pipeline(transaction=False) as pipe:
        for order in orders:
            pipe.hset(RESERVATIONS, str(order), note)
        pipe.execute()
    assert reconcile(grace=60) == []
    preheat_sale(offer.sale)
    with pytest.raises(OperationalError, match="65535"):
        Order.objects.filter(pk__in=orders).exists()


def test_a_reservation_with_an_order_keeps_its_units(
    offer: OnSale, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = unconfirmed(monkeypatch, offer)
    assert counters.order_ids() == {order}
    assert repairs(grace=0) == [("reservation of an order that is saved", str(order), 0)]
    assert_law(a=3, b=5)


def test_without_asking_postgres_sold_units_are_returned(offer: OnSale, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: reconciling that does not look for saved orders returns sold units."""
    monkeypatch.setattr("shop.reconcile.saved", lambda requests: set())
    order = unconfirmed(monkeypatch, offer)
    assert ("abandoned reservation", str(order), 2) in repairs(grace=0)


@pytest.mark.parametrize("strategy", ["lua-queue", *slow("lua", "segmented-redis")])
@pytest.mark.parametrize("lost", [RESERVATIONS, RESERVED_UNITS, "one note"])
def test_reservations_are_counted_again_after_a_loss(
    redis: Redis, counters: Counters, lost: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the count of reserved units is too high, customers retry for ever. If it is too low, units are sold twice."""
    monkeypatch.setattr("shop.reconcile.save_queued", lambda **_: 0)
    offer = on_sale({"a": 5, "b": 5}, strategy=strategy)
    for _ in range(2):
        with monkeypatch.context() as dying:
            dying.setattr(Counters, "confirm_reservation", lambda *rest: False)
            dying.setattr(Counters, "give_back", lambda *rest: False)
            dying.setattr("inventory.strategies.lua.save_at_once", raising(IntegrityError("gone")))
            with suppress(IntegrityError):
                buy(offer, a=2, b=1)
    requests = [note.order_id for note in counters.reservations()]
    assert len(requests) == 2
    if lost == "one note":
        redis.hdel(RESERVATIONS, str(requests[0]))
    else:
        redis.delete(lost)
    noted = {RESERVED_UNITS: 2, RESERVATIONS: 0, "one note": 1}[lost]

    assert {name for _, name, _ in repairs(grace=60)} >= {"a", "b"}
    reserved: Counter[str] = Counter()
    for counter, units in counters.reserved().items():
        reserved[counter.partition("\0")[0]] += units  # A sku may have several counters.
    assert reserved == ({"a": 2 * noted, "b": noted} if noted else {})
    admitted = {sku: units for sku, (units, _) in registry.redis_stock(["a", "b"]).items()}
    assert admitted == {"a": 5 - 2 * noted, "b": 5 - noted}
    assert reconcile(grace=60) == []


INVALID: list[dict[str, Any]] = [
    *[{"items": [item]} for item in (["a"], 5, ["a", "x"])],
    *[{"items": [["a", 1]], "buyer": buyer, "entry": "1-1"} for buyer in ("x", 5)],
    *[{"items": [["a", 1]], "buyer": "1:2", **entry} for entry in ({"entry": "invalid"}, {})],
]


def test_invalid_notes_do_not_stop_others(redis: Redis) -> None:
    before = on_sale({"a": 5, "b": 5}, strategy="lua-queue")
    lifecycle.close(before.sale)
    invalid = {uuid4(): note for note in INVALID}
    for name, note in invalid.items():
        redis.hset(RESERVATIONS, str(name), json.dumps({"at": 1, **note}))
    after = on_sale({"a": 0, "b": 0}, strategy="lua", preheat=False)
    lifecycle.advance()
    assert Sale.objects.get(pk=after.sale).is_loaded
    request = new_request(("b", 2))
    registry.counters().take(request)

    assert str(request.id) in {name for _, name, _ in repairs(grace=0)}
    for name, note in invalid.items():
        assert registry.counters().confirm_reservation(name, ["a"]) in {False, note["items"] == [["a", 1]]}, note
    assert registry.counters().left(["b"]) == {"b": 5}


def test_unreadable_notes_are_logged_and_keep_reservations_as_they_are(
    offer: OnSale, counters: Counters, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    request = new_request(("a", 2))
    counters.take(request)
    others = dict.fromkeys([str(uuid4()) for _ in range(2)], "{}") | {str(uuid4()): '{"items": 1}'}
    notes = {str(request.id): "{", "nobody": "{}", **others}
    redis.hset(RESERVATIONS, mapping=notes)  # type: ignore[arg-type]
    redis.incrby(counter_key("b"), 1)
    assert [name for _, name, _ in repairs(grace=0)] == ["b"]
    assert caplog.text.count("cannot be read: ") >= len(notes)
    assert (counters.reserved(), redis.hlen(RESERVATIONS)) == ({"a": 2}, len(notes))
    redis.hdel(RESERVATIONS, *notes)  # An operator deletes them.
    assert [units for *_, units in repairs(grace=0)] == [0, 2]
    assert_law(a=5, b=5)


def test_a_counter_of_a_sku_that_is_not_on_sale_is_removed(offer: OnSale, counters: Counters) -> None:
    Sale.objects.update(opens_at=timezone.now() - HOUR, closes_at=timezone.now())
    assert {(what, name) for what, name, _ in repairs()} == {(NOT_ON_SALE, "a"), (NOT_ON_SALE, "b")}
    assert counters.skus() == []


NOT_ON_SALE = "copy of stock that is not on sale"


def test_split_stock_that_is_not_on_sale_is_joined() -> None:
    """A process dies before it joins split stock that is not on sale. Reconciling joins the stock."""
    on_sale({"a": 5}, strategy="guarded-update")
    Sale.objects.update(opens_at=timezone.now() - HOUR, closes_at=timezone.now())
    StockItem.objects.update(on_hand=3, split_by="unit-rows")
    StockUnit.objects.bulk_create(StockUnit(item_id="a") for _ in range(2))
    assert [(what, name) for what, name, _ in repairs()] == [(NOT_ON_SALE, "a")]
    assert (StockItem.objects.get(sku="a").on_hand, StockUnit.objects.count()) == (5, 0)


def test_an_order_that_the_queue_has_lost_is_rejected(redis: Redis) -> None:
    offer, customer = on_sale({"a": 5}, strategy="lua-queue", limit=2), new_customer()
    lost = buy(offer, customer, "lost", a=2).order
    redis.xtrim(STREAM, maxlen=0)
    assert repairs(grace=0) == [("abandoned reservation", str(lost.pk), 2)]
    assert_law(a=5)
    rejected = find_order(lost.pk, customer=customer).order
    assert (rejected.state, rejected.reason) == ("rejected", "The queue has lost this order before it was saved.")
    retry = buy(offer, customer, "lost", a=2).order
    save_queued()
    assert find_order(retry.pk, customer=customer).order.pk == lost.pk
    assert buy(offer, customer, "another", a=2).queued, "the lost order uses neither units nor the limit"


@pytest.mark.parametrize(("wrong", "taken"), [(1, 0), (-1, 2), (2, 1)])
def test_bought_units_are_counted_again(redis: Redis, wrong: int, taken: int) -> None:
    """The units that a customer has bought are those of their saved and queued orders, even if a worker is stuck."""
    offer, customer = on_sale({"a": 9}, strategy="lua-queue", limit=3), new_customer()
    for number in range(taken):
        buy(offer, customer, str(number), a=1)
        if number == 0:
            save_queued()
    queue = registry.queue()
    queue.read("busy", 10)
    redis.hincrby(bought_key("a"), f"{offer.sale}:{customer}", wrong)
    name = f"a, customer {customer} in sale {offer.sale}: {taken + wrong}, not {taken}"
    assert repairs(grace=60) == [("wrong count of units bought by a customer", name, 0)]
    assert queue.bought.of("a") == {(offer.sale, customer): taken}
    assert reconcile(grace=60) == []


def test_an_order_saved_by_a_dead_worker_is_counted_once(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    offer, customer = on_sale({"a": 5}, strategy="lua-queue", limit=2), new_customer()
    buy(offer, customer, "one", a=1)
    with monkeypatch.context() as dying:
        dying.setattr(Queue, "finish_saved", raising(SystemExit()))  # No code catches it, so it ends a process.
        with pytest.raises(SystemExit):
            save_queued()
    assert redis.hlen(RESERVATIONS) == 1

    assert reconcile() == []

    assert registry.queue().bought.of("a") == {(offer.sale, customer): 1}
    assert buy(offer, customer, "two", a=1).queued


def test_stock_is_locked_while_bought_units_are_counted() -> None:
    """Stock is locked while bought units are counted, so no order is counted twice or missed."""
    buy(on_sale({"a": 5}, strategy="lua-queue", limit=2), a=1)
    registry.queue().read("busy", 10)
    free: list[bool] = []
    with interleaved(lambda: free.append(stock_is_free()), after="shop_allowance"):
        assert reconcile(grace=60) == []
    assert free == [False]


def test_a_count_that_has_changed_is_left_alone(redis: Redis) -> None:
    redis.hset(bought_key("a"), "1:2", 5)
    assert registry.queue().bought.correct("a", (1, 2), 4, 3) is False
    assert registry.queue().bought.of("a") == {(1, 2): 5}


def test_a_customer_who_cancelled_without_redis_may_buy_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis does not learn of a cancelled order. Reconciling returns its units to the customer's limit."""
    offer, customer = on_sale({"a": 5}, strategy="lua-queue", limit=2), new_customer()
    first = buy(offer, customer, "first", a=2).order
    save_queued()
    with monkeypatch.context() as gone:
        gone.setattr(LuaQueue, "units_returned", raising(RedisError("gone")))
        cancel_order(first.pk, customer=customer)
    with pytest.raises(OverLimit):
        buy(offer, customer, "second", a=2)
    reconcile()
    assert buy(offer, customer, "second", a=2).queued


def test_repairs_are_logged_even_if_a_later_one_fails(
    offer: OnSale, counters: Counters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request = new_request(("a", 2))
    counters.take(request)
    monkeypatch.setattr(registry, "refresh", raising(RedisError("gone")))
    with pytest.raises(RedisError):
        reconcile(grace=0)
    assert f"Repaired: abandoned reservation, {request.id}, +2 units" in caplog.text


def test_one_sku_that_cannot_be_repaired_does_not_stop_the_other_repairs(
    redis: Redis, counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    on_sale({"a": 5, "b": 5}, strategy="lua-queue")
    requests = [new_request((sku, 2)) for sku in "ab"]
    for request in requests:
        registry.queue().enqueue(request)
    redis.delete(STREAM, counter_key("a"))
    redis.hset(counter_key("a"), "not", "a counter")
    redis.incrby(counter_key("b"), 1)
    redis.hset(bought_key("b"), "1:1", 3)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        reconcile(grace=0)
    assert counters.left(["b"]) == {"b": 5}
    assert requests[1].id not in counters.order_ids(), "the order that the queue has lost is ended"
    assert redis.hgetall(bought_key("b")) == {b"1:1": b"0"}
    said = {record.message.partition(". The others were. ResponseError: WRONGTYPE")[0] for record in caplog.records}
    assert said >= {
        f"Not reconciled: {part}" for part in (f"the reservation of order {requests[0].id}", "the copy of a")
    }


def test_an_unexpected_error_of_one_part_does_not_stop_the_others(
    offer: OnSale, redis: Redis, counters: Counters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shop.reconcile.save_queued", raising(RecursionError("too deep")))
    monkeypatch.setattr(Counters, "recount", raising(RecursionError("too deep")))
    monkeypatch.setattr(registry, "split_by_others", raising(LookupError("gone")))
    redis.incrby(counter_key("b"), 1)
    with pytest.raises(RecursionError):
        reconcile(grace=0)
    assert counters.left(["b"]) == {"b": 5}
    assert "Not reconciled: stock that is split for another strategy. The others were. LookupError" in caplog.text


@pytest.mark.parametrize("error", [ProgrammingError("no such column"), LookupError("a bug in the shop")], ids=repr)
def test_reservations_are_released_although_saving_fails(
    offer: OnSale, counters: Counters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Any
) -> None:
    """If saving queued orders fails, reservations are released anyway. After that, an unexpected error is raised."""
    counters.take(new_request(("a", 2)))
    monkeypatch.setattr("shop.reconcile.save_queued", raising(error))
    with pytest.raises(LookupError, match="a bug") if isinstance(error, LookupError) else nullcontext():
        assert [units for *_, units in repairs(grace=0)] == [2]
    assert "Queued orders were not saved. They stay queued." in caplog.text
    assert_law(a=5, b=5)


def test_while_a_server_is_away_the_skus_are_not_tried_one_by_one(
    offer: OnSale, redis_gone: Gone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []
    refresh = registry.refresh
    monkeypatch.setattr(registry, "refresh", lambda skus, saved: asked.append(skus) or refresh(skus, saved))
    with redis_gone(), pytest.raises(RedisError):
        reconcile(grace=0)
    assert asked == [["a"]]
    said = [record for record in caplog.records if "Not reconciled" in record.message]
    assert len(said) == 1, "one line for all parts, and no traceback"
    assert said[0].exc_info is None


def test_a_busy_queue_is_left_alone(redis: Redis) -> None:
    offer = on_sale({"a": 5}, strategy="lua-queue")
    buy(offer, a=2)
    assert len(registry.queue().read("busy", 10)) == 1
    assert reconcile(grace=0) == []
    assert redis.hlen(RESERVATIONS) == 1


def test_it_repairs_during_sales(offer: OnSale, counters: Counters) -> None:
    for request in (new_request(("a", 1)), new_request(("a", 1))):
        counters.take(request)
        note = json.loads(counters.client.hget(RESERVATIONS, str(request.id)))
        counters.client.hset(RESERVATIONS, str(request.id), json.dumps({**note, "at": 0}))  # older than the grace

    def order(customer: int) -> Any:
        def once() -> Any:
            with suppress(TryAgain):  # The last units are reserved until `reconcile` releases them.
                return buy(offer, customer, "k", a=1).order.state

        return wait_for(once, "an answer other than to try again")

    customers = [new_customer() for _ in range(12)]
    answers = at_once(*[partial(order, customer) for customer in customers], *[partial(reconcile, grace=60)] * 3)
    counts = count_by_kind(answers)
    assert (counts["pending"], counts["SoldOut"]) == (5, 7)
    assert all(isinstance(repairs, list) for repairs in answers[-3:]), answers[-3:]
    assert_conserved()
    assert counters.reserved() == {}
    assert counters.left(["a"]) == {"a": StockItem.objects.get(sku="a").on_hand}


def test_the_command_reports_repairs(offer: OnSale, counters: Counters, caplog: pytest.LogCaptureFixture) -> None:
    request = new_request(("a", 2))
    counters.take(request)
    output = StringIO()
    with caplog.at_level(logging.WARNING):
        call_command("reconcile", "--grace", "0", "--json", stdout=output)
    assert json.loads(output.getvalue()) == {
        "broken_before": [],
        "repairs": [{"what": "abandoned reservation", "name": str(request.id), "units": 2}],
        "broken_after": [],
    }
    assert str(request.id) in caplog.text
    output = StringIO()
    call_command("reconcile", stdout=output)
    assert output.getvalue() == "0 repairs. The conservation law holds.\n"


@pytest.mark.parametrize("sku", ["shirt[xl]", "shirt[/xl]"])
def test_brackets_in_a_sku_are_shown(redis: Redis, capsys: pytest.CaptureFixture[str], sku: str) -> None:
    on_sale({sku: 5}, strategy="lua")
    StockItem.objects.filter(sku=sku).update(on_hand=4)
    for command in ("reconcile", "audit"):
        with pytest.raises(SystemExit) as broken:
            call_command(command)
        assert broken.value.code == 1
        assert f" {sku} " in capsys.readouterr().out


@pytest.mark.parametrize("on_hand", [4, 5], ids=["broken", "whole"])
def test_the_task_logs_a_broken_law(offer: OnSale, caplog: pytest.LogCaptureFixture, on_hand: int) -> None:
    StockItem.objects.filter(sku="a").update(on_hand=on_hand)
    assert tasks.reconcile() == (on_hand == 4)  # The counter is set to the row's figure.
    said = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert said == (
        ["The conservation law is broken. Skus before reconciling: ['a']. Skus after: ['a']."] if on_hand == 4 else []
    )


def test_without_redis_the_command_is_status_2(redis_gone: Gone) -> None:
    with redis_gone(), pytest.raises(CommandError, match="does not answer") as failed:
        call_command("reconcile")
    assert failed.value.returncode == 2


def test_it_repairs_although_the_audit_takes_too_long(
    offer: OnSale, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit reads all orders, so a statement timeout of the shop's role may end it."""

    def audit() -> list[str]:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 1")
            cursor.execute("SELECT pg_sleep(60)")
        return []

    monkeypatch.setattr("shop.reconcile.broken", audit)
    counters.take(new_request(("a", 2)))
    with pytest.raises(OperationalError, match="statement timeout"):
        reconcile_and_audit(grace=0)
    assert_law(a=5, b=5)


def test_an_invalid_sum_of_reservations_is_corrected(offer: OnSale, redis: Redis) -> None:
    redis.hset(RESERVED_UNITS, "a", "no number")
    ((what, name, _),) = repairs()
    assert (what, name) == ("0 units counted as reserved, but reservations add up to 0", "a")
    assert_law(a=5, b=5)


def test_a_counter_that_stops_the_queue_is_corrected(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    offer = on_sale({"a": 3}, strategy="lua-queue")
    order = buy(offer, a=1).order
    User.objects.update(is_active=False)
    redis.set(counter_key("a"), "no number")
    reconcile()
    assert "Queued orders were not saved. They stay queued. " in caplog.text
    reconcile()
    assert Order.objects.get(pk=order.pk).state == "rejected"
    assert_law(a=3)


def buy_until_sold_out(offer: OnSale) -> None:
    for _ in range(30):
        try:
            buy(offer, a=1)
        except SoldOut:
            save_queued()
            if stock.on_hand("a") == 0:
                return
            sold_out.forget()
        except StockNotLoaded:
            pass
    pytest.fail("the stock is never sold out")


@pytest.mark.parametrize("reconciled", [True, False], ids=["reconciled", "before it is reconciled"])
@pytest.mark.parametrize(
    "more",
    [pytest.param(0, id="only its end was lost", marks=pytest.mark.slow), pytest.param(3, id="three orders were lost")],
)
@pytest.mark.parametrize("name", ["lua", "lua-queue", "segmented-redis"])
def test_an_older_redis_loses_nothing_and_sells_nothing_twice(
    redis: Redis, name: str, more: int, reconciled: bool
) -> None:
    """After Redis is restored from older data, no order is lost and no unit is sold twice."""
    offer = on_sale({"a": 10}, strategy=name)
    first = [buy(offer, a=1).order.pk for _ in range(2)]
    older = {key: redis.dump(key) for key in redis.scan_iter("{stock}*")}
    assert older
    save_queued()
    later = [buy(offer, a=1).order.pk for _ in range(more)]
    save_queued()
    cancel_order(first[0], customer=Order.objects.get(pk=first[0]).customer_id)
    redis.flushall()
    for key, value in older.items():
        redis.restore(key, 0, value)

    if reconciled:
        reconcile(grace=0)
    buy_until_sold_out(offer)
    reconcile(grace=0)

    states = Counter(Order.objects.values_list("state", flat=True))
    assert (states["pending"], states["cancelled"]) == (10, 1)
    assert {*first[1:], *later} <= set(Order.objects.filter(state="pending").values_list("pk", flat=True))
    assert_conserved()
    assert registry.counters().reserved() == {}
    assert reconcile(grace=0) == []
