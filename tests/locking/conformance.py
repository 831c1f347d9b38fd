"""What every lock promises, one named property each. A lock's own tests subclass `LockConformance`.

A capability that a lock declares is tested, and so is one that it does not declare, where that can be seen.
"""

from __future__ import annotations

import gc
import math
import signal
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from locking import Lease, LeaseLost, Lock, LockTimeout, NotOwner
from tests.locking import actors
from tests.locking.support import Recipe, in_fork, paused, process, renewing, run_threads
from tests.waiting import PATIENCE, wait_for

SHORT = 0.5
"""Seconds: a TTL that a test waits out."""

LONG = 60.0
"""Seconds: a TTL that no test lives to see the end of."""


class LockConformance(ABC):
    """The properties. `recipe` is a fixture, in conftest.py or in the subclass."""

    @abstractmethod
    def waiters(self, lock: Lock) -> int:
        """How many are asleep waiting for this lock at the moment."""

    @pytest.fixture
    def name(self) -> str:
        return f"test {uuid.uuid4()}"

    @pytest.fixture
    def make_lock(self, recipe: Recipe, name: str) -> Callable[..., Lock]:
        def make(**options: Any) -> Lock:
            return recipe(name, **{"ttl": LONG, **options})

        return make

    # Granting and refusing

    def test_a_grant_is_a_lease_that_is_held(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        lease = lock.acquire()
        assert lease is not None
        lease.check()
        assert (lease.name, lease.lost) == (lock.name, False)
        assert 0 < lease.remaining() < lock.ttl
        assert lease.release() is True

    def test_it_excludes_others_until_it_is_released(self, make_lock: Callable[..., Lock]) -> None:
        first, second = make_lock(), make_lock()
        lease = first.acquire()
        assert lease is not None
        assert second.acquire(blocking=False) is None
        lease.release()
        again = second.acquire(blocking=False)
        assert again is not None
        again.release()

    def test_another_name_is_another_lock(self, make_lock: Callable[..., Lock], recipe: Recipe, name: str) -> None:
        with make_lock().hold(), recipe(f"{name} 2").hold(timeout=0):
            pass

    def test_one_lock_object_serves_many_threads_at_once(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        leases = [lease for lease in run_threads(*[lambda: lock.acquire(blocking=False)] * 8) if lease is not None]
        assert len(leases) == 1
        leases[0].release()

    def test_a_lease_may_be_used_by_another_thread(self, make_lock: Callable[..., Lock]) -> None:
        lease = make_lock().acquire()
        assert lease is not None
        run_threads(lease.check, lease.extend)
        assert run_threads(lease.release) == [True]

    def test_it_enters_again_only_if_it_says_so(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        with lock.hold():
            inner = lock.acquire(blocking=False)
            assert (inner is not None) is lock.capabilities.reentrant
            if inner is not None:
                inner.release()

    @pytest.mark.parametrize("timeout", [0.0, 5.0])
    def test_a_timeout_needs_blocking(self, make_lock: Callable[..., Lock], timeout: float) -> None:
        with pytest.raises(ValueError, match="blocking"):
            make_lock().acquire(blocking=False, timeout=timeout)

    @pytest.mark.parametrize("timeout", [-1.0, -0.001, math.nan])
    def test_a_timeout_is_not_negative(self, make_lock: Callable[..., Lock], timeout: float) -> None:
        with pytest.raises(ValueError, match="timeout"):
            make_lock().acquire(timeout=timeout)
        with pytest.raises(ValueError, match="timeout"), make_lock().hold(timeout):
            pass

    @pytest.mark.parametrize("ttl", [0.0, -1.0, math.nan])
    def test_a_ttl_is_a_time(self, recipe: Recipe, name: str, ttl: float) -> None:
        with pytest.raises(ValueError, match="ttl"):
            recipe(name, ttl=ttl)

    def test_a_lock_has_a_name(self, recipe: Recipe) -> None:
        with pytest.raises(ValueError, match="name"):
            recipe("")

    # hold

    def test_hold_releases_on_leaving(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        with lock.hold() as lease:
            lease.check()
        with pytest.raises(NotOwner):
            lease.check()
        with lock.hold(timeout=0):
            pass

    def test_hold_releases_on_an_error_and_lets_it_through(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        with pytest.raises(KeyError), lock.hold():
            raise KeyError
        with lock.hold(timeout=0):
            pass

    def test_hold_says_when_it_was_not_granted(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        with lock.hold(), pytest.raises(LockTimeout, match=lock.name), lock.hold(timeout=0.05):
            pytest.fail("two hold it")

    def test_hold_may_be_released_early(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        with lock.hold() as lease:
            assert lease.release() is True
            with lock.hold(timeout=0):
                pass

    def test_leaving_hold_with_a_lost_lease_raises_nothing_but_was_reported(
        self, make_lock: Callable[..., Lock], caplog: pytest.LogCaptureFixture
    ) -> None:
        told: list[Lease] = []
        lock = make_lock(ttl=SHORT, renew=False, on_lost=told.append)
        with lock.hold() as lease:
            wait_for(lambda: lease.lost)
        wait_for(lambda: told)
        assert told == [lease]
        assert lock.name in caplog.text

    # Exclusion

    @pytest.mark.parametrize("contenders", [2, 10])
    def test_threads_lose_no_update(self, recipe: Recipe, name: str, contenders: int) -> None:
        assert self.lost_updates(recipe, name, contenders, locked=True) == 0

    def test_without_the_lock_threads_lose_updates(self, recipe: Recipe, name: str) -> None:
        wait_for(lambda: self.lost_updates(recipe, name, 10, locked=False) > 0)

    @pytest.mark.parametrize("locked", [True, False])
    def test_processes_lose_updates_only_without_the_lock(self, recipe: Recipe, name: str, locked: bool) -> None:
        def lost() -> int:
            recipe.cell(name).write(0)
            with ExitStack() as stack:
                pipes = [stack.enter_context(process(actors.increment, recipe, name, 25, locked))[1] for _ in range(4)]
                self.start_together(pipes)
                assert [pipe.recv() for pipe in pipes] == ["done"] * 4
            return 4 * 25 - recipe.cell(name).read()

        if locked:
            assert lost() == 0
        else:
            wait_for(lambda: lost() > 0)

    @staticmethod
    def start_together(pipes: list[Any]) -> None:
        assert [pipe.recv() for pipe in pipes] == ["ready"] * len(pipes)
        for pipe in pipes:
            pipe.send("go")

    @staticmethod
    def lost_updates(recipe: Recipe, name: str, contenders: int, *, locked: bool) -> int:
        cell = recipe.cell(name)
        cell.write(0)

        def add() -> None:
            lock = recipe(name)
            for _ in range(20):
                if locked:
                    with lock.hold():
                        cell.write(cell.read() + 1)
                else:
                    cell.write(cell.read() + 1)

        run_threads(*[add] * contenders)
        return contenders * 20 - cell.read()

    # Waiting

    def test_a_waiter_is_woken_by_the_release(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        lease = lock.acquire()
        assert lease is not None

        def wait() -> bool:
            got = lock.acquire(timeout=PATIENCE)  # far less than the TTL: nothing but the release can end the wait
            return got is not None and got.release()

        def release() -> None:
            wait_for(lambda: self.waiters(lock) == 1)
            lease.release()

        assert run_threads(wait, release)[0] is True

    def test_every_waiter_gets_its_turn(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        lease = lock.acquire()
        assert lease is not None

        def wait() -> bool:
            got = lock.acquire(timeout=PATIENCE)
            return got is not None and got.release()

        def release() -> None:
            wait_for(lambda: self.waiters(lock) == 12)
            lease.release()

        assert run_threads(*[wait] * 12, release)[:12] == [True] * 12

    def test_a_timeout_is_a_total_deadline(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        with lock.hold():
            before = time.monotonic()
            assert lock.acquire(timeout=0.2) is None
            assert time.monotonic() - before >= 0.2
            assert self.waiters(lock) == 0

    def test_a_timeout_of_nothing_asks_once(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        with lock.hold():
            assert lock.acquire(timeout=0) is None
        lease = lock.acquire(timeout=0)
        assert lease is not None
        lease.release()

    def test_an_interrupted_waiter_leaves_nothing_behind(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        main = threading.get_ident()

        def interrupt() -> None:
            wait_for(lambda: self.waiters(lock) == 1)
            signal.pthread_kill(main, signal.SIGINT)

        handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background
        try:
            with lock.hold():
                thread = threading.Thread(target=interrupt)
                thread.start()
                with pytest.raises(KeyboardInterrupt):
                    lock.acquire()
                thread.join()
                assert self.waiters(lock) == 0
        finally:
            signal.signal(signal.SIGINT, handler)
        with lock.hold(timeout=0):
            pass

    # Crash and pause

    def test_the_lock_of_a_crashed_holder_becomes_free(self, make_lock: Callable[..., Lock], recipe: Recipe) -> None:
        lock = make_lock(ttl=SHORT)
        assert lock.capabilities.survives_holder_crash
        with process(actors.hold, recipe, lock.name, {"ttl": SHORT}) as (holder, pipe):
            pipe.recv()
            wait_for(lambda: lock.acquire(timeout=SHORT) is None, "the holder to renew")
            holder.kill()
            lease = lock.acquire(timeout=PATIENCE)
            assert lease is not None
            lease.release()

    def test_a_holder_that_was_paused_too_long_is_told(self, make_lock: Callable[..., Lock], recipe: Recipe) -> None:
        lock = make_lock(ttl=SHORT)
        with process(actors.write_after_a_pause, recipe, lock.name, {"ttl": SHORT}) as (holder, pipe):
            fence = pipe.recv()
            with paused(holder.pid):
                lease = lock.acquire(timeout=PATIENCE)
                assert lease is not None
                pipe.send("go on")
            said, told, ours = pipe.recv()
            assert (said, told, ours) == ("lost", 1, False)
            lease.check()
            if lock.capabilities.fenced:
                assert lease.fence is not None
                assert lease.fence > fence
            assert lease.release() is True

    def test_a_holder_that_was_paused_briefly_holds_on(self, recipe: Recipe, name: str) -> None:
        with process(actors.write_after_a_pause, recipe, name, {"ttl": LONG}) as (holder, pipe):
            pipe.recv()
            with paused(holder.pid):
                pipe.send("go on")
            assert pipe.recv() == ("held", 0, True)

    # Owners

    def test_who_has_lost_the_lock_cannot_release_it(self, make_lock: Callable[..., Lock]) -> None:
        late = make_lock(ttl=SHORT, renew=False).acquire()
        assert late is not None
        lock = make_lock()
        lease = lock.acquire(timeout=PATIENCE)
        assert lease is not None
        assert late.release() is False
        lease.extend()
        assert lock.acquire(blocking=False) is None
        assert lease.release() is True

    def test_who_has_lost_the_lock_cannot_extend_it(self, make_lock: Callable[..., Lock]) -> None:
        late = make_lock(ttl=SHORT, renew=False).acquire()
        assert late is not None
        lease = make_lock().acquire(timeout=PATIENCE)
        assert lease is not None
        with pytest.raises(LeaseLost):
            late.extend()
        lease.extend()
        lease.release()

    def test_a_forked_child_does_not_hold_what_its_parent_holds(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        lease = lock.acquire()
        assert lease is not None
        assert in_fork(lambda: str(lease.release())) == "NotOwner"
        assert in_fork(lambda: str(lock.acquire(blocking=False))) == "None"
        lease.check()
        assert lease.release() is True

    def test_a_forked_child_that_leaves_the_block_releases_nothing(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        block = lock.hold()
        lease = block.__enter__()
        assert in_fork(lambda: str(block.__exit__(None, None, None))) in ("None", "False")
        lease.check()
        assert lock.acquire(blocking=False) is None
        block.__exit__(None, None, None)
        assert lock.acquire(blocking=False) is not None

    def test_a_forked_child_can_lock(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        with lock.hold():
            pass

        def body() -> str:
            with lock.hold(timeout=PATIENCE) as lease:
                return "held" if renewing() is lock.capabilities.renews and not lease.lost else "not renewed"

        assert in_fork(body) == "held"

    # Fences

    def test_a_fence_grows_with_every_grant_if_it_gives_one(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock()
        fences = []
        for _ in range(20):
            with lock.hold() as lease:
                fences.append(lease.fence)
        if lock.capabilities.fenced:
            assert fences == sorted(set(fences))
        else:
            assert fences == [None] * 20

    # Renewal

    def test_renewal_keeps_the_lock_beyond_its_ttl(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock(ttl=SHORT)
        assert lock.capabilities.renews
        with lock.hold() as lease:
            assert lock.acquire(timeout=3 * SHORT) is None
            lease.check()

    def test_without_renewal_the_lock_is_lost_after_its_ttl(self, make_lock: Callable[..., Lock]) -> None:
        lease = make_lock(ttl=SHORT, renew=False).acquire()
        assert lease is not None
        second = make_lock().acquire(timeout=PATIENCE)
        assert second is not None
        assert lease.lost
        second.release()

    def test_renewal_ends_with_the_release(self, make_lock: Callable[..., Lock]) -> None:
        lease = make_lock(ttl=SHORT).acquire()
        assert lease is not None
        assert renewing()
        lease.release()
        wait_for(lambda: not renewing())

    def test_a_lease_that_nobody_refers_to_is_not_renewed(self, make_lock: Callable[..., Lock]) -> None:
        lock = make_lock(ttl=SHORT)
        lease = lock.acquire()
        assert lease is not None
        del lease
        gc.collect()
        second = lock.acquire(timeout=PATIENCE)
        assert second is not None
        second.release()

    def test_a_forked_child_does_not_renew_for_its_parent(self, make_lock: Callable[..., Lock]) -> None:
        with make_lock(ttl=SHORT).hold():
            assert in_fork(lambda: str(renewing())) == "False"
