"""`/metrics`: totals over all web servers, workers and beat, and who may read them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, InterfaceError, InternalError, OperationalError, transaction
from django.test import override_settings
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString
from redis import Redis

from inventory import errors
from inventory.counters.whole import counter_key
from inventory.models import StockItem
from loadtest.tokens import access_token
from locking import registry
from shop.api.exception_handler import handle_exception, problem_of
from shop.metrics import definitions, recorder, recording, report
from shop.metrics.folder import MetricsFolder
from shop.orders import errors as order_errors
from shop.overview import requests
from shop.overview.requests import Watch
from shop.runtime import tasks
from tests.docs.pages import PAGES
from tests.factories import OnSale, new_customer, on_sale
from tests.shop.conftest import order_body
from tests.shop.metrics_process import FORKED, count_in_a_child, count_in_a_fork, recorded, wait_once_for_the_pool
from tests.shop.payment_support import session_of
from tests.shop.test_full_broker import celery
from tests.shop.test_overview_figures import figures_of
from tests.shop.web_server import ask, web_server
from tests.waiting import WAIT_TIMEOUT, wait_for

TOKEN = "a-token-of-the-operator"
PROXIED = ("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "forwarded", "via")
LABELS = re.compile(r"`(\w+)`")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """Return the values of metrics, keyed by name and labels."""
    families = text_string_to_metric_families(text)
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def value(found: Samples, metric: str, **labels: str) -> float | None:
    return found.get((metric, frozenset(labels.items())))


def read(port: int) -> Samples:
    status, kind, text = ask(port, "GET", "/metrics")
    assert (status, kind) == (200, report.CONTENT_TYPE)
    return samples(text)


def samples_if(port: int, metric: str, wanted: float, **labels: str) -> Samples | None:
    """Return the samples if this metric has this value, else None."""
    found = read(port)
    return found if value(found, metric, **labels) == wanted else None


def merged(files: list[str]) -> Samples:
    """Return the sums over some files of the metrics folder."""

    class OfFiles:
        def collect(self) -> Iterator[Any]:
            yield from MultiProcessCollector.merge(files)

    collected = CollectorRegistry(auto_describe=False)
    collected.register(OfFiles())
    return samples(generate_latest(collected).decode())


def send(port: int, offer: OnSale, customer: int, key: str = "", sku: str = "a") -> int:
    """Order one unit over HTTP, and return the response's status."""
    headers = {"Authorization": f"Bearer {access_token(customer)}", "Content_Type": "application/json"}
    body = json.dumps(order_body(offer, **{sku: 1}))
    return ask(port, "POST", "/api/orders/", body, Idempotency_Key=key or str(uuid4()), **headers)[0]


@pytest.mark.django_db
def test_waits_for_a_connection_of_the_pool_are_counted(tmp_path: Path) -> None:
    database = settings.DATABASES["default"]
    address = f"host={database['HOST']} user={database['USER']} dbname={database['NAME']}"
    seconds = FORKED.SimpleQueue()
    waiting = FORKED.Process(target=wait_once_for_the_pool, args=(tmp_path, address, seconds))
    waiting.start()
    waiting.join(60)
    assert waiting.exitcode == 0
    found = merged([str(file) for file in tmp_path.glob("*.db")])
    assert value(found, "shop_postgres_pool_waits_total") == 1, "the first did not wait"
    waited = value(found, "shop_postgres_pool_wait_seconds_total") or 0
    assert 0.002 <= waited <= seconds.get(), "in seconds, not milliseconds"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("redis")
def test_two_processes_and_a_killed_one_are_counted_together(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders through a server with two processes are counted exactly, also after one process was killed."""
    settings.METRICS, settings.METRICS_FOLDER = True, str(tmp_path / "metrics")
    monkeypatch.setattr(requests, "SPAN", 600.0)
    watch = Watch()
    assert watch() is None, "no process has counted anything yet"
    offer, folder = on_sale({"a": 20}), MetricsFolder(tmp_path / "metrics")
    customers = [new_customer() for _ in range(30)]
    variables = {"METRICS_FOLDER": str(folder.path), "METRICS_TOKEN": TOKEN, "WEB_PROCESSES": "2"}
    variables |= {"SOLD_OUT_TTL": "0", "ORDER_RATE": "99"}
    with web_server(**variables) as (port, server), ThreadPoolExecutor(8) as pool:
        wait_for(lambda: value(read(port), "shop_processes", role="web") == 2, "both processes to start")
        assert_for_this_machine_or_a_token(port)
        before = watch()
        assert (before.refused, before.p50, before.p99) == ({}, None, None)
        answers = list(pool.map(lambda customer: send(port, offer, customer, "mine"), customers))
        assert (answers.count(201), answers.count(409)) == (20, 10)
        buyer = customers[answers.index(201)]

        def by_process() -> list[float]:
            alone = [merged([str(file)]) for file in sorted(folder.path.glob("histogram_*.db"))]
            return [value(found, "shop_order_thread_wait_seconds_count") or 0 for found in alone]

        replays = 0
        while replays < 5 or not all(by_process()):
            assert send(port, offer, buyer, "mine") == 201
            replays += 1

        told = partial(samples_if, port)

        def expected(found: Samples) -> None:
            results = {name: value(found, "shop_orders_total", strategy="guarded-update", result=name)
                       for name in ("placed", "sold-out", "replayed", "queued")}  # fmt: skip
            assert results == {"placed": 20, "sold-out": 10, "replayed": replays, "queued": None}
            assert value(found, "shop_sale_refusals_total", sale=str(offer.sale), result="sold-out") == 10
            assert value(found, "shop_order_request_seconds_count", status="201") == 20 + replays
            assert value(found, "shop_order_request_seconds_count", status="409") == 10
            assert value(found, "shop_order_thread_wait_seconds_count") == 30 + replays
            assert value(found, "shop_order_placing_seconds_count", strategy="guarded-update") == 30 + replays
            assert value(found, "shop_sold_out_from_memory_total") == 0
            assert value(found, "shop_commit_seconds_count") == 20, "nobody else has committed an order"

        expected(wait_for(lambda: told("shop_order_thread_wait_seconds_count", 30 + replays), "all to be written"))
        seen = watch()
        assert list(seen.refused) == ["sold-out"], "the overview counts refusals by reason"
        assert seen.by_sale == {offer.sale: seen.refused}
        assert 0 < seen.p50 <= seen.p99
        settings.METRICS = False
        assert watch() is None
        # Negative control: one process alone has not counted all orders.
        first, second = by_process()
        assert first + second == 30 + replays > max(first, second)

        def pool_size() -> float | None:
            return value(read(port), "shop_postgres_pool_connections")

        size = settings.WEB_DATABASE_CONNECTIONS
        wait_for(lambda: pool_size() == 2 * size, "both processes to tell of their pools")
        killed, *_ = psutil.Process(server.pid).children(recursive=True)
        known = _web_processes(server.pid)
        killed.kill()
        wait_for(lambda: _web_processes(server.pid) - known, "another process to start")
        wait_for(lambda: len(folder.taken()) == 2, "it to take the slot of the dead one")
        wait_for(lambda: pool_size() == 2 * size, "it to tell of its pool")
        expected(read(port))
        assert len(list(folder.path.glob("counter_*.db"))) == 2
        assert send(port, offer, buyer, "mine") == 201
        replayed = {"strategy": "guarded-update", "result": "replayed"}
        wait_for(lambda: told("shop_orders_total", replays + 1, **replayed), "one more to be written")
        # Browsers also order by a form. It is refused here, because it has no CSRF token.
        assert ask(port, "POST", "/sales/any/buy/")[0] == 403
        wait_for(lambda: told("shop_order_request_seconds_count", 1, status="403"), "the form to be counted")


def test_the_refusals_of_very_many_sales_add_few_series() -> None:
    counter = Counter("refusals", "Refusals.", ("sale", "result"), registry=None)
    seen: set[int] = set()
    for sale in range(1, recorder.MOST_SALES + 51):
        recorder._of_sale(counter, seen, sale, "sold-out").inc()
    recorder._of_sale(counter, seen, 1, "over-limit").inc()
    found = {each.labels["sale"]: each.value for metric in counter.collect() for each in metric.samples
             if each.name == "refusals_total" and each.labels["result"] == "sold-out"}  # fmt: skip
    assert len(found) == recorder.MOST_SALES + 1
    assert (found["1"], found["other"]) == (1, 50)
    assert recorder._of_sale(counter, seen, 1, "over-limit")._value.get() == 1


def assert_for_this_machine_or_a_token(port: int) -> None:
    elsewhere = {"X_Forwarded_For": "203.0.113.9"}
    for sent, status in ((f"Bearer {TOKEN}s", 404), (TOKEN, 404), (f"Bearer {TOKEN}", 200)):
        assert ask(port, "GET", "/metrics", **elsewhere, Authorization=sent)[0] == status
    assert ask(port, "GET", "/metrics", Host="10.0.0.7:8000")[0] == 200, "Prometheus asks by IP address"
    assert ask(port, "POST", "/metrics")[0] == 404


def test_a_folder_that_cannot_be_used_stops_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(recording, "_recorder", None)
    recording.start("web", tmp_path / "file", str)
    assert recording.recorder() is None
    assert "Set METRICS_FOLDER to another folder." in caplog.text


def _web_processes(server: int) -> set[int]:
    return {each.pid for each in psutil.Process(server).children()}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_what_a_worker_does_appears(redis: Redis, tmp_path: Path) -> None:
    """The metrics show the orders that a worker saves, and its reconciliation. Each stage of an order is measured."""
    queued, sold = on_sale({"a": 5}, strategy="lua-queue"), on_sale({"b": 5}, strategy="lua")
    grouped = on_sale({"c": 9}, strategy="group-commit")
    operator = session_of(User.objects.create_superuser("root").pk)
    variables = {"METRICS_FOLDER": str(tmp_path / "metrics")}
    log = tmp_path / "web.log"
    with web_server(log=log, **variables, STOCK_LOCK_WAIT=str(LOCK_WAIT), STOCK_LOCK_TTL=str(LOCK_TTL)) as (port, _):
        assert value(read(port), "shop_processes", role="worker") == 0
        assert [send(port, queued, new_customer()) for _ in range(7)].count(202) == 5
        found = read(port)
        assert value(found, "shop_commit_seconds_count") == 0, "nothing was saved yet"
        assert send(port, grouped, new_customer(), sku="c") == 201
        found = wait_for(lambda: stages(read(port), 1, 1, 0), "the commit and the batch to be written")
        assert value(found, "shop_queue_orders") == 5
        age = value(found, "shop_queue_oldest_seconds") or 0
        assert 0 < age < WAIT_TIMEOUT
        assert value(found, "shop_broken_skus") is None, "nothing was reconciled yet"
        schedule = str(tmp_path / "schedule")
        worker = celery(tmp_path, "worker", "--pool", "threads", LOG_FORMAT="json", **variables)
        with worker as part, celery(tmp_path, "beat", "--schedule", schedule, **variables):
            told = partial(samples_if, port)
            start = 3 * WAIT_TIMEOUT  # `web_server` also waits this long for a start.
            wait_for(lambda: told("shop_queue_done_total", 5, result="saved"), "the orders to be saved", timeout=start)
            found = wait_for(lambda: stages(read(port), 2, 1, 5) or stages(read(port), 3, 1, 5), "all to be written")
            assert value(found, "shop_queue_wait_seconds_sum") > 5 * age, (
                "each order has waited for the worker to start"
            )
            redis.decrby(counter_key("b"), 2)
            tasks.reconcile.delay()
            wait_for(lambda: value(read(port), "shop_broken_skus") is not None, "the worker to reconcile")
            found = wait_for(lambda: told("shop_drift_units", 2), "the drift to be told")
            assert value(found, "shop_repairs_total") == 1
            assert value(found, "shop_broken_skus") == 0
            assert value(found, "shop_queue_orders") == value(found, "shop_queue_oldest_seconds") == 0
            wait_for(lambda: told("shop_processes", 1, role="beat"), "beat to appear", timeout=start)
            assert value(read(port), "shop_processes", role="worker") == 1
            wait_for(lambda: overview(port, operator)["Beat"] == "alive", "the overview to say so")
            assert overview(port, operator)["Workers"] == "1"
            (repaired,) = [line for line in map(json.loads, part.lines("{")) if "Repaired" in line["message"]]
            assert (repaired["task"], repaired["level"]) == ("shop.runtime.tasks.reconcile", "WARNING")
        wait_for(lambda: value(read(port), "shop_processes", role="worker") == 0, "the worker to be gone")
        found = read(port)
        assert value(found, "shop_processes", role="beat") == 0
        assert value(found, "shop_queue_done_total", result="saved") == 5, "its counts stay"
        assert value(found, "shop_drift_units") is None, "what it said of its present is gone"
        assert_waits_are_told(port, log, operator, redis, grouped, queued)
    assert sold.sale


LOCK_WAIT, LOCK_TTL = 0.3, 1.0
"""Settings of the web server whose metrics are read, in seconds."""


def assert_waits_are_told(port: int, log: Path, operator: str, redis: Redis, grouped: OnSale, sold_out: OnSale) -> None:
    """Let orders wait for a batch, for a stock lock, and for a connection of the pool, and let one lose its lock.

    The test locks rows. On each connection of the web process an order waits for a row, and one more order waits for a
    connection.
    """
    size = settings.WEB_DATABASE_CONNECTIONS
    locked, plain = on_sale({"d": 5}, strategy="redis-lock"), on_sale({"e": 5})
    busy = 4 + 1 + (size - 2) + 1  # the batch, the holder of the lock, the other connections, one without
    before = read(port)

    def grown(metric: str, **labels: str) -> float:
        return (value(read(port), metric, **labels) or 0) - (value(before, metric, **labels) or 0)

    with ThreadPoolExecutor(busy + 1) as pool:

        def order(times: int, offer: OnSale, sku: str) -> list[Future[int]]:
            return [pool.submit(send, port, offer, customer, sku=sku) for customer in map(new_customer, [""] * times)]

        assert "p99" not in overview(port, operator), "nobody has ordered in the last seconds"
        assert {each.result() for each in order(12, sold_out, "a")} == {409}
        wait_for(lambda: grown("shop_order_request_seconds_count", status="409") == 12, "all to be written")
        seen = wait_for(lambda: found if "p99" in (found := overview(port, operator)) else None, "the figures")
        assert 12 / 20 <= float(seen["Refused/s: sold-out"]) <= 12
        bounds = [0.0, *definitions.LATENCIES, math.inf]
        within = [grown("shop_order_request_seconds_bucket", status="409", le=floatToGoString(each)) for each in bounds]
        for name, share in (("Orders answered, p50", 0.5), ("p99", 0.99)):
            at = next(at for at, count in enumerate(within) if count >= share * 12)
            assert bounds[at - 1] <= milliseconds(seen, name) / 1000 <= bounds[at], "the same as in /metrics"

        with transaction.atomic():
            list(StockItem.objects.select_for_update().filter(sku__in="cde"))
            sent = [*order(4, grouped, "c"), *order(2, locked, "d")]
            wait_for(lambda: any(each.done() for each in sent), "one to give up its wait for the lock")
            assert registry.force_release(redis, "stock:d", by="this test")
            sent += order(size - 1, plain, "e")
            gauges = {"web_threads_busy": busy, "postgres_pool_idle": 0, "postgres_pool_waiting": 1}

            def all_wait() -> bool:
                found = read(port)
                return all(value(found, f"shop_{name}") == wanted for name, wanted in gauges.items())

            wait_for(all_wait, "the others to wait")
            wait_for(lambda: "The lease of lock 'stock:d' was lost" in log.read_text(), "the holder to notice")
        assert sorted(each.result() for each in sent) == [201] * busy + [503]
    assert send(port, locked, new_customer(), sku="d") == 201, "this one keeps its lock"
    lock = {"strategy": "redis-lock"}
    wait_for(lambda: grown("shop_lock_hold_seconds_count", **lock) == 2, "all to be written")
    assert grown("shop_lock_wait_seconds_count", **lock, granted="yes") == 2
    assert grown("shop_lock_wait_seconds_count", **lock, granted="no") == 1
    assert grown("shop_lock_wait_seconds_sum", **lock, granted="no") >= LOCK_WAIT
    assert grown("shop_lock_hold_seconds_sum", **lock) >= LOCK_WAIT, "as long as the other has waited"
    assert grown("shop_lock_leases_lost_total", **lock) == 1
    assert grown("shop_group_commit_orders_sum") == 4
    assert 1 <= grown("shop_group_commit_orders_count") < 4, "some were saved together"
    assert value(before, "shop_postgres_pool_connections") == size
    assert grown("shop_postgres_pool_waits_total") >= 1
    wait_for(lambda: grown("shop_postgres_pool_wait_seconds_total") > 0, "the wait to be written when it has ended")
    assert milliseconds(overview(port, operator), "p99") >= 1000 * LOCK_WAIT, "the slowest have waited"


def milliseconds(figures: dict[str, str], name: str) -> int:
    return int(figures[name].removesuffix(" ms"))


def overview(port: int, session: str) -> dict[str, str]:
    """Return the figures of the overview that this web server shows to an operator."""
    return figures_of(ask(port, "GET", "/admin/live/", Cookie=f"{settings.SESSION_COOKIE_NAME}={session}")[2])


def stages(found: Samples, commits: int, batches: int, queued: int) -> Samples | None:
    """Return the samples if they contain exactly these numbers of commits, waits for a batch and orders taken off the
    queue. Otherwise return None.
    """
    names = ("shop_commit_seconds", "shop_group_commit_wait_seconds", "shop_queue_wait_seconds")
    counted = [value(found, f"{name}_count") for name in names]
    return found if counted == [commits, batches, queued] else None


@pytest.mark.usefixtures("redis")
def test_without_redis_the_rest_is_told(redis_gone: Any) -> None:
    with redis_gone():
        found = {metric.name: metric.samples[0].value for metric in report.queue()}
    assert found == {"shop_redis_up": 0}


class TestFolder:
    """Each process counts in its own files (a slot) of the metrics folder."""

    def test_counts_of_a_killed_process_stay_and_its_gauges_go(self, tmp_path: Path) -> None:
        folder = MetricsFolder(tmp_path / "metrics")
        with recorded(folder, "web", 3) as first, recorded(folder, "web", 4):
            assert folder.taken() == ["web-0", "web-1"]
            assert folder.path.stat().st_mode & 0o777 == 0o700, "it is private"
            files = [file.stat() for file in folder.path.glob("*.db")]
            assert files
            assert all(file.st_blocks * 512 >= file.st_size > 0 for file in files), "their space is reserved"
            found = merged(folder.files())
            assert value(found, "shop_sold_out_from_memory_total") == 7
            assert value(found, "shop_web_threads_busy") == 14
            first.kill()
            first.join(WAIT_TIMEOUT)
            assert folder.taken() == ["web-1"]
            found = merged(folder.files())
            assert value(found, "shop_sold_out_from_memory_total") == 7
            assert value(found, "shop_web_threads_busy") == 7
            # Negative control: sum all files, as prometheus_client does.
            everything = merged([str(file) for file in folder.path.glob("*.db")])
            assert value(everything, "shop_web_threads_busy") == 14
            # The next process reuses the dead one's files, and its counts go on.
            with recorded(folder, "web", 1):
                assert folder.taken() == ["web-0", "web-1"]
                found = merged(folder.files())
                assert value(found, "shop_sold_out_from_memory_total") == 8
                assert value(found, "shop_web_threads_busy") == 14
        # When all processes have ended, the next one counts from 0.
        with recorded(folder, "beat", 1):
            assert value(merged(folder.files()), "shop_sold_out_from_memory_total") == 1
            with recorded(folder, "web", 2):
                assert value(merged(folder.files()), "shop_sold_out_from_memory_total") == 3

    @pytest.mark.slow
    def test_what_was_reported_last_is_written_at_the_end(self, tmp_path: Path) -> None:
        """Last counts are written when a process ends, even a `multiprocessing` process, which calls no `atexit`."""
        folder = MetricsFolder(tmp_path / "metrics")
        with recorded(folder, "web", 1, count_in_a_child):
            assert value(merged(folder.files()), "shop_sold_out_from_memory_total") == 2

    def test_a_child_after_fork_has_a_slot_of_its_own(self, tmp_path: Path) -> None:
        """A forked child takes its own slot, as in Celery's pool of processes."""
        folder = MetricsFolder(tmp_path / "metrics")
        with recorded(folder, "worker", 1, count_in_a_fork) as parent:
            wait_for(lambda: folder.taken() == ["worker-0", "worker-1"], "the child to take a slot")
            wait_for(
                lambda: value(merged(folder.files()), "shop_sold_out_from_memory_total") == 3, "both to have counted"
            )
            for child in psutil.Process(parent.pid).children():
                child.kill()


@pytest.mark.parametrize("found", [[], [0.5], [0.0, 1.0, 1.0, 1.5, 2.0, 7.0, 1000.0]])
def test_values_are_observed_together_as_one_by_one(found: list[float]) -> None:
    together, one_by_one = (Histogram("a", "b", buckets=(1, 2, 5), registry=None) for _ in range(2))
    recorder._observe_all(together, found)
    for seconds in found:
        one_by_one.observe(seconds)

    def told(histogram: Histogram) -> list[Any]:
        (metric,) = histogram.collect()
        return [sample for sample in metric.samples if sample.name != "a_created"]

    assert told(together) == told(one_by_one)


@pytest.mark.parametrize(
    ("token", "address", "headers", "may"),
    [
        ("secret", "127.0.0.1", {}, True),
        ("secret", "::1", {}, True),
        ("secret", "192.0.2.7", {}, False),
        ("secret", "", {}, False),
        *(("secret", "127.0.0.1", {name: "192.0.2.7"}, False) for name in PROXIED),
        ("secret", "192.0.2.7", {"authorization": "Bearer secret"}, True),
        ("secret", "192.0.2.7", {"authorization": "Bearer secre"}, False),
        ("secret", "192.0.2.7", {"authorization": "Bearer "}, False),
        ("secret", "192.0.2.7", {"authorization": "Bearer \u00e9"}, False),
        ("", "192.0.2.7", {"authorization": "Bearer "}, False),
    ],
)
def test_who_may_read(token: str, address: str, headers: dict[str, str], may: bool) -> None:
    with override_settings(METRICS_TOKEN=token):
        assert report.may_read(address, headers) is may


@pytest.mark.parametrize(
    "error",
    [
        errors.SoldOut("a", wanted=1, left=0),
        errors.OverLimit("a", limit=1, taken=1),
        errors.UnknownCustomer(1),
        errors.StockElsewhere("a"),
        errors.StockReserved("a"),
        errors.StockBusy("a"),
        errors.UnknownStrategy("a", []),
        order_errors.PriceChanged([]),
        order_errors.UnknownSale("a"),
        order_errors.UnknownProduct(1),
        OperationalError("a"),
        InterfaceError("a"),
        InternalError("a"),
        IntegrityError("a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_counts_as_the_problem_of_its_answer(error: Exception) -> None:
    """One error of each kind that has its own answer or its own text. Others come from the table of `problem_of`."""
    answer = handle_exception(error, {"request": None})
    assert json.loads(answer.content)["type"] == problem_of(error).type


def test_a_bug_counts_as_internal() -> None:
    assert handle_exception(KeyError("a"), {"request": None}) is None
    assert problem_of(KeyError("a")).slug == "internal"


def test_the_page_for_operators_has_all_metrics_with_their_labels() -> None:
    table = PAGES["docs/metrics.md"].partition("## Metrics")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `shop_")]
    documented = {LABELS.findall(name)[0]: tuple(LABELS.findall(labels)) for name, labels in rows}
    assert documented == {metric.name: metric.labels for metric in definitions.METRICS}
