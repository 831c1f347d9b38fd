"""One burst, one verdict: the command as a person uses it, on a whole shop."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from inventory.models import StockItem
from inventory.strategies.registry import NAMES
from lab.ladder.stock import RUNGS
from loadtest import audit, burst
from loadtest.management.commands.rush import too_many
from loadtest.results import Results
from shop.orders.place import place_order
from shop.orders.queued import save_queued
from tests.factories import new_customer, on_sale
from tests.loadtest.conftest import CHECKOUT, Manage, Verdicts, rush_of_all

pytestmark = pytest.mark.slow

KEYS = [
    *("strategy", "stock", "clients", "attempted", "sold", "refused", "errors", "oversold", "conserved"),
    *("orders_per_s", "refusals_per_s", "p50_ms", "p99_ms"),
]


ALL = [argument for strategy in NAMES for argument in ("--strategy", strategy)]


@pytest.fixture(scope="module")
def bursts(manage: Manage) -> Verdicts:
    return rush_of_all(manage, *ALL, "--stock", "100", "--clients", "200")


@pytest.fixture(scope="module")
def last_units(manage: Manage) -> Verdicts:
    return rush_of_all(manage, *ALL, "--stock", "1", "--clients", "200")


@pytest.fixture(scope="module")
def carts(manage: Manage) -> Verdicts:
    # So many that some of those who come last surely want the one unit that may be left, and nothing else.
    return rush_of_all(manage, *ALL, "--stock", "20", "--skus", "3", "--clients", "200", "--attempts", "300")


@pytest.mark.parametrize("strategy", NAMES)
def test_a_sound_strategy_sells_every_unit_once(bursts: Verdicts, strategy: str) -> None:
    status, results = bursts
    result = results[strategy]
    assert status == 0
    assert list(result)[: len(KEYS)] == KEYS
    expected = {"strategy": strategy, "stock": 100, "clients": 200, "attempted": 200, "sold": 100, "refused": 100}
    assert expected.items() <= result.items()
    assert (result["errors"], result["oversold"], result["on_hand"], result["missing"]) == (0, 0, 0, 0)
    assert result["conserved"] is True
    assert result["orders_per_s"] > 0
    assert 0 < result["p50_ms"] <= result["p99_ms"]


@pytest.mark.parametrize("strategy", NAMES)
def test_of_two_hundred_who_want_the_last_unit_one_gets_it(last_units: Verdicts, strategy: str) -> None:
    status, results = last_units
    result = results[strategy]
    assert status == 0
    assert (result["attempted"], result["sold"], result["refused"], result["errors"]) == (200, 1, 199, 0)
    assert (result["on_hand"], result["missing"], result["conserved"], result["unserved"]) == (0, 0, True, 0)


@pytest.mark.parametrize("strategy", NAMES)
def test_carts_of_several_skus_sell_every_unit_once(carts: Verdicts, strategy: str) -> None:
    status, results = carts
    result = results[strategy]
    assert status == 0
    assert (result["stock"], result["sold"], result["on_hand"]) == (60, 60, 0)
    assert (result["errors"], result["missing"], result["conserved"], result["unserved"]) == (0, 0, True, 0)


def test_orders_of_several_units_leave_what_no_order_fits_in(manage: Manage, shop: str) -> None:
    wanted = ("--strategy", "lua", "--stock", "10", "--quantity", "3", "--clients", "8")
    done = manage("rush", "--url", shop, *wanted, "--json")

    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert (result["sold"], result["on_hand"], result["conserved"]) == (9, 1, True)
    assert result["attempted"] == 8
    assert result["refused"] == 5


def test_more_buyers_at_once_than_one_machine_can_play_are_refused_before_anything_starts(manage: Manage) -> None:
    done = manage("rush", "--clients", "20001")

    assert done.returncode == 2
    assert "one machine plays at most 20,000 at the same time" in done.stderr
    assert done.stdout == ""


@pytest.mark.django_db
def test_more_buyers_than_a_process_may_open_files_are_refused_before_they_come() -> None:
    """Without it they would complain of the shop. In a process of its own, which gives up its limit for good."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 500))\n"
        "import django; django.setup()\n"
        "from loadtest.rush import Rush, RushError\n"
        "try: Rush(clients=300).run('http://127.0.0.1:9')\n"
        "except RushError as error: print(error)\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=CHECKOUT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    said, limits = done.stdout.splitlines()
    assert said.startswith("One process may open 500 files here, too few for 300 buyers at once and Locust itself.")
    assert "--clients 244 would do" in said
    assert limits == "500 500"


def test_who_sends_more_buyers_than_the_shop_accepts_is_told(settings: Any) -> None:
    settings.WEB_PROCESSES, settings.WEB_CONNECTIONS = 2, 1024
    assert too_many(2048) == ""
    assert too_many(2049).startswith("2,049 buyers at once are more than the 2,048 connections")


def test_ten_thousand_in_the_same_second_have_room() -> None:
    assert too_many(10_000) == ""


@pytest.mark.django_db
def test_there_can_be_more_customers_than_a_statement_has_parameters() -> None:
    first = burst.make_customers(65_600)

    assert len(set(first)) == 65_600
    assert burst.make_customers(3) == first[:3]


def test_without_json_the_verdict_is_a_sentence(manage: Manage) -> None:
    done = manage("rush", "--stock", "3", "--clients", "4")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "guarded-update: conserved: 3 of 3 sold, each once"


@pytest.mark.parametrize(
    ("said", "holds", "sentence"),
    [
        ({}, True, "conserved: 100 of 100 sold, each once"),
        ({"errors": 7}, True, "conserved: 100 of 100 sold, each once; 7 buyers were never answered"),
        ({"errors": 1}, True, "conserved: 100 of 100 sold, each once; 1 buyer was never answered"),
        ({"sold": 96, "on_hand": 4, "unserved": 1}, False, "BROKEN: 1 refused with units left for them"),
        ({"sold": 101, "on_hand": -1, "conserved": False, "oversold": 1}, False, "BROKEN: 1 oversold, -1 on hand"),
        ({"on_hand": -3, "sold": 100, "conserved": False}, False, "BROKEN: -3 on hand"),
        ({"sold": 99, "conserved": False}, False, "BROKEN: 1 units unaccounted for"),
        ({"missing": 2}, False, "BROKEN: 2 orders missing"),
    ],
    ids=["sound", "unanswered", "one unanswered", "unserved", "oversold", "below zero", "drift", "missing"],
)
def test_the_sentence_says_what_is_broken(said: dict[str, object], holds: bool, sentence: str) -> None:
    sound = {"stock": 100, "sold": 100, "on_hand": 0, "errors": 0, "oversold": 0, "missing": 0, "unserved": 0}
    result = {**sound, "conserved": True, **said}
    assert (audit.holds(result), audit.sentence(result)) == (holds, sentence)


@pytest.mark.django_db(transaction=True)
def test_an_order_that_was_answered_and_has_no_row_is_missing(redis: Redis) -> None:
    offer = on_sale({"a": 1})
    cart = offer.cart(a=1)
    order = place_order(customer=new_customer(), sale=offer.sale, quantities=cart, key="mine").order
    answered = [str(order.pk), str(uuid4())]
    sold_by = {"sale": offer.sale, "products": {}, "stock": 1, "quantity": 1, "customers": []}
    assert burst.missing(burst.Burst(strategy="guarded-update", rung="", **sold_by), answered) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("back", [True, False], ids=["for which there is enough", "for which there is not"])
def test_an_order_that_was_queued_and_sold_nothing_is_counted(redis: Redis, back: bool) -> None:
    offer = on_sale({"a": 2}, strategy="lua-queue")
    place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=2), key="mine")
    StockItem.objects.update(on_hand=1)
    save_queued()
    StockItem.objects.update(on_hand=2 if back else 1)

    sold_by = {"sale": offer.sale, "products": offer.products, "stock": 2, "quantity": 2, "customers": []}
    result = audit.verdict(burst.Burst(strategy="lua-queue", rung="", **sold_by), Results(), host="", clients=1)

    assert (result["rejected"], result["unserved"]) == (1, int(back))
    assert not back or not audit.holds(result)


def test_a_shop_that_does_not_answer_is_named_and_is_no_verdict(manage: Manage) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = manage("rush", "--url", url)

    assert done.returncode == 2
    assert done.stderr.startswith(f"CommandError: No healthy shop answers at {url}. `make demo` or")
    assert f"{url}/health/" in done.stderr
    assert done.stdout == ""


def test_an_unknown_rung_is_named_and_is_no_verdict(manage: Manage, shop: str) -> None:
    done = manage("rush", "--url", shop, "--rung", "no-such-rung", "--stock", "1", "--clients", "1")

    assert done.returncode == 2
    said = f"The burst came to no verdict: the lab has no rung no-such-rung; it has {', '.join(RUNGS)}."
    assert said in done.stderr


def test_a_burst_in_which_nobody_was_served_is_no_verdict(manage: Manage, shop: str) -> None:
    nobody = ("--strategy", "lua", "--stock", "4000", "--quantity", "2000", "--clients", "3")
    done = manage("rush", "--url", shop, *nobody, "--json")

    assert done.returncode == 2
    assert "The burst came to no verdict: nobody was served" in done.stderr
    assert done.stdout == ""


def test_several_sellers_sell_one_after_the_other_in_the_order_they_are_named(manage: Manage) -> None:
    sellers = ("--strategy", "lua-queue", "--rung", "compute-and-overwrite", "--strategy", "row-lock")
    done = manage("rush", *sellers, "--stock", "20", "--clients", "20", "--json")

    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["strategy"] for result in results] == ["lua-queue", "compute-and-overwrite", "row-lock"]
    assert [result["conserved"] for result in results] == [True, False, True]
    assert done.returncode == 1


def test_one_without_a_verdict_does_not_keep_the_others_from_theirs(manage: Manage, shop: str) -> None:
    sellers = ("--rung", "no-such-rung", "--strategy", "lua")
    done = manage("rush", "--url", shop, *sellers, "--stock", "3", "--clients", "4", "--json")

    assert [json.loads(line)["strategy"] for line in done.stdout.splitlines()] == ["lua"]
    assert "the lab has no rung no-such-rung" in done.stderr
    assert done.returncode == 2


def test_a_program_is_told_of_the_progress_and_of_the_verdict(environment: dict[str, str], shop: str) -> None:
    with watched(environment, "--url", shop, "--strategy", "lua", "--rung", "no-such-rung", "--stock", "50") as rush:
        assert rush.stdout is not None
        said = [json.loads(line) for line in rush.stdout]
        status = rush.wait()
    first, *progress, verdict = [line for line in said if line["name"] == "lua"]
    assert first == {"name": "lua", "wanted": 100}
    assert {"attempted", "answered", "refused", "busy", "p50_ms", "p99_ms"} <= set(progress[-1])
    assert [line["answered"] for line in progress] == sorted(line["answered"] for line in progress)
    assert (verdict["holds"], verdict["result"]["sold"]) == (True, 50)
    wanted, error = [line for line in said if line["name"] == "no-such-rung"]
    assert wanted == {"name": "no-such-rung", "wanted": 100}
    assert "the lab has no rung no-such-rung" in error["error"]
    assert status == 2


def test_a_rush_ends_when_the_program_that_watches_it_is_gone(environment: dict[str, str]) -> None:
    with watched(environment, "--strategy", "lua", "--stock", "20000", "--clients", "20") as rush:
        assert rush.stdout is not None
        assert rush.stdin is not None
        next(line for line in rush.stdout if "answered" in line)
        rush.stdin.close()
        assert not any("result" in line for line in rush.stdout)
        assert rush.wait(timeout=60) != 0


def test_when_the_time_is_up_nobody_comes_any_more_and_there_is_a_verdict(manage: Manage, shop: str) -> None:
    done = manage("rush", "--url", shop, "--stock", "20000", "--clients", "10", "--seconds", "3", "--json")

    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert 0 < result["sold"] == result["answered"] == result["attempted"] < 20000
    assert (result["errors"], result["conserved"]) == (0, True)


@contextmanager
def watched(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "manage.py", "rush", "--json-lines", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=CHECKOUT, env=environment, text=True, **pipes) as rush:
        yield rush


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--stock", "0"), "--stock"),
        (("--stock", "9" * 20), "--stock"),
        (("--clients", "-1"), "--clients"),
        (("--strategy", "compute-and-overwrite"), "named with --rung"),
        (("--strategy", "redlock"), "once REDLOCK_URLS"),
        (("--rung", "lua"), "lua is a strategy: --strategy lua"),
    ],
    ids=lambda said: "" if isinstance(said, str) else " ".join(said),
)
def test_a_senseless_option_is_refused_before_anything_starts(
    manage: Manage, option: tuple[str, str], says: str
) -> None:
    done = manage("rush", *option)

    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())


def test_help_teaches(manage: Manage) -> None:
    done = manage("rush", "--help")

    assert "Exit status 0 when nothing was sold twice or lost, 1 when something was" in " ".join(done.stdout.split())
