"""Which promises of every lock a rung is held against: properties of the suite by name, and some that it has not.

What a rung promises and does not keep is in the `FAILS` of its tests, and has to fail.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar

import pytest
import redis

from lab.ladder.locks import LOCKS, LockRung
from locking import Lock, LockTimeout
from servers.valkey import Valkey
from tests.lab.rung_support import RungRecipe, Steps, asleep, stepped_client
from tests.locking import actors, conformance
from tests.locking.conformance import LONG, SHORT, LockConformance
from tests.locking.support import Recipe, process
from tests.waiting import PATIENCE, wait_for

EXCLUDES = "test_it_excludes_others_until_it_is_released"
SERVES_THREADS = "test_one_lock_object_serves_many_threads_at_once"
HOLD_RELEASES = "test_hold_releases_on_leaving"
ANY_THREAD = "test_a_lease_may_be_used_by_another_thread"
ENTERS_AGAIN = "test_it_enters_again_only_if_it_says_so"
THREADS = "test_threads_lose_no_update"
PROCESSES = "test_processes_lose_no_update"
WOKEN = "test_a_waiter_is_woken_by_the_release"
CRASH = "test_the_lock_of_a_crashed_holder_becomes_free"
ONLY_THE_OWNER = "test_only_the_owner_releases"
LATE_RELEASE = "test_a_lost_lease_cannot_be_released"
RENEWED = "test_renewal_keeps_the_lock_beyond_its_ttl"
RESTARTED = "test_it_works_after_a_restart"
OUTERMOST = "test_the_outermost_release_frees_it"
IN_ORDER = "test_waiters_are_served_in_order"

ALONE = "test_nobody_enters_while_the_holder_works_for_longer_than_the_ttl"
HELD_UP = "test_a_release_that_is_held_up_frees_nobody_elses_lock"
NOT_MISSED = "test_a_release_right_before_the_waiter_sleeps_is_not_missed"
DEAD_WAITER = "test_a_waiter_that_dies_holds_up_nobody"
TOLD = "test_who_is_told_that_he_has_bought_has_bought"


class FlawedConformance(LockConformance):
    """A rung, held against the suite.

    Attributes:
        SLUG: the rung.
        FAILS_WITH: how it fails what it fails, where tests/conftest.py does not expect it.
    """

    SLUG: ClassVar[str]

    @pytest.fixture(autouse=True)
    def patience(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
        """Seconds to wait for what must come. What must not come is not waited for as long."""
        if request.node.originalname not in self.FAILS:
            return PATIENCE
        monkeypatch.setattr(conformance, "PATIENCE", 6 * SHORT)
        return 6 * SHORT


class RungConformance(FlawedConformance):
    """A rung on one Redis, whose waiters poll."""

    OPTIONS = {"ttl": LONG}
    CRASH_OPTIONS = {"ttl": 5 * SHORT}  # nobody renews it: it has to outlast the test's look at a living holder
    PAIRS = 300

    @pytest.fixture
    def recipe(self, valkey: Valkey, client: redis.Redis) -> RungRecipe:
        self.client = client
        return RungRecipe(valkey.url, self.SLUG)

    def waiters(self, lock: Lock) -> int:
        return asleep.count

    def traces(self, lock: Lock) -> dict[str, int]:
        return {"keys": self.client.dbsize()}

    def lock_on(self, client: redis.Redis, name: str) -> Lock:
        made = LOCKS[self.SLUG]
        assert issubclass(made, LockRung)
        return made(client, name, ttl=LONG, sleep=asleep)

    def key(self, name: str) -> str:
        return f"rung:{name}"

    def in_line(self, name: str) -> int:
        return int(self.client.llen(f"rung:{name}:line"))


class OneRedisConformance(LockConformance):
    """What the suite does not ask: it takes a look at the single commands, or a caller who sells."""

    client: redis.Redis

    @pytest.fixture
    def patience(self) -> float:
        return PATIENCE

    @abstractmethod
    def lock_on(self, client: redis.Redis, name: str) -> Lock:
        """Make a lock, which nobody renews, on another client."""

    @abstractmethod
    def key(self, name: str) -> str:
        """Where the server keeps who holds the lock."""

    @abstractmethod
    def in_line(self, name: str) -> int:
        """How many the server knows to be waiting."""

    def test_nobody_enters_while_the_holder_works_for_longer_than_the_ttl(self, make_lock: Callable[..., Lock]) -> None:
        with make_lock(ttl=SHORT).hold():
            assert make_lock().acquire(timeout=3 * SHORT) is None

    def test_a_release_that_is_held_up_frees_nobody_elses_lock(
        self, make_lock: Callable[..., Lock], valkey: Valkey, name: str
    ) -> None:
        """Before each of its commands in turn its time passes, and another takes the lock."""
        for sent in count():
            steps, others = Steps(), []

            def overtake(others: list[Any] = others) -> None:
                self.client.pexpire(self.key(name), 1)
                wait_for(lambda: not self.client.exists(self.key(name)))
                others.append(make_lock().acquire(blocking=False))

            with stepped_client(str(valkey.socket), steps) as client:
                late = self.lock_on(client, name).acquire()
                assert late is not None
                steps.before(overtake, after=sent)
                late.release()
            if not steps.stopped:  # it has no such command any more
                assert sent > 0
                return
            assert others[0] is not None
            assert make_lock().acquire(blocking=False) is None
            others[0].release()

    def test_a_release_right_before_the_waiter_sleeps_is_not_missed(
        self, make_lock: Callable[..., Lock], valkey: Valkey, name: str, patience: float
    ) -> None:
        """He has been refused, and is about to send what comes after that."""
        steps = Steps()
        holder = make_lock().acquire()
        assert holder is not None
        steps.before(holder.release, after=1)
        with stepped_client(str(valkey.socket), steps) as client:
            lease = self.lock_on(client, name).acquire(timeout=patience)
            assert steps.stopped
            assert lease is not None
            lease.release()

    def test_a_waiter_that_dies_holds_up_nobody(
        self, make_lock: Callable[..., Lock], recipe: Recipe, patience: float
    ) -> None:
        lock = make_lock()
        lease = lock.acquire()
        assert lease is not None
        with process(actors.wait_and_hold, recipe, lock.name, self.OPTIONS) as (waiter, _):
            wait_for(lambda: self.in_line(lock.name) == 1)
            waiter.kill()
            waiter.join()
        assert lease.release() is True
        again = lock.acquire(timeout=patience)
        assert again is not None
        again.release()

    def test_who_is_told_that_he_has_bought_has_bought(self, make_lock: Callable[..., Lock]) -> None:
        """A buyer comes while another holds the lock, and one when nobody does."""
        self.client.set("stock", 10)
        lock: Any = make_lock()
        told = []
        with lock.hold(), suppress(LockTimeout):
            told.append(lock.sell("stock", timeout=0))
        told.append(lock.sell("stock", timeout=0))
        assert self.client.get("stock") == b"%d" % (10 - told.count(True))
