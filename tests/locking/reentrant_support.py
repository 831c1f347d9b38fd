"""Helpers of the tests that wrap another lock in a ReentrantLock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from locking import Lock, ReentrantLock
from tests.locking.conformance import LockConformance, ReentrantConformance, Tests
from tests.locking.support import Recipe, ReentrantRecipe

OF_THE_LOCK_WITHIN = (
    "test_25_short_lived_processes_lose_no_update",
    "test_a_briefly_paused_holder_keeps_it",
    "test_a_holder_paused_beyond_its_ttl_is_told",
    "test_a_dropped_lease_is_not_renewed",
    "test_a_grant_outlives_the_loss_of_a_minority",
    "test_an_idle_waiter_is_quiet",
    "test_greenlets_each_own_a_lease",  # This test runs on Redis and in test_reentrant.py.
    "test_it_is_granted_without_a_minority",
    "test_it_works_after_a_restart",
    "test_renewal_keeps_the_lock_beyond_its_ttl",
    "test_the_first_in_line_may_be_stopped",
    "test_the_first_in_line_may_die",
    "test_the_holder_is_told_when_the_server_is_gone",
    "test_the_lock_of_a_crashed_holder_becomes_free",
    "test_without_renewal_the_lock_is_lost_after_its_ttl",
    "test_without_the_lock_processes_lose_updates",
    "test_without_the_lock_threads_lose_updates",
)
"""Slow tests that depend only on the wrapped lock and its server."""


def of_the_lock_within(tests: type[LockConformance]) -> list[str]:
    """Return those names of `OF_THE_LOCK_WITHIN` that are tests of this class."""
    return [name for name in OF_THE_LOCK_WITHIN if getattr(tests, name, None) is not None]


def a_tenth(tests: Tests) -> Tests:
    """Reduce the tests of a slow lock: a tenth of the acquires, ten threads, no tests of the wrapped lock alone."""
    for name in of_the_lock_within(tests):
        setattr(tests, name, None)
    tests.PAIRS //= 10
    cast(Any, tests).test_threads_lose_no_update = ten_threads_lose_no_update
    return tests


def ten_threads_lose_no_update(self: LockConformance, recipe: Recipe, name: str) -> None:
    assert self.lost_updates(recipe, name, 10, 2, locked=True) == 0


class OfTheLockWithin(ReentrantConformance):
    """Mix-in that wraps the lock under test in a ReentrantLock."""

    def waiters(self, lock: Lock) -> int:
        return int(cast(Any, super()).waiters(within(lock)))

    def traces(self, lock: Lock) -> dict[str, int]:
        assert isinstance(lock, ReentrantLock)
        return {**cast(Any, super()).traces(within(lock)), "grants": len(lock._grants)}

    def written(self, lock: Lock) -> int:
        return int(cast(Any, super()).written(within(lock)))

    def asked(self, lock: Lock) -> int:
        return int(cast(Any, super()).asked(within(lock)))

    def forget(self, lock: Lock) -> None:
        cast(Any, super()).forget(within(lock))

    def woken_in_vain(self, lock: Lock) -> AbstractContextManager[Callable[[], object]]:
        return cast(AbstractContextManager[Callable[[], object]], cast(Any, super()).woken_in_vain(within(lock)))

    @contextmanager
    def clients(self, recipe: Recipe, count: int) -> Iterator[list[Recipe]]:
        assert isinstance(recipe, ReentrantRecipe)
        with cast(Any, super()).clients(recipe.inner, count) as separate:
            yield [ReentrantRecipe(one) for one in separate]


def within(lock: Lock) -> Lock:
    return lock._lock if isinstance(lock, ReentrantLock) else lock
