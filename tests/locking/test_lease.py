"""Lease, with a scripted lock and clock."""

from __future__ import annotations

import threading

import pytest

from locking import Capabilities, Lease, LeaseLost, Lock, LockUnavailable, NotOwner
from locking.lease import validity
from tests.locking.support import Clock, Log, Patch, in_fork, run_threads
from tests.waiting import WAIT_TIMEOUT


class ScriptedLock(Lock):
    """A lock that returns True or False or raises an error, as the test says."""

    capabilities = Capabilities()

    def __init__(self, clock: Clock, on_lost: list[Lease]) -> None:
        super().__init__("scripted", ttl=10.0)
        self.clock = clock
        self.told = on_lost
        self.answer: bool | BaseException = True
        self.takes = 0.0
        self.releases = 0

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease:
        started = self.clock()
        self.clock.now += self.takes
        return Lease(self, "token", started=started, ttl=self.ttl, fence=7, on_lost=self.told.append, clock=self.clock)

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return self._say()

    def _release(self, lease: Lease) -> bool:
        self.releases += 1
        return self._say()

    def _say(self) -> bool:
        self.clock.now += self.takes
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[Lease]:
    return []


@pytest.fixture
def lock(clock: Clock, told: list[Lease]) -> ScriptedLock:
    return ScriptedLock(clock, told)


@pytest.fixture
def lease(lock: ScriptedLock) -> Lease:
    return lock.acquire()


class TestTime:
    def test_remaining_counts_from_before_the_request(self, lock: ScriptedLock) -> None:
        lock.takes = 3.0
        assert lock.acquire().remaining() == pytest.approx(10.0 - 3.0 - (10.0 * 0.01 + 0.002))

    def test_at_zero_it_is_lost(self, lease: Lease, clock: Clock, told: list[Lease]) -> None:
        clock.now += validity(10.0) - 0.001
        lease.check()
        assert (lease.lost, told) == (False, [])
        clock.now += 0.001
        assert lease.lost
        assert lease.remaining() == 0.0
        with pytest.raises(LeaseLost):
            lease.check()

    def test_a_lost_lease_never_comes_back(self, lease: Lease, clock: Clock) -> None:
        clock.now += 10.0
        with pytest.raises(LeaseLost):
            lease.check()
        clock.now -= 10.0
        assert lease.lost
        with pytest.raises(LeaseLost):
            lease.extend()


class TestExtend:
    def test_it_counts_from_before_its_own_request(self, lease: Lease, lock: ScriptedLock, clock: Clock) -> None:
        clock.now += 5.0
        lock.takes = 2.0
        lease.extend()
        assert lease.remaining() == pytest.approx(validity(10.0) - 2.0)

    def test_it_takes_a_time_of_its_own_and_never_shortens_what_is_left(self, lease: Lease) -> None:
        for ttl in (60.0, 1.0):
            lease.extend(ttl)
            assert lease.remaining() == pytest.approx(validity(60.0))

    def test_not_ours_any_more_is_lost_at_once(self, lease: Lease, lock: ScriptedLock, told: list[Lease]) -> None:
        lock.answer = False
        with pytest.raises(LeaseLost):
            lease.extend()
        assert (lease.lost, lease.remaining(), told) == (True, 0.0, [lease])

    def test_an_answer_after_the_deadline_is_too_late(self, lease: Lease, lock: ScriptedLock, clock: Clock) -> None:
        clock.now += 9.0
        lock.takes = 1.0
        with pytest.raises(LeaseLost):
            lease.extend()
        assert lease.remaining() == 0.0

    def test_a_signal_handler_may_release_meanwhile(self, lease: Lease, clock: Clock, monkeypatch: Patch) -> None:
        """A signal handler may run while its thread holds the mutex. Here it runs when the lease reads the clock."""
        to_do = iter([lease.release])

        def interrupted() -> float:
            for handler in to_do:
                handler()
            return clock()

        monkeypatch.setattr(lease, "_clock", interrupted)
        thread = threading.Thread(target=lease._prolong, args=(clock(), 10.0), daemon=True)
        thread.start()
        thread.join(2.0)
        assert not thread.is_alive()
        assert not lease.lost
        assert lease.release() is False

    def test_without_an_answer_it_keeps_what_it_had(self, lease: Lease, lock: ScriptedLock) -> None:
        lock.answer = LockUnavailable("no answer")
        with pytest.raises(LockUnavailable):
            lease.extend(60.0)
        assert lease.remaining() == pytest.approx(validity(10.0))


class TestRelease:
    def test_a_second_one_says_no_and_asks_nobody(self, lease: Lease, lock: ScriptedLock) -> None:
        lease.release()
        assert lease.release() is False
        assert lock.releases == 1

    def test_afterwards_it_is_not_lost_but_may_not_be_used(self, lease: Lease, clock: Clock, told: list[Lease]) -> None:
        lease.release()
        clock.now += 100.0
        assert (lease.lost, lease.remaining(), told) == (False, 0.0, [])
        with pytest.raises(NotOwner):
            lease.check()
        with pytest.raises(NotOwner):
            lease.extend()

    def test_a_failure_at_the_end_of_a_block_is_one_line_of_the_log(self, lock: ScriptedLock, caplog: Log) -> None:
        lock.answer = LockUnavailable("refused\nTry again.")
        with lock.hold():
            pass
        assert caplog.messages == [r"Lock 'scripted' was not released at the end of its block: 'refused\nTry again.'"]

    @pytest.mark.parametrize("found", [True, False])
    @pytest.mark.parametrize("failure", [LockUnavailable, KeyboardInterrupt, SystemExit, TimeoutError])
    def test_without_an_answer_it_was_held_and_may_be_called_again(
        self, lease: Lease, lock: ScriptedLock, failure: type[BaseException], found: bool
    ) -> None:
        lock.answer = failure()
        with pytest.raises(failure):
            lease.release()
        lock.answer = found
        assert lease.release() is True
        assert lease.release() is False

    def test_not_found_after_a_late_release_was_not_held(self, lease: Lease, lock: ScriptedLock, clock: Clock) -> None:
        clock.now += 10.0
        lock.answer = LockUnavailable("no answer")
        with pytest.raises(LockUnavailable):
            lease.release()
        lock.answer = False
        assert lease.release() is False

    def test_a_lost_lease_is_released_as_not_held(
        self, lease: Lease, lock: ScriptedLock, clock: Clock, told: list[Lease]
    ) -> None:
        clock.now += 10.0
        assert lease.release() is False
        assert (lock.releases, lease.lost, told) == (1, True, [lease])

    def test_of_many_threads_one_releases(self, lease: Lease, lock: ScriptedLock, monkeypatch: Patch) -> None:
        answers = iter([False, False, True, *[False] * 13])
        all_asked = threading.Barrier(16)

        def answer(lease: Lease) -> bool:
            all_asked.wait(WAIT_TIMEOUT)
            return next(answers)

        monkeypatch.setattr(lock, "_release", answer)
        assert sum(run_threads(*[lease.release] * 16)) == 1
        assert lease.release() is False


class TestOnLost:
    def test_it_is_called_once(self, lease: Lease, clock: Clock, told: list[Lease]) -> None:
        clock.now += 10.0

        def check() -> None:
            with pytest.raises(LeaseLost):
                lease.check()

        run_threads(*[check] * 8, lease.release, *[check] * 7)
        assert told == [lease]

    def test_when_it_fails_the_holder_is_still_told(self, lock: ScriptedLock, clock: Clock, caplog: Log) -> None:
        def fail(lease: Lease) -> None:
            raise RuntimeError("a callback's own fault")

        lease = lock.acquire()
        lease._on_lost = fail
        clock.now += 10.0
        with pytest.raises(LeaseLost):
            lease.check()
        assert "a callback's own fault" in caplog.text

    def test_it_may_use_the_lease(self, lock: ScriptedLock, clock: Clock) -> None:
        released: list[bool] = []
        lease = lock.acquire()
        lease._on_lost = lambda lease: released.append(lease.release())
        clock.now += 10.0
        with pytest.raises(LeaseLost):
            lease.check()
        assert released == [False]


class TestFork:
    @pytest.mark.parametrize("use", ["check", "extend", "release", "remaining", "lost"])
    def test_a_child_does_not_hold_what_its_parent_holds(self, lease: Lease, lock: ScriptedLock, use: str) -> None:
        def body() -> str:
            value = getattr(lease, use)
            return str(value() if callable(value) else value)

        assert in_fork(body) == "NotOwner"
        lease.check()

    def test_the_figures_of_the_grant_can_still_be_read(self, lease: Lease) -> None:
        assert in_fork(lambda: f"{lease.name} {lease.fence}") == "scripted 7"
