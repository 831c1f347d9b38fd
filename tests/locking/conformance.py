"""The conformance suite of the locks: one test per property.

The tests of a lock subclass `LockConformance` and the class of each capability that the lock declares, but of no other
capability. A flawed lock lists in `FAILS` the tests that it must fail; if it passes one of them, the run fails.
"""

from __future__ import annotations

import math
import re
import signal
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, ClassVar, TypeVar

import pytest

from locking import Lease, LeaseLost, Lock, LockTimeout, LockUnavailable, NotOwner
from locking.renewal import watchdog
from tests.locking import actors
from tests.locking.proxy import Link
from tests.locking.support import (
    Log,
    MakeLock,
    Patch,
    Pool,
    Recipe,
    acquired,
    collect,
    end_of,
    in_fork,
    paused,
    process,
    renew,
    renewing,
    run_threads,
)
from tests.waiting import WAIT_TIMEOUT, wait_for

SHORT = 0.5
"""Seconds: a TTL so short that a test can wait for its end."""

RENEWED = 2.0
"""Seconds: a TTL that can be renewed in time, even if the machine stalls for a second."""

LONG = 60.0
"""Seconds: a TTL longer than any test."""

BUSY = 1.0
"""Extra seconds for a busy machine, for example to wake a thread."""


Tests = TypeVar("Tests", bound="type[LockConformance]")


def without(*names: str) -> Callable[[Tests], Tests]:
    """Return a decorator that removes tests from a subclass of the suite."""

    def leave_out(tests: Tests) -> Tests:
        for name in names:
            assert hasattr(tests, name)
            setattr(tests, name, None)
        return tests

    return leave_out


def only(*names: str) -> Callable[[Tests], Tests]:
    """Return a decorator that keeps only these tests of a subclass of the suite."""

    def leave_out(tests: Tests) -> Tests:
        assert all(callable(getattr(tests, name)) for name in names)
        return without(*{name for name in dir(tests) if name.startswith("test_")}.difference(names))(tests)

    return leave_out


def fails(*names: str) -> Callable[[Tests], Tests]:
    """Return a decorator that runs only these tests of the suite, and requires that they fail."""

    def must_fail(tests: Tests) -> Tests:
        tests.FAILS = frozenset(names)
        return only(*names)(tests)

    return must_fail


class LockConformance(ABC):
    """What every lock guarantees. The fixture `recipe`, of conftest.py or the subclass, makes the locks under test.

    Attributes:
        SHORT: a TTL that a test waits out, in seconds; longer where the server has a longer minimum.
        OPTIONS: default options of the locks under test.
        IMPATIENT: options that give a waiter a short TTL, if it has one.
        PAIRS: number of acquires and releases before the traces are counted; fewer where a pair is slow.
        FAILS: tests that a flawed lock must fail.
        FLAW: what is patched in a flawed lock: an object, the name of its attribute, and the value.
    """

    SHORT: ClassVar[float] = SHORT
    OPTIONS: ClassVar[dict[str, Any]] = {}
    IMPATIENT: ClassVar[dict[str, Any]] = {}
    PAIRS: ClassVar[int] = 100
    FAILS: ClassVar[frozenset[str]] = frozenset()
    FLAW: ClassVar[tuple[Any, str, object] | None] = None

    @abstractmethod
    def waiters(self, lock: Lock) -> int:
        """Return how many waiters of the lock are asleep."""

    def is_asleep(self, thread: int) -> bool:
        """Return whether the client of a waiting thread can handle an interrupt now."""
        return True

    @abstractmethod
    def traces(self, lock: Lock) -> dict[str, int]:
        """Count, by kind, what the lock leaves on its server and in this process: keys, connections, …"""

    @pytest.fixture(autouse=True)
    def _flawed(self, request: pytest.FixtureRequest, monkeypatch: Patch) -> None:
        """Put in the flaw, and shorten the waits of tests that must fail."""
        if self.FLAW is not None:
            monkeypatch.setattr(*self.FLAW)
        if request.node.originalname in self.FAILS:
            monkeypatch.setattr(sys.modules[__name__], "WAIT_TIMEOUT", 6 * SHORT)

    @pytest.fixture
    def name(self) -> str:
        return f"test {uuid.uuid4()}"

    def made(self, recipe: Recipe, name: str, **options: Any) -> Lock:
        """Return a lock with the options of these tests, overridden by `options`."""
        return recipe(name, **{**self.OPTIONS, **options})

    @contextmanager
    def clients(self, recipe: Recipe, count: int) -> Iterator[Sequence[Recipe]]:
        """Yield `count` recipes of the same lock. Each has its own client object if the lock uses one."""
        yield [recipe] * count

    @pytest.fixture
    def make_lock(self, recipe: Recipe, name: str) -> MakeLock:
        def make(**options: Any) -> Lock:
            return self.made(recipe, name, **options)

        return make

    def test_what_it_declares_is_what_is_tested(self, make_lock: MakeLock, recipe: Recipe) -> None:
        declared = make_lock().capabilities
        assert {name for name in CONFORMANCE if getattr(declared, name)} == {
            name for name, tests in CONFORMANCE.items() if isinstance(self, tests)
        }
        # The tests of `across_machines` cut servers off, which the lab's locks do not allow.
        remote = declared.across_machines and hasattr(recipe, "through")
        assert remote is isinstance(self, AcrossMachinesConformance)
        scripted = getattr(recipe, "RELEASE", b"") == b"EVALSHA"
        assert scripted is isinstance(self, ScriptsConformance)

    # Granting and refusing

    def test_a_grant_is_a_lease_that_is_held(self, make_lock: MakeLock) -> None:
        lock = make_lock()
        lease = acquired(lock)
        lease.check()
        assert (lease.name, lease.lost) == (lock.name, False)
        assert 0 < lease.remaining() <= lock.ttl
        assert (lease.fence is not None) is lock.capabilities.fenced
        assert lease.release() is True

    def test_it_excludes_others_until_it_is_released(self, make_lock: MakeLock) -> None:
        first, second = make_lock(), make_lock()
        lease = acquired(first)
        assert second.acquire(blocking=False) is None
        assert second.acquire(timeout=0) is None
        lease.release()
        for once in ({"blocking": False}, {"timeout": 0}):
            acquired(second, **once).release()

    def test_only_a_dropped_lease_is_reported(self, make_lock: MakeLock, recwarn: pytest.WarningsRecorder) -> None:
        lock = make_lock()
        with lock.hold():
            assert run_threads(lambda: lock.acquire(blocking=False)) == [None]
        acquired(lock).release()
        collect()
        assert [str(one.message) for one in recwarn if lock.name in str(one.message)] == []

        def acquire_and_drop() -> None:
            # A typical mistake: acquire() returns no bool, but a lease that has to be released.
            bool(lock.acquire())
            collect()  # kazoo keeps the call's frames alive in a reference cycle.

        with pytest.warns(ResourceWarning, match=f"lock '{re.escape(lock.name)}' was dropped without release"):
            acquire_and_drop()

    def test_only_the_owner_releases(self, make_lock: MakeLock) -> None:
        lock, other = make_lock(), make_lock()
        early = acquired(lock)
        assert early.release() is True
        lease = acquired(other)
        assert (early.release(), lock._release(early)) == (False, False)
        assert lock.acquire(blocking=False) is None
        lease.check()
        assert lease.release() is True

    def test_another_name_is_another_lock(self, make_lock: MakeLock, recipe: Recipe, name: str) -> None:
        with make_lock().hold(), recipe(f"{name} 2").hold(timeout=0):
            pass

    def test_one_lock_object_serves_many_threads_at_once(self, make_lock: MakeLock) -> None:
        lock = make_lock()
        leases = [lease for lease in run_threads(*[lambda: lock.acquire(blocking=False)] * 8) if lease is not None]
        assert len(leases) == 1
        leases[0].release()

    def test_a_lease_may_be_used_by_another_thread(self, make_lock: MakeLock) -> None:
        lease = acquired(make_lock())
        run_threads(lease.check, lease.extend)
        assert run_threads(lease.release) == [True]

    def test_it_enters_again_only_if_it_says_so(self, make_lock: MakeLock) -> None:
        lock = make_lock()
        with lock.hold():
            inner = lock.acquire(blocking=False)
            assert (inner is not None) is lock.capabilities.reentrant
            if inner is not None:
                inner.release()

    def test_a_lease_is_not_extended_out_of_range(self, make_lock: MakeLock) -> None:
        with make_lock().hold() as lease:
            left = lease.remaining()
            for ttl in (1e6 + 1, 1e16, 10**400, math.nan, 0.001, 0.0, -1.0, *[math.inf][: lease.ttl < math.inf]):
                with pytest.raises(ValueError, match="ttl must be"):
                    lease.extend(ttl)
            with pytest.raises(TypeError, match="ttl must be a number"):
                lease.extend("10")  # type: ignore[arg-type]
            lease.check()
            assert lease.remaining() <= left

    # hold

    def test_hold_releases_on_leaving(self, make_lock: MakeLock) -> None:
        lock = make_lock()
        with lock.hold() as lease:
            lease.check()
        with pytest.raises(NotOwner):
            lease.check()
        with pytest.raises(KeyError), lock.hold(timeout=0):
            raise KeyError
        with lock.hold(timeout=0):
            pass

    def test_hold_says_when_it_was_not_granted(self, make_lock: MakeLock) -> None:
        lock, other = make_lock(), make_lock()
        with lock.hold(), pytest.raises(LockTimeout, match=lock.name), other.hold(timeout=0.05):
            pytest.fail("two hold it")

    # Exclusion

    def test_threads_lose_no_update(self, recipe: Recipe, name: str) -> None:
        assert self.lost_updates(recipe, name, locked=True) == 0
        wait_for(lambda: self.lost_updates(recipe, name, locked=False) > 0)  # the negative control

    def lost_updates(self, recipe: Recipe, name: str, *, locked: bool) -> int:
        recipe.cell(name).write(0)
        with self.clients(recipe, 10) as separate:
            locks = [(self.made(one, name), one.cell(name)) for one in separate]
            run_threads(*[partial(actors.add, lock, cell, 10, locked) for lock, cell in locks])
        return 100 - recipe.cell(name).read()

    # Waiting

    def test_a_waiter_is_woken_by_the_release(self, make_lock: MakeLock, threads: Pool) -> None:
        lock = make_lock()
        lease = acquired(lock)
        waiting = threads.submit(self.woken, lock)
        wait_for(lambda: self.waiters(lock) == 1)
        lease.release()
        assert waiting.result(WAIT_TIMEOUT).release() is True

    def woken(self, lock: Lock) -> Lease:
        """Acquire in less than half of the timeout, which proves that a release ended the wait."""
        start = time.monotonic()
        lease = acquired(lock, timeout=WAIT_TIMEOUT)
        assert time.monotonic() - start < WAIT_TIMEOUT / 2, "the waiter was not woken: it looked at the end of its time"
        return lease

    def test_a_timeout_is_a_total_deadline(self, make_lock: MakeLock) -> None:
        lock, other = make_lock(), make_lock()

        def late_by() -> float:
            before = time.monotonic()
            assert other.acquire(timeout=0.2) is None
            late = time.monotonic() - before - 0.2
            assert late >= 0
            return late

        with lock.hold():
            # A busy machine may delay a try, so one quick try is enough.
            wait_for(lambda: late_by() < 0.4)
            assert self.waiters(lock) == 0

    def test_an_interrupted_waiter_leaves_nothing(self, make_lock: MakeLock) -> None:
        lock, other = make_lock(), make_lock()
        main = threading.get_ident()

        def interrupt() -> None:
            wait_for(lambda: self.waiters(lock) == 1 and self.is_asleep(main))
            signal.pthread_kill(main, signal.SIGINT)

        # A shell makes background jobs ignore SIGINT.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with lock.hold():
                assert other.acquire(timeout=SHORT) is None  # Open the connections that stay open.
                before = self.all_traces(lock)
                thread = threading.Thread(target=interrupt)
                thread.start()
                with pytest.raises(KeyboardInterrupt):
                    other.acquire()
                thread.join()
                self.leaves_only(before, lock)
        finally:
            signal.signal(signal.SIGINT, handler)
        acquired(lock, timeout=0).release()

    # Traces

    def test_it_leaves_nothing_behind(self, make_lock: MakeLock) -> None:
        lock, other = make_lock(), make_lock()
        with lock.hold():
            assert other.acquire(timeout=SHORT) is None  # Open the connections that stay open.
        before = self.all_traces(lock)
        for _ in range(self.PAIRS):
            acquired(lock, timeout=LONG).release()  # A busy machine may respond late.
        self.leaves_only(before, lock)

    def test_failed_tries_leave_nothing_behind(self, make_lock: MakeLock) -> None:
        self.fail_12_tries(make_lock(), make_lock(), blocking=False)

    def test_failed_waits_leave_nothing(self, make_lock: MakeLock) -> None:
        self.fail_12_tries(make_lock(), make_lock(), timeout=0.03)

    def fail_12_tries(self, lock: Lock, other: Lock, **how: Any) -> None:
        """Check that failed tries leave nothing. Four threads try at once, so that some waiters queue behind others."""

        def try_in_vain(times: int) -> None:
            for _ in range(times):
                assert other.acquire(**how) is None

        with lock.hold():
            # First open the connections that stay open.
            assert other.acquire(timeout=SHORT) is None
            run_threads(*[partial(try_in_vain, 1)] * 8)
            before = self.all_traces(lock)
            run_threads(*[partial(try_in_vain, 3)] * 4)
            self.leaves_only(before, lock)

    def leaves_only(self, before: tuple[dict[str, int], int], lock: Lock) -> None:
        with suppress(AssertionError):
            wait_for(lambda: self.all_traces(lock) == before, timeout=WAIT_TIMEOUT / 3)
        assert self.all_traces(lock) == before

    def all_traces(self, lock: Lock) -> tuple[dict[str, int], int]:
        return self.traces(lock), threading.active_count() - renewing()


class FencedConformance(LockConformance):
    """Every grant carries a larger number (fence) than each earlier grant."""

    @abstractmethod
    def forget(self, lock: Lock) -> None:
        """Make the server drop the lock's state, as after long disuse."""

    def test_a_fence_grows_with_every_grant(self, make_lock: MakeLock) -> None:
        lock, fences = make_lock(), list[int]()
        for forgotten in (False, False, True):
            if forgotten:
                self.forget(lock)
            with lock.hold() as lease:
                fences.append(lease.fence)
        assert fences == sorted(set(fences))


class AcrossProcessesConformance(LockConformance):
    """The lock excludes other processes, and survives the crash of one of them."""

    def test_processes_lose_no_update(self, recipe: Recipe, name: str) -> None:
        assert self.lost_by_processes(recipe, name, locked=True) == 0
        wait_for(lambda: self.lost_by_processes(recipe, name, locked=False) > 0)  # the negative control

    def lost_by_processes(self, recipe: Recipe, name: str, *, locked: bool) -> int:
        recipe.cell(name).write(0)
        adding = (actors.increment, recipe, name, self.OPTIONS, 25, locked)
        with ExitStack() as stack:
            pipes = [stack.enter_context(process(*adding))[1] for _ in range(4)]
            assert [pipe.recv() for pipe in pipes] == ["ready"] * 4
            for pipe in pipes:
                pipe.send("go")
            assert [pipe.recv() for pipe in pipes] == ["done"] * 4
        return 100 - recipe.cell(name).read()

    def test_greenlets_each_own_a_lease(self, recipe: Recipe, name: str) -> None:
        """The greenlets run in another process, because gevent patches the whole process."""
        recipe.cell(name).write(0)
        with process(actors.add_in_greenlets, recipe, name, self.OPTIONS) as (child, _):
            child.join(2 * WAIT_TIMEOUT)
            assert child.exitcode == 0
        assert recipe.cell(name).read() == 20


class AcrossMachinesConformance(LockConformance):
    """The lock is on servers that can restart, and whose responses can be lost."""

    RELEASE_WRITES: ClassVar[int] = 1
    """Number of changes that a release without waiters makes."""

    @abstractmethod
    def written(self, lock: Lock) -> int:
        """Return the number of changes that the servers have stored."""

    @abstractmethod
    def restart(self) -> None:
        """Restart all servers with the data on their disks."""

    def test_a_release_without_waiters_writes_once(self, make_lock: MakeLock) -> None:
        lock = make_lock()
        with lock.hold():
            # A waiter that gives up must leave no work to the release.
            assert make_lock().acquire(timeout=0.01) is None
            before = self.written(lock)
        assert self.written(lock) - before == self.RELEASE_WRITES

    def test_an_unanswered_release_can_be_repeated(self, link: Link, make_lock: MakeLock, name: str) -> None:
        lock = self.made(link.recipe, name)
        acquired(lock).release()  # Open connections, and let the servers cache the scripts.
        lease = acquired(lock)
        link.lose_the_answer(link.recipe.RELEASE)
        try:
            ours = lease.release()  # Some locks repeat the request by themselves.
        except LockUnavailable:
            with make_lock().hold(timeout=WAIT_TIMEOUT) as other:
                ours = lease.release()
                other.check()
                other.extend()
                assert make_lock().acquire(blocking=False) is None
        wait_for(lambda: link.lost == len(link.proxies))
        assert ours is True
        assert lease.release() is False
        acquired(make_lock(), timeout=WAIT_TIMEOUT).release()

    def test_it_works_after_a_restart(self, link: Link, name: str) -> None:
        """After a restart, a lease is held or lost as declared, but there are never two holders.

        A waiter is granted the lock or raises LockUnavailable. Clients are cut off until the servers are ready, because
        some starting servers accept requests and never answer them.
        """
        lock, other, third = (self.made(link.recipe, name, **options) for options in ({}, {}, self.IMPATIENT))
        survives = lock.capabilities.survives_restart
        with ThreadPoolExecutor(1) as threads:
            lease = acquired(lock)
            assert not lock.capabilities.renews or is_renewed(lease)  # Open the connection for renewals.
            waiting = threads.submit(third.acquire, timeout=2 * WAIT_TIMEOUT)
            wait_for(lambda: self.waiters(third) == 1)
            link.refuse()
            self.restart()
            link.restore()
            early = self.answer(other)
            served = waiting.done() and waiting.exception() is None
            assert lease.lost is not survives
            assert [not lease.lost, early is not None, served].count(True) == 1, "not exactly one client holds the lock"
            if survives and lock.capabilities.renews:
                wait_for(lambda: is_renewed(lease), "renewal to find the servers again", timeout=WAIT_TIMEOUT)
            if survives:
                lease.extend()
            assert lease.release() is survives
            if early is not None:
                assert lock.acquire(blocking=False) is None
                assert early.release() is True
            wait([waiting], WAIT_TIMEOUT)
            assert waiting.done(), "a waiter from before the restart still waits"
            if not isinstance(waiting.exception(), LockUnavailable):
                last = waiting.result()
                assert last is not None
                assert last.release() is True
        for one, another in [(lock, other), (other, lock)]:
            with one.hold(timeout=WAIT_TIMEOUT) as later:
                assert another.acquire(blocking=False) is None
                assert not lock.capabilities.fenced or later.fence > lease.fence

    def answer(self, lock: Lock) -> Lease | None:
        """Try to acquire until a server answers. Return the lease, or None if the lock is held."""

        def ask() -> list[Lease | None]:
            with suppress(LockUnavailable):
                return [lock.acquire(blocking=False)]
            return []

        return wait_for(ask, "the servers to answer", timeout=WAIT_TIMEOUT)[0]


def is_renewed(lease: Lease) -> bool:
    """Renew once, as the watchdog does. Return whether the servers extended the lease."""
    watched = watchdog._watched[lease.token]
    held = watched.lease()
    assert held is not None
    assert watched.renewer is not None
    return watched.renewer.renew([held], 1.0) == [True]


class ScriptsConformance(LockConformance):
    """The servers cache the lock's scripts, but may drop them at any time (SCRIPT FLUSH)."""

    @abstractmethod
    def lose_the_scripts(self) -> None:
        """Make all servers drop their cached scripts."""

    def test_it_works_after_the_scripts_were_lost(self, make_lock: MakeLock) -> None:
        lock, other = make_lock(), make_lock()
        self.lose_the_scripts()
        lease = acquired(lock)
        self.lose_the_scripts()
        assert other.acquire(blocking=False) is None
        self.lose_the_scripts()
        assert other.acquire(timeout=0.01) is None  # This waiter gives up and leaves the queue.
        self.lose_the_scripts()
        lease.extend()
        self.lose_the_scripts()
        assert is_renewed(lease)
        self.lose_the_scripts()
        assert lease.release() is True
        self.lose_the_scripts()
        acquired(other, timeout=0).release()


class SurvivesHolderCrashConformance(LockConformance):
    """When the holder dies, another client gets the lock within a bounded time."""

    CRASH_OPTIONS: ClassVar[dict[str, Any]] = {}
    """Options that shorten the bound: a TTL, unless the server itself notices the death of a client."""

    CRASH_GRACE: ClassVar[float] = 0.0
    """Seconds beyond the TTL for which the server may keep the lock of a dead holder."""

    def test_the_lock_of_a_crashed_holder_becomes_free(self, make_lock: MakeLock, recipe: Recipe) -> None:
        lock = make_lock(**self.CRASH_OPTIONS)
        with process(actors.hold, recipe, lock.name, {**self.OPTIONS, **self.CRASH_OPTIONS}) as (holder, pipe):
            pipe.recv()
            assert lock.acquire(timeout=2 * self.SHORT) is None
            holder.kill()
            bound = self.CRASH_OPTIONS.get("ttl", 0.0) + self.CRASH_GRACE
            lease = lock.acquire(timeout=bound + BUSY)
            assert lease is not None, f"it is not free {bound} s after the death of its holder"
            lease.release()


class SurvivesNodeLossConformance(LockConformance):
    """While a minority of its servers is unreachable, the lock still grants and excludes others."""

    NODE_LOSS_OPTIONS: ClassVar[dict[str, Any]] = {}
    """Options with which the tests lose little time to a hanging server."""

    @abstractmethod
    def without_a_minority(self) -> AbstractContextManager[None]:
        """Stop or hang as many servers as the lock can survive."""

    @pytest.fixture
    def on_several_servers(self, make_lock: MakeLock) -> MakeLock:
        """Return a function that makes locks on several servers. Override it if other tests use one server."""
        return make_lock

    def test_it_is_kept_and_granted_without_a_minority(self, on_several_servers: MakeLock) -> None:
        lock, other = (on_several_servers(**self.NODE_LOSS_OPTIONS) for _ in range(2))
        lease = acquired(lock)
        with self.without_a_minority():
            for another in (other, lock, other):
                assert another.acquire(blocking=False) is None
                lease.extend()
                assert lease.release() is True
                lease = acquired(another, timeout=WAIT_TIMEOUT)
            lease.release()


class ForkConformance(LockConformance):
    """A forked child does not hold its parent's leases, and can acquire its own."""

    def test_a_forked_child_neither_holds_nor_releases_what_its_parent_holds(self, make_lock: MakeLock) -> None:
        lock, other = make_lock(), make_lock()
        block = lock.hold()
        lease = block.__enter__()
        assert in_fork(lambda: str(lease.release())) == "NotOwner"

        def lock_again() -> str:
            mine = acquired(lock, blocking=False)
            return f"{mine.token != lease.token} {run_threads(lambda: lock.acquire(blocking=False))} {mine.release()}"

        if lock.capabilities.across_processes:
            assert in_fork(lambda: str(lock.acquire(blocking=False))) == "None"
        else:
            assert in_fork(lock_again) == "True [None] True"
        assert in_fork(lambda: str(block.__exit__(None, None, None))) in ("None", "False")
        lease.check()
        assert other.acquire(blocking=False) is None
        assert lease.release() is True
        block.__exit__(None, None, None)
        acquired(other, blocking=False).release()


class ExpiresConformance(LockConformance):
    """A grant that is not extended ends after its TTL."""

    def test_the_longest_ttl_works(self, make_lock: MakeLock) -> None:
        with make_lock(ttl=1e6).hold() as lease:
            lease.extend()
            assert lease.remaining() > 0.9e6

    def test_leaving_hold_with_a_lost_lease(self, make_lock: MakeLock, caplog: Log) -> None:
        told: list[Lease] = []
        lock = make_lock(ttl=self.SHORT, renew=False, on_lost=told.append)
        with lock.hold() as lease:
            wait_for(lambda: lease.lost)
        wait_for(lambda: told)
        assert [one.token for one in told] == [lease.token]
        assert lock.name in caplog.text

    def test_a_holder_paused_beyond_its_ttl_is_told(self, make_lock: MakeLock, recipe: Recipe) -> None:
        lock = make_lock()
        with process(actors.write_after_a_pause, recipe, lock.name, {"ttl": self.SHORT}) as (holder, pipe):
            fence = pipe.recv()
            with paused(holder.pid):
                lease = acquired(lock, timeout=WAIT_TIMEOUT)
                pipe.send("go on")
            said, told, ours = pipe.recv()
            assert (said, told, ours) == ("lost", 1, False)
            lease.check()
            if lock.capabilities.fenced:
                assert lease.fence is not None
                assert lease.fence > fence
            assert lease.release() is True

    def test_a_briefly_paused_holder_keeps_it(self, recipe: Recipe, name: str) -> None:
        with process(actors.write_after_a_pause, recipe, name, {"ttl": LONG}) as (holder, pipe):
            pipe.recv()
            with paused(holder.pid):
                pipe.send("go on")
            assert pipe.recv() == ("held", 0, True)

    def test_a_lost_lease_cannot_be_released(self, make_lock: MakeLock) -> None:
        """Without renewal, a lease is lost after its TTL. Its holder can neither extend nor release the lock then."""
        late = acquired(make_lock(ttl=self.SHORT, renew=False))
        lease = acquired(make_lock(), timeout=WAIT_TIMEOUT)
        assert late.lost
        assert late.release() is False
        with pytest.raises(LeaseLost):
            late.extend()
        lease.extend()
        assert make_lock().acquire(blocking=False) is None
        assert lease.release() is True


class RenewsConformance(LockConformance):
    """A watchdog extends the lease while its holder lives."""

    def test_renewal_keeps_the_lock_beyond_its_ttl(self, make_lock: MakeLock) -> None:
        lock = make_lock(ttl=RENEWED)
        assert lock.capabilities.renews
        with lock.hold() as lease:
            assert make_lock(ttl=RENEWED).acquire(timeout=1.5 * RENEWED) is None
            # Try again, because on a busy machine the waiter may not have tried after the TTL.
            assert make_lock(ttl=RENEWED).acquire(blocking=False) is None
            lease.check()

    def test_a_grant_that_comes_too_late_is_given_back(self, make_lock: MakeLock) -> None:
        """Each reading of this clock is a thousand seconds later than the one before."""
        clock = partial(next, count(0.0, 1000.0))
        with suppress(LockUnavailable):
            assert make_lock(clock=clock).acquire(blocking=False) is None
        acquired(make_lock(), blocking=False).release()

    def test_the_holder_is_told_when_the_server_hangs(self, link: Link, name: str) -> None:
        self.tell_the_holder(link, name, link.hang)

    def test_the_holder_is_told_when_the_server_is_gone(self, link: Link, name: str) -> None:
        self.tell_the_holder(link, name, link.refuse)

    def tell_the_holder(self, link: Link, name: str, fail: Callable[[], None]) -> None:
        """Let renewal succeed once, then fail. Check that the holder is told in time, and once."""
        told: list[tuple[float, str]] = []
        lock = self.made(
            link.recipe, name, ttl=RENEWED, on_lost=lambda lease: told.append((time.monotonic(), lease.token))
        )
        lease = acquired(lock)
        renew(lease, seconds=0.1)  # Now there is a connection to hang on.
        fail()
        ends = end_of(lease)
        wait_for(lambda: told, timeout=WAIT_TIMEOUT)
        (at, token), *more = told
        assert at <= ends + BUSY
        assert (token, more, lease.lost) == (lease.token, [], True)
        with pytest.raises(LeaseLost):
            lease.check()
        assert len(told) == 1

    def test_renewal_ends_with_the_release(self, make_lock: MakeLock) -> None:
        lease = acquired(make_lock(ttl=self.SHORT))
        assert renewing()
        lease.release()
        wait_for(lambda: not renewing())

    def test_a_dropped_lease_is_not_renewed(self, make_lock: MakeLock) -> None:
        lock = make_lock(ttl=self.SHORT)
        lease = acquired(lock)
        del lease
        collect()
        second = acquired(lock, timeout=WAIT_TIMEOUT)
        second.release()

    def test_a_forked_child_does_not_renew_for_its_parent(self, make_lock: MakeLock) -> None:
        with make_lock(ttl=self.SHORT).hold() as lease:
            assert lease.token in watchdog._watched
            # The child has no watchdog thread until its next lease.
            assert in_fork(lambda: f"{renewing()} {[*watchdog._watched]}") == "False []"

    def test_a_forked_child_renews_for_itself(self, make_lock: MakeLock, recipe: Recipe, name: str) -> None:
        lock, gone = make_lock(), list[Lease]()
        if not lock.capabilities.forks:
            assert in_fork(lambda: str(lock.acquire(timeout=0))) == "LockUnavailable"
            return
        _lost = acquired(self.made(recipe, f"{name} 2", ttl=self.SHORT, renew=False, on_lost=gone.append))
        with self.made(recipe, f"{name} 2").hold(timeout=WAIT_TIMEOUT), lock.hold() as lease:
            wait_for(lambda: gone)
            renewer = watchdog._watched[lease.token].renewer
            assert renewer is not None
            assert renewer.renew(gone, 1.0) == [False], "whatever it opens once and keeps is open now"
            lease.release()
            ends = threading.Event()
            answers: list[bool | None] = []

            def renew_on() -> None:
                while not ends.is_set():
                    answers.extend(renewer.renew(gone, 1.0))

            def body() -> str:
                with lock.hold(timeout=WAIT_TIMEOUT) as mine:
                    held = watchdog._watched[mine.token].lease()
                    assert held is not None
                    return str({answer for _ in range(200) for answer in renewer.renew([held], 1.0)})

            thread = threading.Thread(target=renew_on)
            thread.start()
            try:
                wait_for(lambda: answers)
                assert in_fork(body) == "{True}"
            finally:
                ends.set()
                thread.join()
            assert set(answers) == {False}


class FairConformance(LockConformance):
    """Waiters are served in order of arrival. A dead waiter delays the others by at most two TTLs."""

    def in_line(self, lock: Lock) -> int:
        """Return the number of waiters, including those of other processes."""
        return self.waiters(lock)

    def test_waiters_are_served_in_order(self, make_lock: MakeLock) -> None:
        lock = make_lock()
        lease = acquired(lock)
        served: list[int] = []

        def wait(place: int) -> None:
            with lock.hold(timeout=WAIT_TIMEOUT):
                served.append(place)

        with ThreadPoolExecutor(6) as threads:
            for place in range(6):
                threads.submit(wait, place)
                wait_for(lambda count=place + 1: self.waiters(lock) == count)
            lease.release()
        assert served == list(range(6))

    def test_greedy_holders_get_equally_many_turns(self, recipe: Recipe, name: str) -> None:
        turns: list[int] = []
        greedy, rounds = 5, 4

        def take_turns(who: int) -> None:
            lock = recipe(name, **self.OPTIONS)
            for _ in range(rounds):
                with lock.hold(timeout=WAIT_TIMEOUT):
                    turns.append(who)
                    others = sum(turns.count(other) < rounds for other in range(greedy) if other != who)
                    wait_for(lambda others=others: self.waiters(lock) >= others)

        run_threads(*[lambda who=who: take_turns(who) for who in range(greedy)])
        assert [sorted(turns[at : at + greedy]) for at in range(0, len(turns), greedy)] == [[*range(greedy)]] * rounds

    def test_the_first_in_line_may_die(self, make_lock: MakeLock, recipe: Recipe) -> None:
        with self.behind_another(make_lock, recipe) as (first, release):
            first.kill()
            release()

    def test_the_first_in_line_may_be_stopped(self, make_lock: MakeLock, recipe: Recipe) -> None:
        with self.behind_another(make_lock, recipe) as (first, release), paused(first.pid):
            release()

    def test_the_death_of_a_waiter_grants_nothing(self, make_lock: MakeLock, recipe: Recipe) -> None:
        lock = make_lock(**self.IMPATIENT)
        with self.behind_another(make_lock, recipe) as (first, release):
            first.kill()
            # The server has noticed the death, and the second waiter sleeps again.
            wait_for(lambda: self.in_line(lock) == self.waiters(lock) == 1, timeout=WAIT_TIMEOUT)
            release()

    @contextmanager
    def behind_another(self, make_lock: MakeLock, recipe: Recipe) -> Iterator[tuple[Any, Callable[[], None]]]:
        """Yield a waiting process, and a function that releases the lock and checks that the second waiter gets it."""
        lock = make_lock(**self.IMPATIENT)
        lease = acquired(lock)
        ttl = self.IMPATIENT.get("ttl")
        bound = 2.9 * ttl if ttl else 2 * BUSY  # two TTLs, plus a margin for a busy machine
        with (
            process(actors.wait_and_hold, recipe, lock.name, {**self.OPTIONS, **self.IMPATIENT}) as (first, _),
            ThreadPoolExecutor(1) as threads,
        ):
            wait_for(lambda: self.in_line(lock) == 1)
            second = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
            wait_for(lambda: self.in_line(lock) == 2)

            def release() -> None:
                assert not second.done()
                assert lease.release() is True
                wait([second], bound)
                assert second.done(), f"who came after it is not served {bound:.1f} s after the release"

            yield first, release
            got = second.result()
            assert got is not None
            assert got.release() is True


class ReentrantConformance(LockConformance):
    """The holder can acquire the lock again."""

    def test_the_outermost_release_frees_it(self, make_lock: MakeLock) -> None:
        lock = make_lock()
        with lock.hold():
            acquired(lock, timeout=0).release()
            assert run_threads(lambda: lock.acquire(blocking=False)) == [None]
        assert [lease.release() for lease in run_threads(lambda: lock.acquire(blocking=False))] == [True]


class QuietWaitConformance(LockConformance):
    """A waiter that is not woken queries the lock at most once per TTL."""

    @abstractmethod
    def asked(self, lock: Lock) -> int:
        """Return how many commands of the lock's waiters the server has run."""

    @abstractmethod
    def woken_in_vain(self, lock: Lock) -> AbstractContextManager[Callable[[], object]]:
        """Hold the lock, and yield a function that wakes waiters although the lock stays held."""

    @abstractmethod
    def before_sleep(self, monkeypatch: Patch, body: Callable[[], object]) -> None:
        """Run `body` when a waiter was refused, just before it sleeps."""

    def test_wake_ups_do_not_extend_the_timeout(self, make_lock: MakeLock) -> None:
        lock, timeout = make_lock(), 1.0
        with ThreadPoolExecutor(1) as threads, self.woken_in_vain(lock) as wake:
            others = self.waiters(lock)
            start = time.monotonic()
            attempt = threads.submit(make_lock().acquire, timeout=timeout)
            wait_for(lambda: self.waiters(lock) == others + 1)
            # Wake the waiter until the deadline, to see that a wake-up does not restart its wait.
            while not attempt.done() and time.monotonic() < start + timeout + BUSY:
                wake()
                wait([attempt], 0.01)
            took, served = time.monotonic() - start, attempt.done()
        lease = attempt.result(WAIT_TIMEOUT)
        if lease is not None:
            lease.release()
        assert (served, lease) == (True, None)
        assert took >= timeout

    def test_a_release_before_the_sleep_is_not_missed(self, make_lock: MakeLock, monkeypatch: Patch) -> None:
        lock = make_lock()
        lease = acquired(lock)
        released: list[bool] = []

        def release() -> None:
            if not released:
                released.append(True)
                assert lease.release() is True

        self.before_sleep(monkeypatch, release)
        (got,) = run_threads(lambda: self.woken(make_lock()))
        assert released
        assert got.release() is True

    def test_an_idle_waiter_is_quiet(self, make_lock: MakeLock) -> None:
        holder, lock = make_lock(), make_lock(**self.IMPATIENT)
        seconds, allowed = (1.0, 1) if lock.ttl == math.inf else (2 * lock.ttl, 3)
        with holder.hold():
            thread = threading.Thread(target=lambda: lock.acquire(timeout=seconds + WAIT_TIMEOUT).release())  # type: ignore[union-attr]
            thread.start()
            wait_for(lambda: self.waiters(lock) == 1)
            before, until = self.asked(lock), time.monotonic() + seconds
            wait_for(lambda: time.monotonic() > until)
            assert self.asked(lock) - before <= allowed
        thread.join()


class LeaseConformance(
    AcrossMachinesConformance,
    AcrossProcessesConformance,
    ExpiresConformance,
    ForkConformance,
    RenewsConformance,
    SurvivesHolderCrashConformance,
):
    """What every lock on servers guarantees whose grants expire."""


CONFORMANCE: dict[str, type[LockConformance]] = {
    "across_processes": AcrossProcessesConformance,
    "expires": ExpiresConformance,
    "fair": FairConformance,
    "fenced": FencedConformance,
    "forks": ForkConformance,
    "quiet_wait": QuietWaitConformance,
    "reentrant": ReentrantConformance,
    "renews": RenewsConformance,
    "survives_holder_crash": SurvivesHolderCrashConformance,
    "survives_node_loss": SurvivesNodeLossConformance,
}
"""The tests of each capability except `across_machines`, whose tests cut servers off."""
