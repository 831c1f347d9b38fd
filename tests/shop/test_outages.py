"""While a server is away: one log line when the outage begins and one when it ends, and how old an offer may be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from inventory import caching
from inventory.caching import Cache
from inventory.outages import ANSWERING, Breaker
from shop import limits
from shop.api import health
from shop.orders import expiry
from shop.orders.expiry import expire_unpaid
from shop.runtime import tasks
from shop.sales import offers
from tests.factories import on_sale
from tests.shop.conftest import Buyer, Gone, assert_problem, buy, make_due, order_body, raising

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

TASKS = {
    "Saving queued orders": tasks.save_queued_orders,
    "Expiring unpaid orders": tasks.expire_unpaid_orders,
    "Advancing sales": tasks.advance_sales,
    "Analysing tables": tasks.analyze_tables,
    "Reconciling": tasks.reconcile,
}


@pytest.fixture(autouse=True)
def _a_clock_that_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inventory.outages.time", SimpleNamespace(monotonic=lambda: 1000.0))


def run(task: Any) -> None:
    """Run a task as a worker does at its last try."""
    assert task.apply(retries=task.max_retries).successful()


def lines(caplog: pytest.LogCaptureFixture, work: str) -> list[str]:
    """Return the log lines about some work, without reasons. Check that none has a traceback."""
    assert not any(record.exc_info for record in caplog.records)
    return [record.message.partition(" is tried")[0] for record in caplog.records if record.message.startswith(work)]


def fails_and_works_again(work: str, failures: int) -> list[str]:
    return [f"{work} fails, and", f"{work} works again, after {failures} failures in 0 s."]


@pytest.mark.parametrize(
    ("server", "work"),
    [
        *(("redis_gone", work) for work in ("Saving queued orders", "Reconciling")),
        ("full", "Saving queued orders"),
        *(("postgres_gone", work) for work in TASKS),
    ],
)
def test_without_a_server_a_task_logs_one_line(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, server: str, work: str
) -> None:
    gone: Gone = request.getfixturevalue(server)
    buy(on_sale({"a": 3}, strategy="lua-queue"), a=1)
    with gone():
        for _ in range(4):
            run(TASKS[work])
    run(TASKS[work])
    assert lines(caplog, work) == fails_and_works_again(work, 4)


def test_without_redis_a_sale_that_cannot_be_preheated_logs_one_line(
    redis_gone: Gone, caplog: pytest.LogCaptureFixture
) -> None:
    offer = on_sale({"a": 3}, strategy="lua", preheat=False)
    with redis_gone():
        for _ in range(4):
            run(tasks.advance_sales)
    run(tasks.advance_sales)
    work = f"Preheating or unloading sale {offer.sale}"
    assert lines(caplog, work) == fails_and_works_again(work, 4)


def test_saving_is_tried_again_before_beat_comes(postgres_gone: Gone, caplog: pytest.LogCaptureFixture) -> None:
    buy(on_sale({"a": 3}, strategy="lua-queue"), a=1)
    with postgres_gone():
        tasks.save_queued_orders.apply()
    run(tasks.save_queued_orders)
    assert lines(caplog, "Saving") == fails_and_works_again("Saving queued orders", 9)


def test_while_postgres_is_away_orders_are_not_tried_one_by_one(
    postgres_gone: Gone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offer = on_sale({"a": 30})
    for _ in range(10):
        buy(offer, a=1)
    make_due()
    expire = expiry._expire
    tried = []

    def away(ids: Any) -> int:
        tried.append(len(ids))
        with postgres_gone():
            return expire(ids)

    with monkeypatch.context() as patched:
        patched.setattr(expiry, "_expire", away)
        run(tasks.expire_unpaid_orders)
    assert tried == [10]
    assert lines(caplog, "Expiring") == ["Expiring unpaid orders fails, and"]
    assert expire_unpaid() == 10


def test_without_redis_requests_log_one_line(
    redis_gone: Gone, buyer: Buyer, caplog: pytest.LogCaptureFixture, in_one_second: None
) -> None:
    """Without Redis, orders and log-ins go on with limits per process, and log one line each."""
    body, log_in = order_body(on_sale({"a": 9}), a=1), {"username": "nobody", "password": "wrong"}

    def requests() -> None:
        for number in range(4):
            assert buyer.order(body, key=f"key-{number}").status_code in (200, 201)
            assert buyer.post("/api/token/", log_in, format="json").status_code == 401

    with redis_gone():
        requests()
    requests()
    limiting, counting = "Limiting order requests", "Counting guesses of passwords in Redis"
    # The first request of a second does not query Redis.
    assert lines(caplog, limiting) == fails_and_works_again(limiting, 3)
    assert lines(caplog, counting) == fails_and_works_again(counting, 4)
    assert len(caplog.records) == 4


def test_without_redis_each_process_counts_requests(
    redis_gone: Gone, buyer: Buyer, in_one_second: None, settings: Any
) -> None:
    settings.ORDER_RATE = 3
    body = order_body(on_sale({"a": 9}), a=1)
    with redis_gone():
        answers = [buyer.order(body, key=f"key-{number}").status_code for number in range(5)]
    assert answers == [201, 201, 201, 429, 429]


def test_without_postgres_requests_log_one_line(
    postgres_gone: Gone, buyer: Buyer, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.OFFER_TTL = 0
    body = order_body(on_sale({"a": 9}), a=1)
    with postgres_gone():
        for number in range(4):
            assert_problem(buyer.order(body, key=f"key-{number}"), 503, "unavailable")
    assert buyer.order(body, key="key-0").status_code == 201
    assert lines(caplog, ANSWERING) == fails_and_works_again(ANSWERING, 4)
    assert [each for each in caplog.records if "fails" not in each.message and "works" not in each.message] == []


def test_the_health_check_ends_the_outage(
    postgres_gone: Gone, buyer: Buyer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "cache", Cache())
    with postgres_gone():
        assert_problem(buyer.get("/api/sales/"), 503, "unavailable")
    assert buyer.get("/health/").status_code == 200
    assert lines(caplog, ANSWERING) == fails_and_works_again(ANSWERING, 1)


# Cached offers while Postgres does not respond

away = raising(OperationalError("no answer"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A monotonic clock that the test sets: `clock.now`."""
    clock = SimpleNamespace(now=1000.0)
    for module in (caching, offers):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(offers, "cache", caching.Cache())
    monkeypatch.setattr(offers, "outage", Breaker(limits.REQUEST, clock=lambda: clock.now))
    return clock


def test_an_offer_is_used_for_a_minute_and_not_longer(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    sale = on_sale({"a": 1}).sale
    known = offers.get(sale)
    monkeypatch.setattr(offers, "read", away)
    clock.now += 1 + offers.OUTAGE - 0.1
    assert offers.get(sale) is known
    clock.now += 0.1
    with pytest.raises(OperationalError):
        offers.get(sale)


def test_one_caller_asks_again_after_a_second(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    sale = on_sale({"a": 1}).sale
    offers.get(sale)
    asked: list[int] = []

    def away_while_others_ask(sale: int) -> None:
        asked.append(sale)
        if len(asked) == 2:
            assert offers.get(sale) is not None, "another caller does not ask while this one waits"
        away(sale)

    monkeypatch.setattr(offers, "read", away_while_others_ask)
    clock.now += 2
    for _ in range(5):
        assert offers.get(sale) is not None
    assert len(asked) == 1
    clock.now += offers.outage.retry
    for _ in range(5):
        assert offers.get(sale) is not None
    assert len(asked) == 2


@pytest.mark.parametrize("ask", [offers.get, offers.get_newest], ids=["", "rereads the price"])
def test_any_answer_ends_the_outage(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, ask: Any) -> None:
    """Any response of Postgres ends the outage. After that, cached offers expire as early as before the outage."""
    sale = on_sale({"a": 1}).sale
    known = offers.get(sale)
    with monkeypatch.context() as silenced:
        silenced.setattr(offers, "read", away)
        clock.now += 2
        assert offers.get(sale) is known
    clock.now += offers.outage.retry
    newest = ask(sale)
    assert offers.get(sale) is newest is not known
    clock.now += 1
    assert offers.get(sale) is not newest


def test_a_caller_with_a_young_offer_takes_no_turn_to_ask(clock: SimpleNamespace, settings: Any) -> None:
    settings.OFFER_TTL = 10
    sale = on_sale({"a": 1}).sale
    young = offers.get(sale)
    offers.outage.begin()
    clock.now += offers.outage.retry
    assert offers.get(sale) is young
    assert not offers.outage.is_another_callers(), "the turn is still to be taken"
