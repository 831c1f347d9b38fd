"""EtcdLock: the conformance suite, and its queue of keys."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from locking import LockUnavailable
from locking.etcd import EtcdLock
from locking.etcd.gateway import EtcdGateway, session_of
from locking.etcd.lock import QueueKey, QueueTail
from servers.etcd import Etcd
from tests.locking import conformance as suite
from tests.locking.conformance import LONG, fails
from tests.locking.etcd_support import EtcdRecipe, EtcdTraces, Observer, client_of, running_etcd
from tests.locking.quorum_support import OnThreeServers
from tests.locking.support import Patch, Pool, acquired, fork_sleeper, in_fork, paused
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = pytest.mark.slow

SHORTEST = 1
"""Seconds: the shortest TTL of a lock on etcd."""


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with running_etcd() as running:
        yield running


@pytest.fixture
def own_etcd() -> Iterator[Etcd]:
    """Yield a server that the test may stop, kill and pause."""
    with running_etcd() as running:
        yield running


@pytest.fixture
def recipe(etcd: Etcd, observer: Observer, tmp_path: Path) -> Iterator[EtcdRecipe]:
    observer.clear()  # Revoke leases of processes that tests have killed.
    yield EtcdRecipe(etcd.host, etcd.port, tmp_path)
    client_of.cache_clear()


@pytest.fixture
def own(own_etcd: Etcd, tmp_path: Path) -> EtcdRecipe:
    return EtcdRecipe(own_etcd.host, own_etcd.port, tmp_path)


@pytest.fixture
def observer(etcd: Etcd) -> Observer:
    return Observer(etcd)


class TestEtcdLock(
    EtcdTraces,
    suite.LeaseConformance,
    suite.FairConformance,
    suite.FencedConformance,
    suite.QuietWaitConformance,
    OnThreeServers,
):
    KIND = "etcd"
    SHORT = SHORTEST
    OPTIONS = {"ttl": LONG}
    CRASH_OPTIONS = {"ttl": SHORTEST}
    CRASH_GRACE = 1.5  # etcd keeps a queue entry a second longer, and checks leases every half second.
    IMPATIENT = {"ttl": SHORTEST}

    @pytest.fixture(autouse=True)
    def _server(self, etcd: Etcd, observer: Observer) -> None:
        self.etcd, self.observer = etcd, observer

    def restart(self) -> None:
        self.etcd.kill()
        self.etcd.start()


@fails("test_failed_waits_leave_nothing")
class TestEtcdLockThatStaysInLine(TestEtcdLock):
    FLAW = (EtcdLock, "_revoke", lambda *args: True)


@fails("test_a_release_before_the_sleep_is_not_missed")
class TestEtcdLockThatWatchesFromNowOn(TestEtcdLock):
    watch = EtcdGateway.deletions
    FLAW = (EtcdGateway, "deletions", lambda self, key, _, seconds, watch=watch: watch(self, key, 0, seconds))


@fails("test_the_death_of_a_waiter_grants_nothing")
class TestEtcdLockThatTrustsItsWatch(TestEtcdLock):
    """Flawed: a woken waiter takes the lock without reading the queue again."""

    def trust(self: Any, seconds: float, *, until: int | None = None, look: Any = EtcdLock._look) -> QueueTail:
        return look(self, seconds) if until is None else QueueTail([QueueKey("", until)], 0)

    FLAW = (EtcdLock, "_look", trust)


class TestTtl:
    def test_a_server_with_longer_leases_is_refused(self, tmp_path: Path) -> None:
        with running_etcd("--election-timeout=2000") as slow:  # The minimum TTL is 1.5 times the election timeout.
            recipe = EtcdRecipe(slow.host, slow.port, tmp_path)
            with pytest.raises(ValueError, match=r"ttl.* 3 s"):
                recipe("a", ttl=1).acquire()
            assert Observer(slow).leases() == 0
            acquired(recipe("a", ttl=2), timeout=0).release()

    def test_it_is_extended_by_its_own_ttl_only(self, recipe: EtcdRecipe) -> None:
        with recipe("a", ttl=10).hold() as lease:
            lease.extend(5)
            assert lease.remaining() > 5
            with pytest.raises(ValueError, match="ttl"):
                lease.extend(11)
            lease.check()


class TestName:
    def test_a_name_within_another_is_another_lock(self, recipe: EtcdRecipe, monkeypatch: Patch) -> None:
        with recipe("a/b").hold(), recipe("a").hold(timeout=0), recipe("ä{} b").hold(timeout=0):
            pass
        monkeypatch.setattr("locking.etcd.lock.quote", lambda name, **options: name)  # the negative control
        with recipe("a/b").hold():
            assert recipe("a").acquire(timeout=0) is None


class TestWatch:
    def test_a_deletion_in_compacted_history_is_seen(
        self, recipe: EtcdRecipe, observer: Observer, monkeypatch: Patch
    ) -> None:
        """The holder leaves after the waiter reads the queue and before it sets its watch."""
        lock, between = recipe("a", ttl=60), acquired(recipe("a", ttl=60))

        def leave() -> None:
            between.release()
            acquired(recipe("another", ttl=60)).release()  # This acquire creates a later revision.
            observer.compact()

        EtcdTraces().before_sleep(monkeypatch, leave)
        acquired(lock, timeout=WAIT_TIMEOUT).release()

    def test_a_forked_child_does_not_keep_it_open(self, recipe: EtcdRecipe, observer: Observer, threads: Pool) -> None:
        lock = recipe("a", ttl=60)
        with lock.hold():
            waiting = threads.submit(lock.acquire, timeout=1.0)
            wait_for(lambda: observer.asleep(lock) == 1)
            child = fork_sleeper()
            try:
                assert waiting.result(WAIT_TIMEOUT) is None
                wait_for(lambda: observer.watchers() == 0)
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)

    def test_a_forked_child_has_connections_of_its_own(self, recipe: EtcdRecipe) -> None:
        client, ours = recipe.client, session_of(recipe.client)
        assert session_of(client) is ours
        assert in_fork(lambda: str(session_of(client) is ours)) == "False"


class TestLine:
    def test_a_waiter_without_a_place_queues_again(self, recipe: EtcdRecipe, observer: Observer, threads: Pool) -> None:
        lock = recipe("a", ttl=60)
        lease = acquired(lock)
        waiter = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
        wait_for(lambda: observer.asleep(lock) == 1)
        (place,) = observer.ids() - {int(lease.token, 16)}
        observer.ask("lease/revoke", ID=str(place))  # as after a long pause
        lease.release()
        got = waiter.result(WAIT_TIMEOUT)
        got.extend()
        assert got.fence > lease.fence
        assert lock.acquire(blocking=False) is None
        assert got.release() is True
        assert observer.leases() == 0


class TestServer:
    @pytest.mark.parametrize("end", [Etcd.stop, Etcd.kill])
    def test_a_waiter_is_told_that_the_server_is_gone(
        self, own: EtcdRecipe, own_etcd: Etcd, threads: Pool, end: Callable[[Etcd], None]
    ) -> None:
        lock, observer = own("a", ttl=60), Observer(own_etcd)
        _held = acquired(lock)
        waiter = threads.submit(lock.acquire)
        wait_for(lambda: observer.asleep(lock) == 1)
        end(own_etcd)
        assert isinstance(waiter.exception(WAIT_TIMEOUT), LockUnavailable)

    def test_a_server_that_hangs_holds_nobody_up(self, own: EtcdRecipe, own_etcd: Etcd, threads: Pool) -> None:
        lock, observer = own("a", ttl=2, renew=False), Observer(own_etcd)
        with own("a", ttl=60).hold() as holder:
            waiter = threads.submit(lock.acquire)
            wait_for(lambda: observer.asleep(lock) == 1)
            with paused(own_etcd.child.pid):
                for body in (lambda: lock.acquire(blocking=False), lambda: lock.acquire(timeout=0.1)):
                    begun = time.monotonic()
                    with pytest.raises(LockUnavailable):
                        body()
                    assert time.monotonic() - begun < 5.0
                assert isinstance(waiter.exception(WAIT_TIMEOUT), LockUnavailable)
            holder.extend()
            wait_for(lambda: observer.leases() == 1)
            assert holder.release() is True

    def test_what_is_no_etcd_is_said(self, own: EtcdRecipe) -> None:
        client = own.client
        for path in ("/nowhere/", "/metrics?"):
            client._api_path = path
            with pytest.raises(LockUnavailable, match="Try again"):
                EtcdLock(client, "a", ttl=60).acquire()

    def test_the_settings_of_the_session_are_kept(self, recipe: EtcdRecipe) -> None:
        seen: list[int] = []
        session = requests.Session()
        session.hooks["response"].append(lambda answer, **options: seen.append(answer.status_code))
        client = type(recipe.client)(recipe.host, recipe.port, session=session)
        acquired(EtcdLock(client, "a", ttl=60)).release()
        assert seen == [200, 200, 200]
