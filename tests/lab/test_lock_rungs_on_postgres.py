"""The rungs that are a table of locks used wrongly, and the schedules that show it. A real server, real deaths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lab.ladder.locks import LOCKS, SOUND
from locking import Lease, Lock
from locking.postgres import NoSuchLock, RowLock, add_row
from servers.postgres import Postgres
from tests.lab.rung_properties import CRASH, EXCLUDES, HOLD_RELEASES, SERVES_THREADS, FlawedConformance
from tests.locking import actors
from tests.locking.conformance import LONG, SurvivesHolderCrashConformance, only
from tests.locking.postgres_support import PostgresTraces, conninfo_of, running_postgres
from tests.locking.support import FileCell, process
from tests.waiting import wait_for

TTL = 2.0
"""Seconds, of a lock that has a TTL: a test waits it out once."""


@dataclass(frozen=True)
class TableRecipe:
    """Makes locks of a rung. Nobody makes a row for them."""

    slug: str
    conninfo: str
    cells: Path

    def __call__(self, name: str, **options: Any) -> Lock:
        made: Any = LOCKS.get(self.slug) or SOUND[self.slug]
        if self.slug != "lock-table-insert":  # the others have no TTL, and nothing to renew
            options = {}
        lock: Lock = made(self.conninfo, name, **options)
        return lock

    def cell(self, name: str) -> FileCell:
        return FileCell(self.cells / name)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture
def recipe_of(postgres: Postgres, tmp_path: Path) -> Callable[[str], TableRecipe]:
    return lambda slug: TableRecipe(slug, conninfo_of(postgres), tmp_path)


# Schedules

Schedule = Callable[[TableRecipe, str], str | None]


def asks(lock: Lock) -> Lease | None:
    """What one gets who asks once. An error is no lease."""
    try:
        return lock.acquire(blocking=False)
    except NoSuchLock:
        return None


def two_ask_for_what_has_no_row(recipe: TableRecipe, name: str) -> str | None:
    """A asks for the lock, and B while A is inside, if he is."""
    a, b = asks(recipe(name)), asks(recipe(name))
    for lease in (a, b):
        if lease is not None:
            lease.check()
    return "one holder" if None not in (a, b) else None


def the_holder_dies(recipe: TableRecipe, name: str) -> str | None:
    """A takes the lock and dies. Either B enters in time, or the row that keeps him out has no end."""
    with process(actors.hold, recipe, name, {"ttl": TTL}) as (a, pipe):
        pipe.recv()
        assert asks(recipe(name)) is None
        a.kill()
        a.join()

    def endless() -> bool:
        with psycopg.connect(recipe.conninfo) as asking:
            rows = asking.execute("SELECT FROM lock_grant WHERE name = %s AND expires = 'infinity'", [name])
            return rows.fetchone() is not None

    lease = wait_for(lambda: asks(recipe(name)) or endless(), "B to enter, or to be kept out for ever")
    if not isinstance(lease, Lease):
        assert asks(recipe(name)) is None
        return "progress"
    assert lease.release() is True
    return None


SCHEDULES: list[tuple[str, Schedule]] = [
    ("for-update-without-the-row", two_ask_for_what_has_no_row),
    ("insert-without-owner-and-expiry", the_holder_dies),
]
EACH = pytest.mark.parametrize(("slug", "schedule"), SCHEDULES, ids=[slug for slug, _ in SCHEDULES])


@EACH
def test_the_schedule_breaks_what_the_rung_says(
    recipe_of: Callable[[str], TableRecipe], slug: str, schedule: Schedule
) -> None:
    assert schedule(recipe_of(slug), "breaks") == LOCKS[slug].breaks


@EACH
def test_the_rung_that_fixes_it_survives_the_same_schedule(
    recipe_of: Callable[[str], TableRecipe], slug: str, schedule: Schedule
) -> None:
    fix = LOCKS[slug].fixed_by
    assert fix is not None
    assert schedule(recipe_of(fix), "fixed") is None


def test_with_its_row_the_one_excludes_as_the_other_does(recipe_of: Callable[[str], TableRecipe]) -> None:
    flawed, sound = recipe_of("for-update-without-the-row"), recipe_of("lock-table-for-update")
    add_row(flawed.conninfo, "has a row")
    for one, other in ((flawed, sound), (sound, flawed), (flawed, flawed)):
        with one("has a row").hold():
            assert asks(other("has a row")) is None


def test_the_error_says_how_to_make_the_row(recipe_of: Callable[[str], TableRecipe]) -> None:
    lock = recipe_of("lock-table-for-update")("no row")
    assert isinstance(lock, RowLock)
    with pytest.raises(NoSuchLock, match="add_row"):
        lock.acquire()


def test_an_insert_without_an_owner_lets_anybody_free_the_lock(recipe_of: Callable[[str], TableRecipe]) -> None:
    recipe = recipe_of("insert-without-owner-and-expiry")
    lease = recipe("swept up").acquire()
    assert lease is not None
    with psycopg.connect(recipe.conninfo, autocommit=True) as sweeper:
        sweeper.execute("DELETE FROM lock_grant WHERE name = 'swept up'")
    other = recipe("swept up").acquire(timeout=0)
    assert other is not None
    assert lease.release() is True  # the row of the other
    assert asks(recipe("swept up")) is not None
    other.check()


# Which promises of every lock each keeps


class TableConformance(PostgresTraces, FlawedConformance):
    OPTIONS = {"ttl": LONG}

    @pytest.fixture
    def recipe(self, recipe_of: Callable[[str], TableRecipe]) -> TableRecipe:
        return recipe_of(self.SLUG)


@only(EXCLUDES, HOLD_RELEASES, SERVES_THREADS)
class TestForUpdateWithoutTheRow(TableConformance):
    SLUG = "for-update-without-the-row"
    FAILS = frozenset({EXCLUDES, SERVES_THREADS})


@only(EXCLUDES, HOLD_RELEASES, SERVES_THREADS, CRASH)
class TestInsertWithoutOwnerAndExpiry(TableConformance, SurvivesHolderCrashConformance):
    SLUG = "insert-without-owner-and-expiry"
    FAILS = frozenset({CRASH})
