"""`manage.py rush` on a whole shop: verdicts, messages, and output for programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from redis import Redis

from inventory.models import StockItem
from inventory.strategies.registry import DEFAULT, NAMES
from lab.models import RungOrder
from loadtest import outcome
from loadtest.burst import Burst
from loadtest.local_shop import free_port
from loadtest.management.commands.rush import connection_warning
from loadtest.preparation import create_customers
from loadtest.results import Results
from loadtest.verdict import NoVerdict, compute_verdict, holds, summarize
from shop.orders.queued import save_queued
from tests.factories import OnSale, on_sale
from tests.loadtest.conftest import CHECKOUT, Manage, Verdicts, python, rush_all
from tests.shop.conftest import buy

pytestmark = pytest.mark.slow

KEYS = [
    *("strategy", "stock", "clients", "attempted", "sold", "refused", "errors", "oversold", "conserved"),
    *("orders_per_s", "refusals_per_s", "p50_ms", "p99_ms"),
]
ALL = [argument for strategy in NAMES for argument in ("--strategy", strategy)]


BURSTS = {
    "a hundred units": (["--stock", "100"], {"stock": 100, "attempted": 200, "refused": 100, "sold": 100}),
    "the last unit": (["--stock", "1"], {"attempted": 200, "sold": 1, "refused": 199}),
    # With this many attempts, some of the last buyers want only one unit, so the last unit is sold.
    "carts": (["--stock", "20", "--skus", "3", "--attempts", "300"], {"stock": 60, "sold": 60}),
}


@pytest.fixture(scope="module", params=BURSTS)
def burst(manage: Manage, request: pytest.FixtureRequest) -> tuple[Verdicts, dict[str, Any]]:
    """Run one burst per strategy. Return the verdicts and the figures to expect."""
    options, expected = BURSTS[request.param]
    return rush_all(manage, *ALL, *options, "--clients", "200"), expected


@pytest.mark.parametrize("strategy", NAMES)
def test_every_unit_is_sold_once(burst: tuple[Verdicts, dict[str, Any]], strategy: str) -> None:
    (status, results), expected = burst
    result = results[strategy]
    assert status == 0
    assert list(result)[: len(KEYS)] == KEYS
    clean = {"errors": 0, "oversold": 0, "on_hand": 0, "missing": 0, "unserved": 0, "conserved": True, "holds": True}
    assert (expected | clean | {"strategy": strategy, "clients": 200}).items() <= result.items()
    assert result["orders_per_s"] > 0
    assert 0 < result["p50_ms"] <= result["p99_ms"]


def test_the_time_limit_ends_the_burst_with_a_verdict(manage: Manage, shop: str) -> None:
    burst = ("--stock", "20000", "--clients", "10", "--seconds", "3")
    status, results = rush_all(manage, "--url", shop, *burst)
    result = results[DEFAULT]
    assert status == 0
    assert 0 < result["sold"] == result["answered"] == result["attempted"] < 20000
    assert (result["errors"], result["conserved"]) == (0, True)


@pytest.mark.django_db
def test_more_buyers_than_open_files_are_refused_before_the_burst(settings: Any) -> None:
    """The code runs in a separate process, because a process cannot raise its lowered limit again."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 500))\n"
        "import django; django.setup()\n"
        "from loadtest.rush import Rush, RushError\n"
        "try: Rush(clients=300).run('http://127.0.0.1:9')\n"
        "except RushError as error: print(error)\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = python(os.environ, "-c", code, DJANGO_SETTINGS_MODULE="shop.runtime.settings")
    message, limits = done.stdout.splitlines()
    assert message.startswith("This process may open 500 files, too few for 300 buyers and Locust itself.")
    assert "--clients 244" in message
    assert limits == "500 500"
    # More buyers than connections of the shop are a warning.
    assert connection_warning(10_000) == ""
    settings.WEB_PROCESSES, settings.WEB_CONNECTIONS = 2, 1024
    assert connection_warning(2048) == ""
    assert connection_warning(2049).startswith("The shop accepts 2,048 connections")


@pytest.mark.django_db
def test_there_can_be_more_customers_and_orders_than_parameters_of_a_statement() -> None:
    first = create_customers(65_600)
    assert len(set(first)) == 65_600
    assert create_customers(3) == first[:3]
    burst = Burst("guarded-update", "", 1, {"a": 1}, "9.90", 1, 1, customers=[])
    assert outcome.count_missing(burst, [str(uuid4()) for _ in range(65_600)]) == 65_600


@pytest.mark.parametrize(
    ("figures", "sound", "line"),
    [
        ({}, True, "conserved: 100 of 100 sold, each once"),
        ({"errors": 7}, True, "conserved: 100 of 100 sold, each once; 7 buyers received no answer"),
        ({"errors": 1}, True, "conserved: 100 of 100 sold, each once; 1 buyer received no answer"),
        ({"sold": 96, "on_hand": 4, "unserved": 1}, False, "BROKEN: 1 refused although enough units were left"),
        ({"sold": 101, "on_hand": -1, "conserved": False, "oversold": 1}, False, "BROKEN: 1 oversold, -1 on hand"),
        ({"on_hand": -3, "sold": 100, "conserved": False}, False, "BROKEN: -3 on hand"),
        ({"sold": 99, "conserved": False}, False, "BROKEN: 1 units unaccounted for"),
        ({"missing": 2}, False, "BROKEN: 2 orders missing"),
    ],
    ids=["sound", "unanswered", "one unanswered", "unserved", "oversold", "below zero", "drift", "missing"],
)
def test_the_summary_says_what_is_broken(figures: dict[str, object], sound: bool, line: str) -> None:
    verdict = {"stock": 100, "sold": 100, "on_hand": 0, "errors": 0, "oversold": 0, "missing": 0, "unserved": 0}
    verdict |= {"conserved": True, **figures}
    assert (holds(verdict), summarize(verdict)) == (sound, line)


def burst_of(offer: OnSale, strategy: str, units: int) -> Burst:
    return Burst(strategy, "", offer.sale, offer.products, offer.price, units, units, customers=[])


@pytest.mark.django_db(transaction=True)
def test_a_confirmed_order_without_a_row_is_missing(redis: Redis) -> None:
    offer = on_sale({"a": 1})
    order = buy(offer, a=1).order
    confirmed = [str(order.pk), str(uuid4())]
    assert outcome.count_missing(burst_of(offer, "guarded-update", 1), confirmed) == 1
    # An order of a rung has a row for each item, and counts once.
    burst = Burst("", "subtract-in-sql", 1, {"a": 1, "b": 2}, "9.90", 1, 1, customers=[])
    saved = uuid4()
    RungOrder.objects.bulk_create(RungOrder(order=saved, customer=1, key="k", sku=sku, quantity=1) for sku in "ab")
    assert outcome.count_missing(burst, [str(saved), str(uuid4())]) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("left", [2, 1], ids=["enough left", "too few left"])
def test_a_rejected_order_is_counted(redis: Redis, left: int) -> None:
    offer = on_sale({"a": 2}, strategy="lua-queue")
    buy(offer, a=2)
    StockItem.objects.update(on_hand=1)
    save_queued()
    StockItem.objects.update(on_hand=left)
    verdict = compute_verdict(burst_of(offer, "lua-queue", 2), Results(), host="", clients=1)
    assert (verdict["rejected"], verdict["unserved"]) == (1, int(left == 2))
    assert left == 1 or not holds(verdict)


@pytest.mark.django_db(transaction=True)
def test_an_order_that_is_still_queued_is_not_missing(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """While orders wait in the queue, there is no verdict. Otherwise a sound strategy would be called broken."""
    monkeypatch.setattr(outcome, "QUEUE_SECONDS", 0.0)
    offer, results = on_sale({"a": 1}, strategy="lua-queue"), Results()
    with results.attempt() as attempt:
        order = buy(offer, a=1).order
        attempt.sold(str(order.pk))
    with pytest.raises(NoVerdict, match="1 orders were confirmed but not saved, and 1 wait in the queue"):
        compute_verdict(burst_of(offer, "lua-queue", 1), results, host="", clients=1)
    save_queued()
    verdict = compute_verdict(burst_of(offer, "lua-queue", 1), results, host="", clients=1)
    assert (verdict["missing"], verdict["sold"], holds(verdict)) == (0, 1, True)


def test_without_json_the_verdict_is_a_line(manage: Manage) -> None:
    done = manage("rush", "--stock", "3", "--clients", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{DEFAULT}: conserved: 3 of 3 sold, each once"


def refuses(url: str) -> str:
    with pytest.raises(CommandError, match="No healthy shop answers at") as refused:
        call_command("rush", url=url)
    assert refused.value.returncode == 2
    return str(refused.value)


def test_a_url_that_is_none_or_that_no_shop_answers_at_is_reported() -> None:
    for url in ("shop", "127.0.0.1:8000", "http://127.0.0.1:port", "http://two words", "http://[::1"):
        refuses(url)
    url = f"http://127.0.0.1:{free_port()}"
    assert f"{url}/health/" in refuses(url)
    # A server such as Valkey answers the request with an error of its own protocol.
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"-ERR unknown command\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        refuses(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_a_burst_that_nobody_was_served_in_has_no_verdict(manage: Manage, shop: str) -> None:
    burst = ("--strategy", "lua", "--stock", "4000", "--quantity", "2000", "--clients", "3")
    done = manage("rush", "--url", shop, *burst, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "The burst ended without a verdict: nobody was served" in done.stderr


def test_several_sellers_sell_in_the_given_order(manage: Manage) -> None:
    sellers = ("--strategy", "lua-queue", "--rung", "compute-and-overwrite", "--strategy", "row-lock")
    status, results = rush_all(manage, *sellers, "--stock", "20", "--clients", "20")
    assert list(results) == ["lua-queue", "compute-and-overwrite", "row-lock"]
    assert [result["conserved"] for result in results.values()] == [True, False, True]
    assert status == 1


def test_json_lines_have_progress_and_verdicts(environment: dict[str, str], shop: str) -> None:
    with json_lines(environment, "--url", shop, "--rung", "no-such-rung", "--strategy", "lua", "--stock", "50") as rush:
        assert rush.stdout is not None
        lines = [json.loads(line) for line in rush.stdout]
        status = rush.wait()
    first, *progress, verdict = [line for line in lines if line["name"] == "lua"]
    assert first == {"name": "lua", "wanted": 100}
    assert {"attempted", "answered", "refused", "busy", "p50_ms", "p99_ms"} <= set(progress[-1])
    assert [line["answered"] for line in progress] == sorted(line["answered"] for line in progress)
    assert (verdict["holds"], verdict["result"]["sold"]) == (True, 50)
    wanted, error = [line for line in lines if line["name"] == "no-such-rung"]
    assert wanted == {"name": "no-such-rung", "wanted": 100}
    assert "the lab has no rung no-such-rung" in error["error"]
    assert status == 2


def test_a_rush_ends_when_its_reader_is_gone(environment: dict[str, str]) -> None:
    with json_lines(environment, "--strategy", "lua", "--stock", "20000", "--clients", "20") as rush:
        assert rush.stdout is not None
        assert rush.stdin is not None
        next(line for line in rush.stdout if "answered" in line)
        rush.stdin.close()
        assert not any("result" in line for line in rush.stdout)
        assert rush.wait(timeout=60) != 0


@contextmanager
def json_lines(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "manage.py", "rush", "--json-lines", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=CHECKOUT, env=environment, text=True, **pipes) as rush:
        yield rush


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--stock", "0"), "--stock"),
        (("--stock", "9" * 20), "--stock"),
        (("--clients", "-1"), "--clients"),
        (("--clients", "20001"), "one machine can run at most 20,000 buyers"),
        (("--strategy", "compute-and-overwrite"), "needs --rung"),
        (("--strategy", "redlock"), "REDLOCK_URLS for redlock"),
        (("--rung", "lua"), "lua is a strategy: use --strategy lua"),
        (("--help",), "Exit status 0 when no unit was sold twice and no order was lost"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_options_are_checked_before_anything_starts(manage: Manage, option: tuple[str, ...], message: str) -> None:
    done = manage("rush", *option)
    assert done.returncode == (0 if option == ("--help",) else 2)
    assert message in " ".join((done.stdout + done.stderr).split())
