"""One burst, one verdict: the command as a person uses it, on a whole shop."""

from __future__ import annotations

import json
import socket

import pytest

from lab.ladder.stock import RUNGS
from loadtest import audit
from tests.factories import DISTINCT
from tests.loadtest.conftest import Manage

KEYS = [
    *("strategy", "stock", "clients", "attempted", "sold", "refused", "errors", "oversold", "conserved"),
    *("orders_per_s", "refusals_per_s", "p50_ms", "p99_ms"),
]


@pytest.mark.parametrize("strategy", DISTINCT)
def test_a_sound_strategy_sells_every_unit_once(manage: Manage, strategy: str) -> None:
    done = manage("rush", "--strategy", strategy, "--stock", "100", "--clients", "50", "--json")

    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert list(result)[: len(KEYS)] == KEYS
    expected = {"strategy": strategy, "stock": 100, "clients": 50, "attempted": 200, "sold": 100, "refused": 100}
    assert expected.items() <= result.items()
    assert (result["errors"], result["oversold"], result["on_hand"], result["missing"]) == (0, 0, 0, 0)
    assert result["conserved"] is True
    assert result["orders_per_s"] > 0
    assert 0 < result["p50_ms"] <= result["p99_ms"]


@pytest.mark.parametrize("strategy", DISTINCT)
def test_carts_of_several_skus_sell_every_unit_once(manage: Manage, strategy: str) -> None:
    done = manage("rush", "--strategy", strategy, "--stock", "20", "--skus", "3", "--clients", "20", "--json")

    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert (result["stock"], result["sold"], result["on_hand"]) == (60, 60, 0)
    assert (result["errors"], result["missing"], result["conserved"], result["unserved"]) == (0, 0, True, 0)


def test_orders_of_several_units_leave_what_no_order_fits_in(manage: Manage) -> None:
    done = manage("rush", "--strategy", "lua", "--stock", "10", "--quantity", "3", "--clients", "8", "--json")

    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert (result["sold"], result["on_hand"], result["conserved"]) == (9, 1, True)
    assert result["attempted"] == 8
    assert result["refused"] == 5


def test_without_json_the_verdict_is_a_sentence(manage: Manage) -> None:
    done = manage("rush", "--stock", "3", "--clients", "4")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "guarded-update: conserved: 3 of 3 sold, each once"


@pytest.mark.parametrize(
    ("said", "holds", "sentence"),
    [
        ({}, True, "conserved: 100 of 100 sold, each once"),
        ({"errors": 7}, True, "conserved: 100 of 100 sold, each once; 7 buyers were never answered"),
        ({"sold": 96, "on_hand": 4, "unserved": 1}, False, "BROKEN: 1 refused with units left for them"),
        ({"sold": 101, "on_hand": -1, "conserved": False, "oversold": 1}, False, "BROKEN: 1 oversold, -1 on hand"),
        ({"on_hand": -3, "sold": 100, "conserved": False}, False, "BROKEN: -3 on hand"),
        ({"sold": 99, "conserved": False}, False, "BROKEN: 1 units unaccounted for"),
        ({"missing": 2}, False, "BROKEN: 2 orders missing"),
    ],
    ids=["sound", "unanswered", "unserved", "oversold", "below zero", "drift", "missing"],
)
def test_the_sentence_says_what_is_broken(said: dict[str, object], holds: bool, sentence: str) -> None:
    sound = {"stock": 100, "sold": 100, "on_hand": 0, "errors": 0, "oversold": 0, "missing": 0, "unserved": 0}
    result = {**sound, "conserved": True, **said}
    assert (audit.holds(result), audit.sentence(result)) == (holds, sentence)


def test_a_shop_that_does_not_answer_is_named_and_is_no_verdict(manage: Manage) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = manage("rush", "--url", url)

    assert done.returncode == 2
    assert done.stderr.strip() == f"CommandError: No healthy shop answers at {url}: {url}/health/ says more."
    assert done.stdout == ""


def test_an_unknown_rung_is_named_and_is_no_verdict(manage: Manage) -> None:
    done = manage("rush", "--rung", "no-such-rung", "--stock", "1", "--clients", "1")

    assert done.returncode == 2
    said = f"The burst came to no verdict: the lab has no rung no-such-rung; it has {', '.join(RUNGS)}."
    assert said in done.stderr


def test_a_burst_in_which_nobody_was_served_is_no_verdict(manage: Manage) -> None:
    done = manage("rush", "--strategy", "lua", "--stock", "4000", "--quantity", "2000", "--clients", "3", "--json")

    assert done.returncode == 2
    assert "The burst came to no verdict: nobody was served" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "option", [("--stock", "0"), ("--stock", "9" * 20), ("--clients", "-1"), ("--strategy", "compute-and-overwrite")]
)
def test_a_senseless_option_is_refused_before_anything_starts(manage: Manage, option: tuple[str, str]) -> None:
    done = manage("rush", *option)

    assert done.returncode == 2
    assert option[0] in done.stderr


def test_help_teaches(manage: Manage) -> None:
    done = manage("rush", "--help")

    assert "Exit status 0 when nothing was sold twice or lost, 1 when something was" in " ".join(done.stdout.split())
