"""While a server is away, repeated work logs one line when the outage begins and one when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inventory.caching import Cache
from inventory.outages import ANSWERING
from shop.api import health, throttles
from shop.orders import expiry
from shop.orders.expiry import expire_unpaid
from shop.runtime import tasks
from tests.factories import on_sale
from tests.shop.conftest import Buyer, Gone, assert_problem, buy, make_due, order_body

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


@pytest.mark.parametrize("work", ["Saving queued orders", "Reconciling"])
def test_without_redis_a_task_logs_one_line(redis_gone: Gone, caplog: pytest.LogCaptureFixture, work: str) -> None:
    on_sale({"a": 3}, strategy="lua-queue")
    with redis_gone():
        for _ in range(4):
            run(TASKS[work])
    run(TASKS[work])
    assert lines(caplog, work) == fails_and_works_again(work, 4)


def test_with_a_full_redis_a_task_logs_one_line(full: Gone, caplog: pytest.LogCaptureFixture) -> None:
    with full():
        for _ in range(4):
            run(tasks.save_queued_orders)
    run(tasks.save_queued_orders)
    assert lines(caplog, "Saving") == fails_and_works_again("Saving queued orders", 4)


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


@pytest.mark.parametrize("work", TASKS)
def test_without_postgres_a_task_logs_one_line(
    postgres_gone: Gone, caplog: pytest.LogCaptureFixture, work: str
) -> None:
    buy(on_sale({"a": 3}, strategy="lua-queue"), a=1)
    with postgres_gone():
        for _ in range(4):
            run(TASKS[work])
    run(TASKS[work])
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
    redis_gone: Gone, buyer: Buyer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Redis, orders and log-ins go on with limits per process, and log one line each."""
    monkeypatch.setattr(throttles, "seen", throttles.Seen())
    monkeypatch.setattr(throttles, "time", SimpleNamespace(time=lambda: 1_000_000.25))
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
    redis_gone: Gone, buyer: Buyer, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.ORDER_RATE = 3
    monkeypatch.setattr(throttles, "seen", throttles.Seen())
    monkeypatch.setattr(throttles, "time", SimpleNamespace(time=lambda: 1_000_000.25))
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
