"""The flawed rungs without a controller: which of them a plain burst breaks, and which need more than that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.ladder.stock import RUNGS
from tests.loadtest.conftest import Manage, Verdicts, rush_of_all

pytestmark = pytest.mark.slow

Result = dict[str, Any]
Check = Callable[[Result], bool]
Rush = Callable[..., tuple[int, Result]]


@pytest.fixture(scope="module")
def rush(manage: Manage, shop: str) -> Rush:
    """Runs a burst; its exit status and its verdict. Without more, 50 buyers try 200 orders for 100 units."""

    def run(*arguments: str) -> tuple[int, Result]:
        status, results = rush_of_all(manage, "--url", shop, *arguments)
        (result,) = results.values()
        return status, result

    return run


BROKEN: dict[str, tuple[str, Check]] = {
    "compute-and-overwrite": ("loses updates", lambda said: said["oversold"] > 0 and said["on_hand"] >= 0),
    "subtract-in-sql": ("goes below zero", lambda said: said["oversold"] == -said["on_hand"] > 0),
    "lock-inside-the-transaction": ("goes below zero", lambda said: said["oversold"] == -said["on_hand"] > 0),
    "lock-under-the-wrong-isolation": ("goes below zero", lambda said: said["oversold"] == -said["on_hand"] > 0),
    "refusal-swallowed": ("refuses nobody", lambda said: (said["sold"], said["on_hand"]) == (200, 0)),
    "lua-off-by-one": ("sells one more", lambda said: (said["sold"], said["on_hand"]) == (101, -1)),
}


# They have one moment to go wrong, the last unit's, and on a busy machine may miss it.
ONE_MOMENT = {"subtract-in-sql", "lock-inside-the-transaction"}


@pytest.mark.parametrize("rung", [pytest.param(rung, id=f"{rung} {how}") for rung, (how, _) in BROKEN.items()])
def test_a_burst_breaks_it_and_the_exit_status_says_so(rush: Rush, rung: str) -> None:
    code, said = rush("--rung", rung)
    if rung in ONE_MOMENT:
        for _ in range(4):
            code, said = (code, said) if code else rush("--rung", rung)
    assert (code, said["strategy"], said["attempted"]) == (1, rung, 200)
    assert BROKEN[rung][1](said), said


def test_a_burst_of_carts_strands_what_would_do_for_another_one(rush: Rush) -> None:
    """A hundred units in four segments of 25, and orders of three: one unit stays in each."""
    code, said = rush("--rung", "segmented-keys", "--quantity", "3", "--attempts", "200")
    assert code == 1
    assert (said["sold"], said["on_hand"], said["unserved"], said["oversold"]) == (96, 4, 1, 0)


def test_a_burst_of_carts_on_one_figure_strands_less_than_an_order(rush: Rush) -> None:
    """The negative control."""
    code, said = rush("--strategy", "redis-lock", "--quantity", "3", "--attempts", "200")
    assert code == 0
    assert (said["sold"], said["on_hand"], said["unserved"]) == (99, 1, 0)


@pytest.mark.parametrize(
    ("option", "name", "waits"),
    [("--rung", "exception-leaves-the-lock", True), ("--strategy", "redis-lock", False)],
)
def test_after_each_refusal_everybody_waits_for_the_ttl(rush: Rush, option: str, name: str, waits: bool) -> None:
    code, said = rush(option, name, "--stock", "2", "--clients", "8")
    assert (code, said["sold"], said["on_hand"]) == (0, 2, 0)
    assert (said["busy"] > 0) is waits


def test_of_as_many_buyers_as_there_are_units_some_are_told_that_none_is_left(rush: Rush) -> None:
    code, said = rush("--rung", "retries-reported-as-sold-out", "--attempts", "100")
    assert (code, said["conserved"], said["sold"] + said["refused"]) == (1, True, 100)
    assert said["refused"] == said["unserved"] == said["on_hand"] > 0


def test_of_as_many_buyers_as_there_are_units_nobody_is_refused(rush: Rush) -> None:
    """The negative control."""
    code, said = rush("--strategy", "optimistic", "--attempts", "100")
    assert (code, said["sold"], said["refused"], said["unserved"]) == (0, 100, 0, 0)


QUIET = [slug for slug, rung in RUNGS.items() if rung.breaks_under not in ("load", "several units")]


@pytest.fixture(scope="module")
def quiet(manage: Manage, shop: str) -> Verdicts:
    return rush_of_all(manage, "--url", shop, *(argument for rung in QUIET for argument in ("--rung", rung)))


@pytest.mark.parametrize("rung", QUIET)
def test_no_burst_shows_what_needs_a_crash_lost_data_other_carts_or_a_second_click(quiet: Verdicts, rung: str) -> None:
    status, results = quiet
    said = results[rung]
    assert (status, said["sold"], said["refused"], said["on_hand"], said["unserved"]) == (0, 100, 100, 0, 0)


def test_every_rung_is_here() -> None:
    others = {"segmented-keys", "exception-leaves-the-lock", "retries-reported-as-sold-out"}
    assert {*BROKEN, *others, *QUIET} == set(RUNGS)
