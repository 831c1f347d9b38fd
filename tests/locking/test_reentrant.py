"""ReentrantLock."""

from __future__ import annotations

import _thread
import asyncio
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import greenlet
import pytest
import redis

from locking import Lease, LeaseLost, Lock, NotOwner, RedisLock, reentrant
from locking.local import ThreadLock
from locking.reentrant import ReentrantLock
from tests.locking import test_local, test_redis
from tests.locking.conformance import LONG, ReentrantConformance
from tests.locking.support import (
    Clock,
    Log,
    Patch,
    Pool,
    RedisRecipe,
    ReentrantRecipe,
    acquired,
    collect,
    run_threads,
    separate_clients,
)
from tests.locking.test_local import ThreadRecipe, in_line
from tests.waiting import WAIT_TIMEOUT, wait_for


class Reentrant(ReentrantConformance):
    def traces(self, lock: Any) -> dict[str, int]:
        return {**super().traces(lock), "grants": len(lock._grants)}


@pytest.mark.slow
class TestReentrantRedisLock(Reentrant, test_redis.TestRedisLock):
    @pytest.fixture
    def recipe(self, recipe: RedisRecipe) -> ReentrantRecipe:
        return ReentrantRecipe(recipe)

    @pytest.fixture
    def client(self, recipe: ReentrantRecipe) -> redis.Redis:
        return recipe.inner.client

    @contextmanager
    def clients(self, recipe: ReentrantRecipe, count: int) -> Iterator[list[ReentrantRecipe]]:
        with separate_clients(recipe.inner, count) as separate:
            yield [ReentrantRecipe(one) for one in separate]


class TestReentrantThreadLock(Reentrant, test_local.TestThreadLock):
    @pytest.fixture
    def recipe(self, tmp_path: Path) -> ReentrantRecipe:
        return ReentrantRecipe(ThreadRecipe(tmp_path))

    def woken_in_vain(self, lock: Any) -> AbstractContextManager[Callable[[], object]]:
        return super().woken_in_vain(lock._lock)


@pytest.fixture
def lock(name: str) -> ReentrantLock:
    return ReentrantLock(ThreadLock(name))


def held(lock: Lock) -> Lease:
    return acquired(lock, blocking=False)


def free_for_others(lock: Lock) -> bool:
    [lease] = run_threads(lambda: lock.acquire(blocking=False))
    return lease is not None and lease.release()


# Counting


@pytest.mark.parametrize("order", ["inner first", "outer first"])
def test_the_last_release_frees_it_in_whatever_order(lock: ReentrantLock, order: str) -> None:
    leases = [held(lock) for _ in range(4)]
    for lease in reversed(leases) if order == "inner first" else leases:
        assert not free_for_others(lock)
        assert lease.release() is True
        assert lease.release() is False
        with pytest.raises(NotOwner):
            lease.check()
    assert free_for_others(lock)


def test_without_the_count_an_inner_release_frees_it(lock: ReentrantLock, monkeypatch: Patch) -> None:
    monkeypatch.setattr(reentrant.SharedGrant, "leave", lambda self, lease: (True, 0))
    with lock.hold():
        held(lock).release()
        assert free_for_others(lock)


def test_wrong_arguments_are_wrong_for_the_holder_too(lock: ReentrantLock) -> None:
    with lock.hold():
        with pytest.raises(ValueError, match="blocking"):
            lock.acquire(blocking=False, timeout=1.0)
        with pytest.raises(ValueError, match="timeout"):
            lock.acquire(timeout=-1.0)


# One grant, many leases


def test_all_leases_of_a_grant_agree(client: redis.Redis, name: str) -> None:
    lock = ReentrantLock(RedisLock(client, name, ttl=LONG, renew=False))
    with lock.hold() as outer:
        client.config_resetstat()
        with lock.hold() as inner:
            assert (inner.fence, inner.token, inner.ttl) == (outer.fence, outer.token, outer.ttl)
            assert 0 < inner.remaining() <= outer.remaining() + 0.1 < LONG
        assert "cmdstat_evalsha" not in client.info("commandstats"), "entering again asked the server"
        with lock.hold() as inner:
            before = outer.remaining()
            inner.extend(2 * LONG)
            assert outer.remaining() > before + LONG / 2


def test_a_passed_on_lease_works(client: redis.Redis, name: str) -> None:
    lock = ReentrantLock(RedisLock(client, name, ttl=LONG))
    [(outer, inner)] = run_threads(lambda: (held(lock), held(lock)))
    assert outer.release() is True
    assert lock.acquire(blocking=False) is None, "the grant is not this thread's, though the lease is"

    def use() -> bool:
        inner.check()
        inner.extend(2 * LONG)
        assert inner.remaining() > LONG
        return inner.release()

    assert run_threads(use) == [True]
    assert len(lock._grants) == 0
    held(lock).release()


def enter_unchecked(monkeypatch: Patch) -> None:
    """Let a grant be entered again even if it is over."""
    enter = reentrant.SharedGrant.enter
    monkeypatch.setattr(reentrant.SharedGrant, "enter", lambda self, lock, first=False: enter(self, lock, first=True))


def test_a_lost_grant_is_not_entered_again(client: redis.Redis, name: str, monkeypatch: Patch) -> None:
    lock = ReentrantLock(RedisLock(client, name, ttl=LONG))
    outer, inner = held(lock), held(lock)
    client.delete(f"lock:{{{name}}}")
    other = acquired(RedisLock(client, name, ttl=LONG), blocking=False)
    with pytest.raises(LeaseLost):
        inner.extend()
    assert outer.lost
    assert outer.remaining() == inner.remaining() == 0.0
    assert lock.acquire(blocking=False) is None, "it pretended to hold what it has lost"
    with monkeypatch.context() as patch:  # the negative control
        enter_unchecked(patch)
        held(lock).release()
    other.release()
    again = held(lock)
    assert again.fence > other.fence > outer.fence
    assert (inner.release(), outer.release()) == (False, False)
    again.check()
    assert held(lock).token == again.token, "the release of the lost leases took the new grant with it"
    again.release()


# Owners


def test_a_dead_thread_leaves_no_state(lock: ReentrantLock) -> None:
    def forget() -> None:
        held(lock)
        held(lock)

    for _ in range(20):
        run_threads(forget)
    collect()
    assert len(lock._grants) == 0
    held(lock).release()


def test_a_reused_thread_id_is_not_the_holder(lock: ReentrantLock) -> None:
    leases: list[tuple[int, threading.Thread, Lease | None]] = []

    def enter() -> None:
        leases.append((threading.get_ident(), threading.current_thread(), lock.acquire(blocking=False)))

    def reused() -> bool:
        leases.clear()
        for count in (1, 2):
            _thread.start_new_thread(enter, ())
            wait_for(lambda count=count: len(leases) == count)
        (ident, thread, lease), (other_ident, other, entered) = leases
        assert entered is None
        lease.release()
        # Python 3.13 creates a new Thread object for each thread that Python did not start.
        return other_ident == ident and (other is thread or sys.version_info >= (3, 13))

    wait_for(reused)  # Negative control: a new thread gets the same thread id and, before 3.13, the same Thread object.


def test_an_owner_is_not_kept_alive(lock: ReentrantLock) -> None:
    async def run() -> tuple[Lease, weakref.ref[Any]]:
        async def enter() -> Lease:
            return held(lock)

        task = asyncio.create_task(enter())
        return await task, weakref.ref(task)

    lease, task = asyncio.run(run())
    collect()
    assert task() is None
    lease.check()
    assert len(lock._grants) == 1
    lease.release()
    assert len(lock._grants) == 0


def test_the_owner_may_be_whatever_the_caller_says(name: str) -> None:
    who: list[Hashable] = ["request 1"]
    lock = ReentrantLock(ThreadLock(name), owner=lambda: who[0])
    lease = held(lock)
    [passed_on] = run_threads(lambda: lock.acquire(blocking=False))
    who[0] = "request 2"
    assert lock.acquire(blocking=False) is None
    lease.release()
    passed_on.release()
    held(lock).release()


def test_equal_owners_that_ask_together_take_turns(name: str, threads: Pool) -> None:
    lock = ReentrantLock(ThreadLock(name), owner=lambda: "me")
    other = held(ThreadLock(name))
    asked = [threads.submit(lock.acquire, timeout=WAIT_TIMEOUT) for _ in range(2)]
    wait_for(lambda: in_line(name) == 3)
    other.release()
    first = wait(asked, WAIT_TIMEOUT, FIRST_COMPLETED).done.pop()
    lease = first.result()
    held(lock).release()  # the owner acquires again
    assert in_line(name) == 2
    assert lease.release() is True
    (second,) = {*asked} - {first}
    again = second.result()
    assert again.token != lease.token
    assert again.release() is True


def test_two_tasks_of_one_thread_exclude_each_other(lock: ReentrantLock) -> None:
    assert asyncio.run(entered_by_another_task(lock)) is False
    held(lock).release()
    lock = ReentrantLock(ThreadLock(lock.name), owner=threading.get_ident)
    assert asyncio.run(entered_by_another_task(lock)) is True, "the negative control"


async def entered_by_another_task(lock: ReentrantLock) -> bool:
    """Return whether a task can acquire a lock that another task in its thread holds."""

    async def enter() -> bool:
        lease = lock.acquire(blocking=False)
        return lease is not None and lease.release()

    with lock.hold(timeout=0), lock.hold(timeout=0):
        entered = await asyncio.create_task(enter())
        held(lock).release()
        return entered


@pytest.mark.parametrize("owner", ["current_owner", "thread"])
def test_a_pool_thread_does_not_mix_tasks(name: str, owner: str) -> None:
    options: dict[str, Any] = {} if owner == "current_owner" else {"owner": threading.get_ident}
    lock = ReentrantLock(ThreadLock(name), **options)

    async def enter() -> Lease | None:
        return await asyncio.to_thread(lock.acquire, blocking=False)

    async def run() -> list[Lease | None]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        leases = list(await asyncio.gather(*[enter() for _ in range(5)]))
        for lease in leases:
            if lease is not None:
                await asyncio.to_thread(lease.release)
        return leases

    holders = sum(lease is not None for lease in asyncio.run(run()))
    assert holders == (1 if owner == "current_owner" else 5)


def test_what_to_thread_runs_may_enter_again(lock: ReentrantLock) -> None:
    def work() -> bool:
        with lock.hold(timeout=0), lock.hold(timeout=0):
            return True

    async def run() -> bool:
        return await asyncio.to_thread(work)

    assert asyncio.run(run())


def test_two_greenlets_of_one_thread_exclude_each_other(lock: ReentrantLock) -> None:
    main = greenlet.getcurrent()

    def enter() -> None:
        with lock.hold(timeout=0), lock.hold(timeout=0):
            main.switch("inside")
        main.switch("left")

    first = greenlet.greenlet(enter)
    second = greenlet.greenlet(lambda: lock.acquire(blocking=False))
    assert first.switch() == "inside"
    assert second.switch() is None
    # Some frameworks run a greenlet in a copy of another greenlet's context.
    third = greenlet.greenlet(lambda: lock.acquire(blocking=False))
    third.gr_context = first.gr_context.copy()
    assert third.switch() is None
    assert lock.acquire(blocking=False) is None
    assert first.switch() == "left"
    held(lock).release()


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import gevent
from locking.local import ThreadLock
from locking.reentrant import ReentrantLock

inside, most = 0, 0

def enter(lock):
    global inside, most
    for _ in range(5):
        with lock.hold():
            gevent.sleep(0)
            with lock.hold():
                inside += 1
                most = max(most, inside)
                gevent.sleep(0)
                inside -= 1

for options in ({}, {"owner": lambda: 1}):  # The negative control has one owner for all.
    lock, most = ReentrantLock(ThreadLock("x"), **options), 0
    gevent.joinall([gevent.spawn(enter, lock) for _ in range(20)], raise_error=True)
    assert not lock._grants, len(lock._grants)
    assert (most > 1) is bool(options), most
with ThreadLock("x").hold():
    assert gevent.spawn(ThreadLock("x").acquire, timeout=0.01).get() is None
print("done")
"""


def test_greenlets_are_owners() -> None:
    """Each greenlet is an owner of its own, so the wrapped ThreadLock excludes the others."""
    run = subprocess.run([sys.executable, "-c", GREENLETS], capture_output=True, text=True, timeout=2 * WAIT_TIMEOUT)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr


def test_importing_greenlet_keeps_the_owner() -> None:
    script = (
        "import sys; from locking.local import ThreadLock; from locking.reentrant import ReentrantLock;"
        "assert 'greenlet' not in sys.modules;"
        "lock = ReentrantLock(ThreadLock('x')); lease = lock.acquire(); import greenlet;"
        "assert lock.acquire(blocking=False) is not None"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_TIMEOUT)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("guarded", [True, False])
def test_a_grant_being_released_is_not_entered(
    lock: ReentrantLock, threads: Pool, monkeypatch: Patch, guarded: bool
) -> None:
    leave = reentrant.SharedGrant.leave
    left, tried = threading.Event(), threading.Event()

    def leave_slowly(self: reentrant.SharedGrant, lease: reentrant.ReentrantLease) -> tuple[bool, int]:
        answer = leave(self, lease)
        left.set()
        tried.wait(WAIT_TIMEOUT)
        return answer

    lease = held(lock)
    monkeypatch.setattr(reentrant.SharedGrant, "leave", leave_slowly)
    if not guarded:
        enter_unchecked(monkeypatch)
    releasing = threads.submit(lease.release)
    left.wait(WAIT_TIMEOUT)
    again = lock.acquire(blocking=False)
    tried.set()
    assert releasing.result(WAIT_TIMEOUT) is True
    assert (again is None) is guarded
    if again is not None:
        assert again.remaining() == 0.0, "it was entered while it was being released"


def test_check_tells_of_the_loss_once_for_all(client: redis.Redis, name: str, caplog: Log) -> None:
    told: list[Lease] = []
    clock = Clock()
    lock = ReentrantLock(RedisLock(client, name, ttl=LONG, renew=False, on_lost=told.append, clock=clock))
    leases = [held(lock) for _ in range(3)]
    clock.now += LONG
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.check()
        assert [lease.token for lease in told] == [leases[0].token]
        assert lease.release() is False
    assert caplog.text.count(name) == 1
