"""ZooKeeperLock: the conformance suite, its sessions and its queue. Kazoo's own lock, for comparison."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Create2
from kazoo.protocol.states import KazooState

from loadtest.bench.kazoo_recipe import KazooRecipeLock
from locking import LeaseLost, Lock, LockUnavailable
from locking.zookeeper import ZooKeeperLock
from locking.zookeeper import lock as lock_module
from locking.zookeeper import session as session_module
from locking.zookeeper.protocol import negotiated_timeout
from servers.zookeeper import ZooKeeper
from tests.locking import conformance as suite
from tests.locking.conformance import LONG, fails
from tests.locking.proxy import Link
from tests.locking.quorum_support import OnThreeServers
from tests.locking.support import MakeLock, Patch, Pool, acquired, in_fork, paused, run_threads
from tests.locking.zookeeper_support import (
    SHORTEST,
    ZooKeeperRecipe,
    ZooKeeperTraces,
    clients,
    parts,
    request_of,
    running_zookeeper,
)
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with running_zookeeper() as running:
        yield running


@pytest.fixture
def own_zookeeper() -> Iterator[ZooKeeper]:
    """Yield a server that the test may stop, kill and pause."""
    with running_zookeeper() as running:
        yield running


@pytest.fixture
def recipe(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ZooKeeperRecipe]:
    made = ZooKeeperRecipe(zookeeper.hosts, tmp_path)
    acquired(made(f"warm up of {tmp_path}")).release()
    yield made
    clients.close()


@pytest.fixture
def own(own_zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ZooKeeperRecipe]:
    yield ZooKeeperRecipe(own_zookeeper.hosts, tmp_path)
    clients.close()


line = ZooKeeperTraces.line


class OnZooKeeper(
    ZooKeeperTraces,
    suite.AcrossMachinesConformance,
    suite.AcrossProcessesConformance,
    suite.FairConformance,
    suite.QuietWaitConformance,
    suite.SurvivesHolderCrashConformance,
):
    """What ZooKeeperLock and kazoo's lock both guarantee."""

    OPTIONS = {"ttl": LONG}
    CRASH_OPTIONS = {"ttl": SHORTEST}
    CRASH_GRACE = 0.4  # ZooKeeper may end a session up to two ticks of 0.2 s late.
    IMPATIENT = {"ttl": SHORTEST}

    @pytest.fixture(autouse=True)
    def _server(self, zookeeper: ZooKeeper) -> None:
        self.zookeeper = zookeeper


class TestZooKeeperLock(OnZooKeeper, suite.FencedConformance, suite.RenewsConformance, OnThreeServers):
    KIND = "zookeeper"
    SHORT = SHORTEST

    # A lease ends with its session, as a grant that expires ends with its TTL.
    test_a_briefly_paused_holder_keeps_it = suite.ExpiresConformance.test_a_briefly_paused_holder_keeps_it
    test_a_holder_paused_beyond_its_ttl_is_told = suite.ExpiresConformance.test_a_holder_paused_beyond_its_ttl_is_told

    def test_without_renewal_the_lock_is_lost_after_its_ttl(self, make_lock: MakeLock, link: Link) -> None:
        lock = make_lock()
        cut = link.recipe(lock.name, ttl=SHORTEST)
        lease = acquired(cut)
        link.refuse()
        second = acquired(lock, timeout=WAIT_TIMEOUT)
        assert lease.lost
        second.release()
        link.restore()
        wait_for(lambda: link.recipe.client(SHORTEST).connected)
        assert lease.release() is False
        with cut.hold(timeout=WAIT_TIMEOUT) as again:
            assert again.fence > second.fence > lease.fence


class TestKazooRecipeLock(OnZooKeeper):
    FAILS = frozenset(
        {
            # kazoo cleans up after its own errors, but not after KeyboardInterrupt.
            "test_an_interrupted_waiter_leaves_nothing",
            # Each failed wait leaves a watch until the holder changes.
            "test_failed_waits_leave_nothing",
            # Each wake-up restarts the timeout.
            "test_wake_ups_do_not_extend_the_timeout",
        }
    )

    def waiters(self, lock: Lock) -> int:
        """Count the queued clients that watch the node before their own."""
        client, path = parts(lock)
        *before, _ = line = self.line(lock) or [""]
        watching = {watch.__self__.node for node in before for watch in client._data_watchers.get(f"{path}/{node}", ())}
        return len(watching.intersection(line))

    @pytest.fixture
    def recipe(self, recipe: ZooKeeperRecipe) -> ZooKeeperRecipe:
        return replace(recipe, kind=KazooRecipeLock)


@fails("test_a_release_before_the_sleep_is_not_missed")
class TestZooKeeperLockThatIgnoresWhatItsWatchSays(TestZooKeeperLock):
    """Flawed: a waiter sleeps although the node that it should watch is gone."""

    @pytest.fixture(autouse=True)
    def _ignores(self, monkeypatch: Patch) -> None:
        sleep, answer = ZooKeeperLock._sleep, ZooKeeperLock._answer

        def ignore(self: ZooKeeperLock, result: Any, deadline: float) -> Any:
            with suppress(NoNodeError):
                return answer(self, result, deadline)

        def deaf(self: ZooKeeperLock, *args: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(ZooKeeperLock, "_answer", ignore)
                sleep(self, *args)

        monkeypatch.setattr(ZooKeeperLock, "_sleep", deaf)


@fails("test_the_death_of_a_waiter_grants_nothing")
class TestZooKeeperLockThatBelievesItsWatch(TestZooKeeperLock):
    """Flawed: a woken waiter takes the lock without reading the queue."""

    @pytest.fixture(autouse=True)
    def _believes(self, monkeypatch: Patch) -> None:
        sleep, look, woken = ZooKeeperLock._sleep, ZooKeeperLock._look, list[bool]()
        monkeypatch.setattr(ZooKeeperLock, "_sleep", lambda self, *args: (sleep(self, *args), woken.append(True)))
        monkeypatch.setattr(ZooKeeperLock, "_look", lambda self, deadline: look(self, deadline)[len(woken) :])


# Answers that are lost


@pytest.mark.parametrize("searched", [True, False])
def test_an_unanswered_create_is_found(link: Link, monkeypatch: Patch, searched: bool) -> None:
    if not searched:
        monkeypatch.setattr(ZooKeeperLock, "_find", lambda *args: None)
    lock = link.recipe(f"stock {searched}")
    acquired(lock).release()  # creates the queue
    link.lose_the_answer(request_of(Create2))
    lease: Any = lock.acquire(timeout=WAIT_TIMEOUT if searched else 1.0)
    assert (lease is not None, link.lost) == (searched, 1)  # Without the search, it waits behind its own node.
    if lease is not None:
        (node,) = line(lock)
        assert lease.fence == link.recipe.client().exists(f"{lock._queue_path}/{node}").czxid
        assert lease.release() is True
        assert line(lock) == []


@pytest.mark.parametrize("again", [True, False])
def test_an_unanswered_release_is_reported_and_done(
    own: ZooKeeperRecipe, own_zookeeper: ZooKeeper, again: bool
) -> None:
    lock = own("stock", ttl=SHORTEST)
    lease = acquired(lock)
    with paused(own_zookeeper.child.pid), pytest.raises(LockUnavailable, match="release again"):
        lease.release()
    if again:
        wait_for(lambda: own.client(SHORTEST).connected)
        assert lease.release() is True
        assert lease.release() is False
    wait_for(lambda: line(own("stock")) == [])


@pytest.mark.parametrize("guarded", [True, False])
def test_an_unanswered_try_leaves_no_place(
    own: ZooKeeperRecipe, own_zookeeper: ZooKeeper, monkeypatch: Patch, guarded: bool
) -> None:
    lock = own("stock")
    acquired(lock).release()
    if not guarded:
        done = threading.Event()
        done.set()
        monkeypatch.setattr(lock_module, "leave_queue", lambda *args: done)
    with paused(own_zookeeper.child.pid), pytest.raises(LockUnavailable, match="Try again"):
        lock.acquire(timeout=0.1)
    wait_for(lambda: len(line(lock)) == (0 if guarded else 1))


# Sessions that end


def test_an_acquire_between_sessions_waits(link: Link, recipe: ZooKeeperRecipe, threads: Pool) -> None:
    lock, client = link.recipe("stock", ttl=SHORTEST), link.recipe.client(SHORTEST)
    _held = acquired(lock)
    ended, go_on = threading.Event(), threading.Event()

    def hold_up(state: str) -> None:
        """Delay kazoo's next session, which starts when all listeners have been told of the last session's end."""
        if state == KazooState.LOST:
            ended.set()
            assert go_on.wait(WAIT_TIMEOUT)

    client.add_listener(hold_up)
    link.refuse()
    wait_for(lambda: not ZooKeeperTraces.line(recipe("stock")), "the server to end the session")
    link.restore()
    assert ended.wait(WAIT_TIMEOUT)
    asking = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
    assert not wait([asking], timeout=0.2).done, asking.exception()
    go_on.set()
    assert asking.result(WAIT_TIMEOUT).release() is True


def test_a_session_ends_the_lease_at_once_when_kazoo_knows(recipe: ZooKeeperRecipe) -> None:
    lease = acquired(recipe("stock", ttl=LONG))
    recipe.client(LONG).stop()
    with pytest.raises(LeaseLost):
        lease.check()


def test_the_ttl_is_what_the_server_agreed_to(recipe: ZooKeeperRecipe) -> None:
    for asked, agreed in ((3600.0, 60.0), (5.0, 5.0)):
        lock = recipe("stock", ttl=asked)
        with lock.hold() as lease:
            assert (lock.ttl, lease.ttl) == (agreed, agreed)
            with pytest.raises(ValueError, match="session timeout"):
                lease.extend(agreed + 1)
        assert negotiated_timeout(recipe.client(asked), WAIT_TIMEOUT) == agreed


# The queue


def test_a_removed_place_is_not_granted(recipe: ZooKeeperRecipe, threads: Pool) -> None:
    lock = recipe("stock")
    with lock.hold():
        waiting = threads.submit(lock.acquire)
        wait_for(lambda: ZooKeeperTraces().waiters(lock) == 1)
        recipe.client().delete(f"{lock._queue_path}/{line(lock)[1]}")
    with pytest.raises(LockUnavailable, match="place in the queue"):
        waiting.result(WAIT_TIMEOUT)


def test_a_waiter_of_a_stopped_client_ends(recipe: ZooKeeperRecipe, threads: Pool) -> None:
    lock = recipe("stock", ttl=SHORTEST)
    with recipe("stock").hold():
        waiting = threads.submit(lock.acquire)
        wait_for(lambda: len(line(lock)) == 2)
        recipe.client(SHORTEST).stop()
        with pytest.raises(LockUnavailable):
            waiting.result(WAIT_TIMEOUT)


def test_a_waiter_keeps_its_place_when_the_server_restarts(zookeeper: ZooKeeper, link: Link, threads: Pool) -> None:
    lock = link.recipe("stock")
    lease = acquired(lock)
    waiting = threads.submit(lock.acquire, True, WAIT_TIMEOUT)
    wait_for(lambda: ZooKeeperTraces().waiters(lock) == 1)
    link.refuse()
    zookeeper.stop()
    zookeeper.start()
    link.restore()
    wait_for(lambda: link.recipe.client().connected)
    assert len(line(lock)) == 2
    assert lease.release() is True
    assert waiting.result(WAIT_TIMEOUT).release() is True


def test_the_server_removes_an_empty_queue(tmp_path: Path) -> None:
    with running_zookeeper("-Dznode.container.checkIntervalMs=50") as zookeeper:
        recipe = ZooKeeperRecipe(zookeeper.hosts, tmp_path)
        lock = recipe("stock")
        fences = []
        try:
            for _ in range(3):
                with lock.hold() as lease:
                    fences.append(lease.fence)
                wait_for(lambda: not recipe.client().exists(lock._queue_path))
        finally:
            clients.close()
    assert fences == sorted(set(fences))


def test_any_text_is_a_name_of_its_own(recipe: ZooKeeperRecipe) -> None:
    names = [".", "..", "a/b", "a%2Fb", "%2E", "\0", " ", "ü", "\udc80", "zookeeper"]
    leases = [acquired(recipe(name), blocking=False) for name in names]
    assert all(lease.release() for lease in leases)


def test_a_chroot_is_a_namespace(recipe: ZooKeeperRecipe, zookeeper: ZooKeeper) -> None:
    client = recipe.client()
    inside = clients(f"{zookeeper.hosts}/shop", LONG)
    with recipe("stock").hold(), ZooKeeperLock(inside, "stock").hold(timeout=0):
        assert len(client.get_children("/shop/locks/stock")) == 1


def test_a_client_of_the_parent_process_is_refused(recipe: ZooKeeperRecipe) -> None:
    lock = recipe("stock")

    def refusal() -> str:
        with pytest.raises(LockUnavailable) as refused:
            lock.acquire(timeout=0)
        return str(refused.value)

    with lock.hold() as lease:
        assert "parent process" in in_fork(refusal)
        assert in_fork(lambda: str(lease.release())) == "NotOwner"
        lease.check()


def test_a_client_that_was_not_started_is_refused() -> None:
    lock = ZooKeeperLock(KazooClient("127.0.0.1:1"), "stock")
    with pytest.raises(LockUnavailable, match="Start the client"):
        lock.acquire(timeout=0)


# The first acquire through a client


@pytest.fixture
def met(monkeypatch: Patch) -> list[KazooClient]:
    """Record the clients whose session timeout is read from the server."""
    asked: list[KazooClient] = []

    def ask(client: KazooClient, *args: Any) -> float:
        asked.append(client)
        return negotiated_timeout(client, *args)

    monkeypatch.setattr(session_module, "negotiated_timeout", ask)
    return asked


@pytest.mark.parametrize("known", [True, False])
def test_a_hanging_server_delays_only_its_client(
    recipe: ZooKeeperRecipe, link: Link, threads: Pool, met: list[KazooClient], known: bool
) -> None:
    healthy = (recipe if known else replace(recipe, own=1))("healthy")
    hung = link.recipe("hung")
    link.hang()
    try:
        asking = threads.submit(hung.acquire, timeout=WAIT_TIMEOUT)
        wait_for(lambda: met == [link.recipe.client()])
        lease = threads.submit(healthy.acquire, timeout=0).result(WAIT_TIMEOUT)
        assert not asking.done()
    finally:
        link.restore()
    assert [granted.release() for granted in (lease, asking.result(WAIT_TIMEOUT))] == [True, True]


@pytest.mark.parametrize("others", [0, 1])
def test_the_first_acquire_ends_in_time(link: Link, threads: Pool, met: list[KazooClient], others: int) -> None:
    lock = link.recipe("hung")
    link.hang()
    try:
        asking = [threads.submit(lock.acquire) for _ in range(others)]
        wait_for(lambda: len(met) == others)
        with pytest.raises(LockUnavailable, match="try again"):
            threads.submit(lock.acquire, timeout=0).result(WAIT_TIMEOUT)
        assert not any(one.done() for one in asking)
    finally:
        link.restore()
    assert [one.result(WAIT_TIMEOUT).release() for one in asking] == [True] * others


def test_a_cut_first_acquire_is_no_answer(link: Link) -> None:
    lock = link.recipe("cut")
    link.lose_the_answer(bytes(16))  # Match the empty password in a request for a new session.
    with pytest.raises(LockUnavailable, match="has closed the connection"):
        lock.acquire(timeout=0)
    acquired(lock, timeout=WAIT_TIMEOUT).release()


def test_a_client_is_asked_once(recipe: ZooKeeperRecipe, met: list[KazooClient]) -> None:
    newcomer = replace(recipe, own=1)
    locks = [newcomer(f"stock {place}") for place in range(8)]
    leases = run_threads(*[partial(lock.acquire, timeout=0) for lock in locks])
    assert [lease.release() for lease in leases] == [True] * 8
    assert met == [newcomer.client()]
