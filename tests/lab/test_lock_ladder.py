"""The ladder of locks as a whole: no rung is missing, each says what it is, and each flawed one is shown to be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lab.ladder.locks
from inventory.strategies.registry import NAMES
from lab.ladder.locks import LOCKS, SOUND
from lab.ladder.locks.rung import FaultRung
from locking import Lock
from tests.lab import (
    test_lock_rungs,
    test_lock_rungs_on_postgres,
    test_lock_rungs_on_servers,
    test_lock_rungs_on_zookeeper,
)
from tests.lab.rung_properties import FlawedConformance

LADDER = [
    "no-lock",
    "merge-without-a-lock",
    "thread-lock",
    "process-lock",
    "get-then-set",
    "answer-not-read",
    "busy-as-success",
    "setnx",
    "setnx-then-expire",
    "wrong-key-expires",
    "ttl-healed-by-waiters",
    "ttl-healed-in-one-script",
    "set-nx-ex",
    "wrong-argument",
    "get-compare-del",
    "owner-as-text",
    "owner-is-thread-id",
    "owner-is-ip-pid-thread-time",
    "watch-release",
    "lua-release",
    "renews-nothing",
    "renewal",
    "renewal-and-a-pause",
    "fence-on-write-only",
    "fence",
    "re-entrant-without-the-count",
    "re-entrant",
    "lost-wake-up",
    "woken",
    "dead-head",
    "fair",
    "one-primary-with-replicas",
    "redlock",
    "redlock-no-fsync",
    "redlock-replicated-nodes",
    "redlock-clock-jump",
    "woken-means-mine",
    "watch-set-too-late",
    "zookeeper",
    "kazoo-recipe",
    "etcd",
    "for-update-without-the-row",
    "lock-table-for-update",
    "insert-without-owner-and-expiry",
    "lock-table-insert",
    "postgres-advisory-lock",
]
"""Every rung of the track, in its order. A flawed one comes before what fixes it where it is nothing but its flaw."""

BROKEN = [
    slug
    for shown in (
        test_lock_rungs,
        test_lock_rungs_on_postgres,
        test_lock_rungs_on_zookeeper,
        test_lock_rungs_on_servers,
    )
    for slug, _ in shown.SCHEDULES
]
"""Who is broken by a schedule."""


def held_against_the_suite() -> list[type[FlawedConformance]]:
    """The tests of rungs, however far they are derived."""
    found: list[type[FlawedConformance]] = []
    kinds = [FlawedConformance]
    while kinds:
        kinds += (kind := kinds.pop()).__subclasses__()
        if "SLUG" in vars(kind):
            found.append(kind)
    return found


TESTS = {tests.__name__: tests for tests in held_against_the_suite()}


def test_no_rung_is_missing_and_they_are_in_order() -> None:
    assert [slug for slug in LADDER if slug in LOCKS] == list(LOCKS)
    assert [slug for slug in LADDER if slug in SOUND] == list(SOUND)
    assert sorted(LADDER) == sorted([*LOCKS, *SOUND])
    assert {slug: made.slug for slug, made in LOCKS.items()} == {slug: slug for slug in LOCKS}


def test_every_file_of_the_folder_is_a_rung() -> None:
    files = {path.stem.replace("_", "-") for path in Path(lab.ladder.locks.__file__).parent.glob("*.py")}
    assert files - {"--init--", "rung"} == {*LOCKS, "fence"}


@pytest.mark.parametrize("slug", LOCKS)
def test_a_rung_says_what_it_is(slug: str) -> None:
    made = LOCKS[slug]
    assert made.title
    assert made.flaw is not None
    assert made.flaw.endswith(".")
    assert made.breaks in ("conserved", "one holder", "progress")
    assert made.fixed_by in {*LOCKS, *SOUND} - {slug}
    said = " ".join((made.__doc__ or "").split())
    for part in ("Flawed", "schedule", f"`{made.fixed_by}`"):
        assert part in said, part
    sources = said.partition("Source: ")[2]
    assert re.findall(r"\d{3}", sources) == made.source.split(", ")


@pytest.mark.parametrize("slug", LOCKS)
def test_whoever_follows_the_fixes_arrives_at_a_sound_one(slug: str) -> None:
    seen = []
    while slug not in SOUND:
        assert slug not in seen
        seen.append(slug)
        slug = LOCKS[slug].fixed_by or ""


@pytest.mark.parametrize("slug", LOCKS)
def test_every_flawed_rung_is_broken_by_a_schedule(slug: str) -> None:
    assert slug in BROKEN


@pytest.mark.parametrize("slug", [slug for slug, made in LOCKS.items() if issubclass(made, Lock)])
def test_every_flawed_lock_names_a_promise_that_it_must_fail(slug: str) -> None:
    """The others are no locks, or sound ones: what they must fail is their schedule."""
    assert any(tests.FAILS for tests in TESTS.values() if slug == tests.SLUG)


@pytest.mark.parametrize("tests", TESTS.values(), ids=TESTS)
def test_what_a_rung_must_fail_is_run(tests: type[FlawedConformance]) -> None:
    """Neither misspelt nor left out: either would pass in silence."""
    for name in tests.FAILS:
        assert callable(getattr(tests, name, None)), name


@pytest.mark.parametrize("slug", [slug for slug, made in LOCKS.items() if issubclass(made, FaultRung)])
def test_a_sound_lock_survives_what_it_declares_but_not_the_event(slug: str) -> None:
    made = LOCKS[slug]
    assert issubclass(made, FaultRung)
    assert made.event not in made.survives
    can = made.lock.capabilities
    assert ("expiry" in made.survives, "crash" in made.survives) == (can.renews, can.survives_holder_crash)


def test_a_rung_is_no_strategy_of_the_shop() -> None:
    assert not {*LOCKS, *SOUND} & set(NAMES)
