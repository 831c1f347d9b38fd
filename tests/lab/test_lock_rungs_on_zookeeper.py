"""The rungs that are ZooKeeperLock but for one thing, and the schedules that show it. A real server, real deaths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from lab.ladder.locks import LOCKS, SOUND
from locking import Lease, Lock
from locking.zookeeper.session import ZooKeeperSession
from servers.zookeeper import ZooKeeper
from tests.lab.rung_properties import EXCLUDES, HOLD_RELEASES, WOKEN, FlawedConformance
from tests.locking import actors
from tests.locking.conformance import LONG, only
from tests.locking.support import process
from tests.locking.zookeeper_support import (
    LONGEST,
    SHORTEST,
    ZooKeeperRecipe,
    ZooKeeperTraces,
    clients,
    running_zookeeper,
)
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.slow

line = ZooKeeperTraces.line


@dataclass(frozen=True)
class LineRecipe(ZooKeeperRecipe):
    """Makes locks of a rung."""

    slug: str = ""

    def __call__(self, name: str, *, ttl: float = LONGEST, **options: Any) -> Lock:
        return self.on(self.client(ttl), name, **options)

    def on(self, client: KazooClient, name: str, **options: Any) -> Lock:
        made: Any = LOCKS.get(self.slug) or SOUND[self.slug]
        lock: Lock = made(client, name, **options)
        return lock


class SteppedClient(KazooClient):
    """Runs an action once, just before it sends a request that sets a watch."""

    before_the_watch: Callable[[], object] | None = None

    def _call(self, request: Any, async_object: Any) -> Any:
        action = self.before_the_watch
        if action is not None and getattr(request, "watcher", None):
            self.before_the_watch = None
            action()
        return super()._call(request, async_object)


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with running_zookeeper() as running:
        yield running


@pytest.fixture
def recipe_of(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[Callable[[str], LineRecipe]]:
    yield lambda slug: LineRecipe(zookeeper.hosts, tmp_path, slug=slug)
    clients.close()


# Schedules

Schedule = Callable[[LineRecipe, str], str | None]


def a_waiter_dies_before_another(recipe: LineRecipe, name: str) -> str | None:
    """A holds the lock, B waits behind him, C behind B. B's process dies, and in time his session."""
    lock = recipe(name)
    watched = recipe.client()._data_watchers
    lease = lock.acquire()
    assert lease is not None
    with (
        process(actors.wait_and_hold, recipe, name, {"ttl": SHORTEST}) as (b, _),
        ThreadPoolExecutor(1) as thread,
    ):
        wait_for(lambda: len(line(lock)) == 2)
        a_node, b_node = (f"{lock._queue_path}/{node}" for node in line(lock))  # type: ignore[attr-defined]
        c = thread.submit(lock.acquire, timeout=PATIENCE)
        wait_for(lambda: watched.get(b_node), "C to watch B")
        b.kill()
        wait_for(lambda: c.done() or watched.get(a_node), "C to be woken, and to enter or to watch A")
        entered = c.done()
        lease.check()
        assert lease.release() is True
        _release(c.result())
    return "one holder" if entered else None


def releases_before_the_watch(recipe: LineRecipe, name: str) -> str | None:
    """A holds the lock and B has seen him. A releases before B's request that sets the watch."""
    lock = recipe(name)
    lease = lock.acquire()
    assert lease is not None
    path = f"{lock._queue_path}/{line(lock)[0]}"  # type: ignore[attr-defined]
    client = SteppedClient(recipe.hosts, timeout=LONGEST)
    client.start()
    try:
        with ThreadPoolExecutor(1) as thread:
            client.before_the_watch = lease.release
            b = thread.submit(recipe.on(client, name).acquire)
            try:
                wait_for(lambda: b.done() or client._data_watchers.get(path), "B to enter, or to watch who is gone")
                asleep = not b.done()
                assert client.before_the_watch is None
                assert len(line(lock)) == 1  # B, and nobody before him
            finally:
                # Nothing else would wake him.
                ZooKeeperSession.of(client, name, PATIENCE).notify(
                    WatchedEvent(EventType.NONE, KeeperState.CONNECTED, path)
                )
            _release(b.result(PATIENCE))
    finally:
        client.stop()
        client.close()
    return "progress" if asleep else None


def _release(lease: Lease | None) -> None:
    assert lease is not None
    lease.check()
    assert lease.release() is True


SCHEDULES: list[tuple[str, Schedule]] = [
    ("woken-means-mine", a_waiter_dies_before_another),
    ("watch-set-too-late", releases_before_the_watch),
]
EACH = pytest.mark.parametrize(("slug", "schedule"), SCHEDULES, ids=[slug for slug, _ in SCHEDULES])


@EACH
def test_the_schedule_breaks_what_the_rung_says(
    recipe_of: Callable[[str], LineRecipe], slug: str, schedule: Schedule
) -> None:
    assert schedule(recipe_of(slug), "stock") == LOCKS[slug].breaks


@EACH
def test_the_rung_that_fixes_it_survives_the_same_schedule(
    recipe_of: Callable[[str], LineRecipe], slug: str, schedule: Schedule
) -> None:
    fix = LOCKS[slug].fixed_by
    assert fix == "zookeeper"
    assert schedule(recipe_of(fix), "stock") is None


# Which promises of every lock each keeps

DEAD_WAITER = "test_who_waits_behind_one_that_dies_waits_on"
NOT_MISSED = "test_a_release_right_before_the_watch_is_not_missed"


class LineConformance(ZooKeeperTraces, FlawedConformance):
    OPTIONS = {"ttl": LONG}

    @pytest.fixture
    def recipe(self, recipe_of: Callable[[str], LineRecipe]) -> LineRecipe:
        return recipe_of(self.SLUG)

    def test_who_waits_behind_one_that_dies_waits_on(self, recipe: LineRecipe, name: str) -> None:
        assert a_waiter_dies_before_another(recipe, name) is None

    def test_a_release_right_before_the_watch_is_not_missed(self, recipe: LineRecipe, name: str) -> None:
        assert releases_before_the_watch(recipe, name) is None


@only(EXCLUDES, HOLD_RELEASES, WOKEN, NOT_MISSED, DEAD_WAITER)
class TestWokenMeansMine(LineConformance):
    SLUG = "woken-means-mine"
    FAILS = frozenset({DEAD_WAITER})


@only(EXCLUDES, HOLD_RELEASES, WOKEN, NOT_MISSED, DEAD_WAITER)
class TestWatchSetTooLate(LineConformance):
    SLUG = "watch-set-too-late"
    FAILS = frozenset({NOT_MISSED})
