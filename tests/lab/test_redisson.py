"""Redisson's lock: the search breaks it only if one of its guards is removed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, repeat
from typing import Any

import pytest

from lab.explorer.search import Bounds, Found, explore
from lab.explorer.terms import Fault, Invariant
from lab.ladder.catalogue import LADDER
from lab.ladder.locks import redisson_watchdog
from lab.ladder.locks.redisson_watchdog import RedissonWatchdog
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import new_experiment
from locking import Lease
from tests.factories import slow
from tests.lab.schedule_support import broken_by
from tests.locking.support import Clock, acquired

Patch = pytest.MonkeyPatch


def searched(sandbox: Sandbox, *faults: Fault) -> Found:
    bounds = Bounds(preemptions=2 - len(faults), faults=len(faults))
    return explore(new_experiment(LADDER["redisson-watchdog"], sandbox), bounds, faults, None)


def without_publishing(monkeypatch: Patch) -> None:
    monkeypatch.setattr(redisson_watchdog, "FREE", redisson_watchdog.FREE.replace("'PUBLISH'", "'ECHO',"))


def without_asking_again(monkeypatch: Patch) -> None:
    """Remove a guard: after subscribing, do not check whether the lock was released before."""

    def acquire(self: RedissonWatchdog, timeout: float | None = None) -> Lease:
        answer = self._ask(owner := self.owner())
        with self.client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(self.key)
            while not isinstance(answer, Lease):
                self._wait(subscription, self._clock() + answer)
                answer = self._ask(owner)
        return answer

    monkeypatch.setattr(RedissonWatchdog, "acquire", acquire)


def without_a_retry_at_the_ttl(monkeypatch: Patch) -> None:
    def wait(self: RedissonWatchdog, subscription: Any, until: float) -> None:
        while not subscription.get_message():
            self._nap(1.0)

    monkeypatch.setattr(RedissonWatchdog, "_wait", wait)


def without_a_token_per_grant(monkeypatch: Patch) -> None:
    """Remove a guard: let the inner release end the renewal of the outer grant."""
    monkeypatch.setattr(redisson_watchdog, "count", repeat)


def without_a_watchdog(monkeypatch: Patch) -> None:
    monkeypatch.setattr(RedissonWatchdog, "prolong", lambda self, owner: False)


@pytest.mark.parametrize("faults", [(), *slow(("crash",), ("expiry",))], ids=str)
def test_with_all_guards_nothing_breaks_it(sandbox: Sandbox, faults: tuple[Fault, ...]) -> None:
    found = searched(sandbox, *faults)
    assert (found.run, found.exhausted) == (None, True)


@pytest.mark.parametrize(
    ("remove", "fault", "breaks"),
    [
        (without_publishing, None, "progress"),
        (without_asking_again, None, "progress"),
        (without_a_retry_at_the_ttl, "crash", "progress"),
        (without_a_token_per_grant, "expiry", "one holder"),
        (without_a_watchdog, "expiry", "one holder"),
    ],
)
def test_each_guard_is_needed(
    sandbox: Sandbox, monkeypatch: Patch, remove: Callable[[Patch], None], fault: Fault | None, breaks: Invariant
) -> None:
    remove(monkeypatch)
    found = searched(sandbox, *([fault] if fault else []))
    assert broken_by(found) == breaks


def test_a_waiter_looks_only_at_what_has_arrived(sandbox: Sandbox, monkeypatch: Patch) -> None:
    """A waiter reads only its subscription. It queries the lock at once, after subscribing, and at its deadline."""
    held = acquired(RedissonWatchdog(sandbox.redis, "quiet"))
    asked: list[str] = []
    original = RedissonWatchdog._ask

    def ask(self: RedissonWatchdog, owner: str) -> Lease | float:
        asked.append(owner)
        return original(self, owner)

    monkeypatch.setattr(RedissonWatchdog, "_ask", ask)
    clock, looks = Clock(), count()

    def sleep(seconds: float) -> None:
        clock.now += 0.001
        next(looks)

    assert RedissonWatchdog(sandbox.redis, "quiet", clock=clock, sleep=sleep).acquire(timeout=0.05) is None
    assert len(asked) == 3
    assert next(looks) >= 49
    held.release()
