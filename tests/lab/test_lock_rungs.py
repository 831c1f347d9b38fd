"""Each flawed lock breaks what it says, by a fixed schedule, and the rung that fixes it survives the same schedule.

The servers, commands and processes are real. Time is not: it passes when a schedule says so, on the clocks of actors
and in the server's TTLs together.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
import redis

from lab.ladder.locks import LOCKS as ALL
from lab.ladder.locks import LockRung
from lab.ladder.locks.merge_without_a_lock import MergeWithoutALock
from lab.ladder.locks.owner_is_ip_pid_thread_time import OwnerIsIpPidThreadTime
from lab.ladder.locks.rung import Rung
from locking import Lock, LockUnavailable, RedisLock
from servers.valkey import Valkey
from tests.lab import rung_support as world_of
from tests.lab.rung_properties import (
    ALONE,
    ANY_THREAD,
    CRASH,
    DEAD_WAITER,
    ENTERS_AGAIN,
    EXCLUDES,
    HELD_UP,
    HOLD_RELEASES,
    IN_ORDER,
    LATE_RELEASE,
    NOT_MISSED,
    ONLY_THE_OWNER,
    OUTERMOST,
    PROCESSES,
    RENEWED,
    SERVES_THREADS,
    THREADS,
    TOLD,
    WOKEN,
    OneRedisConformance,
    RungConformance,
)
from tests.lab.rung_support import (
    TTL,
    Crash,
    MeetingRecipe,
    Schedule,
    World,
    meeting_client,
    rung,
)
from tests.locking.conformance import (
    LONG,
    AcrossProcessesConformance,
    ExpiresConformance,
    FairConformance,
    ReentrantConformance,
    RenewsConformance,
    SurvivesHolderCrashConformance,
    only,
    without,
)
from tests.locking.conftest import own_valkey, valkey
from tests.locking.support import Clock, RedisRecipe, RedisTraces, client_of, in_fork, paused

__all__ = ["own_valkey", "valkey"]

LOCKS = {slug: made for slug, made in ALL.items() if issubclass(made, LockRung | MergeWithoutALock)}
"""Those on one Redis. The others are in test_lock_rungs_on_*.py."""


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    client = client_of(valkey.url, 0)
    client.flushall()
    yield client
    client_of.cache_clear()
    client.close()


@pytest.fixture
def new_world(valkey: Valkey, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], World]]:
    monkeypatch.setattr("lab.ladder.locks.rung.POLL", TTL / 150)
    worlds: list[World] = []

    def make() -> World:
        client.flushall()
        worlds.append(World(client, str(valkey.socket), f"test {uuid4()}"))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(new_world: Callable[[], World]) -> World:
    return new_world()


# The schedule that breaks each

SCHEDULES: list[tuple[str, Schedule]] = [
    ("no-lock", world_of.reads_before_the_other_writes),
    ("merge-without-a-lock", world_of.merges_before_the_other_writes),
    ("thread-lock", world_of.two_workers_of_one_parent),
    ("process-lock", world_of.two_programs),
    ("get-then-set", world_of.looks_before_the_other_takes),
    ("answer-not-read", world_of.asks_while_it_is_held),
    ("busy-as-success", world_of.reads_before_the_other_writes),
    ("setnx", world_of.crashes_at_work),
    ("setnx-then-expire", world_of.crashes_after_its_first_command),
    ("wrong-key-expires", world_of.crashes_at_work),
    ("ttl-healed-by-waiters", world_of.crashes_after_its_first_command),
    ("ttl-healed-by-waiters", world_of.crashes_at_work),
    ("ttl-healed-in-one-script", world_of.releases_late),
    ("set-nx-ex", world_of.releases_late),
    ("wrong-argument", world_of.asks_after_the_release),
    ("get-compare-del", world_of.releases_late_after_looking),
    ("owner-as-text", world_of.asks_after_the_release),
    ("owner-is-thread-id", world_of.releases_late),
    ("owner-is-ip-pid-thread-time", world_of.releases_late_and_both_asked_in_one_tick),
    ("watch-release", world_of.works_longer_than_the_ttl),
    ("lua-release", world_of.works_longer_than_the_ttl),
    ("renews-nothing", world_of.works_longer_than_the_ttl),
    ("re-entrant-without-the-count", world_of.releases_the_inner_one),
    ("lost-wake-up", world_of.releases_before_the_waiter_sleeps),
    ("dead-head", world_of.a_waiter_dies),
]
EACH = pytest.mark.parametrize(
    ("slug", "schedule"), SCHEDULES, ids=[f"{slug}: {schedule.__name__}" for slug, schedule in SCHEDULES]
)


@EACH
def test_the_schedule_breaks_what_the_rung_says(world: World, slug: str, schedule: Schedule) -> None:
    assert schedule(world, rung(slug)) == rung(slug).breaks


@EACH
def test_the_rung_that_fixes_it_survives_the_same_schedule(world: World, slug: str, schedule: Schedule) -> None:
    fix = rung(slug).fixed_by
    assert fix is not None
    assert schedule(world, rung(fix)) is None


# What the rungs say of themselves


def test_there_is_a_schedule_for_each_rung_in_order() -> None:
    assert list(dict.fromkeys(slug for slug, _ in SCHEDULES)) == list(LOCKS)


IN_PROCESS = {"thread-lock", "process-lock"}
A_WAITER_MAY_NOT = {"dead-head"}
"""Those whose holder may die, and a waiter may not: that is what breaks them."""
LOCK_RUNGS = [slug for slug, made in LOCKS.items() if issubclass(made, LockRung)]


@pytest.mark.parametrize("slug", LOCK_RUNGS)
def test_it_survives_a_crash_exactly_if_it_says_so(new_world: Callable[[], World], slug: str) -> None:
    """Whatever command the holder was about to send, others enter after three TTLs at most."""
    dies = dies_with_it if slug in IN_PROCESS else dies_anywhere
    survives = excludes(new_world(), LOCKS[slug]) and dies(new_world, LOCKS[slug])
    assert survives is ("crash" in LOCKS[slug].survives or slug in A_WAITER_MAY_NOT)


def excludes(world: World, made: type[Rung]) -> bool:
    a, b = world.actor(made), world.actor(made)
    lease = a.takes()
    assert lease is not None
    refused = world_of.run_threads(lambda: b.enters())[0] is False
    lease.release()
    return refused


def dies_with_it(new_world: Callable[[], World], made: type[Rung]) -> bool:
    """Take the lock in a process that dies, and return whether others enter."""
    world = new_world()
    a, b = world.actor(made), world.actor(made)
    assert in_fork(lambda: str(a.enters())) == "True"
    return b.enters()


def dies_anywhere(new_world: Callable[[], World], made: type[Rung]) -> bool:
    """Die before each command of a pair in turn, and at last after it, and return whether others enter each time."""
    for commands in count():
        world = new_world()
        a, b = world.actor(made), world.actor(made)
        a.steps.crash_before = commands
        survived = False
        with suppress(Crash):
            lease = a.takes()
            assert lease is not None
            lease.release()
            survived = True
        if not b.enters(3 * TTL):
            return False
        if survived:
            return True
    return False


@pytest.mark.parametrize("slug", LOCK_RUNGS)
def test_it_survives_its_ttl_and_pauses_exactly_if_it_says_so(world: World, slug: str) -> None:
    """Nobody else enters while the holder works, or stands still, for longer than the TTL."""
    a, b = world.actor(LOCKS[slug]), world.actor(LOCKS[slug])
    lease = a.takes()
    assert lease is not None
    world.pass_time(TTL + 0.01)
    refused = world_of.run_threads(lambda: b.enters())[0] is False
    lease.release()
    assert LOCKS[slug].survives & {"expiry", "pause"} == ({"expiry", "pause"} if refused else set())


# What is special


def test_where_the_answer_is_not_read_one_prolongs_and_frees_the_lock_of_another(world: World) -> None:
    a, b = world.actor(LOCKS["answer-not-read"]), world.actor(LOCKS["answer-not-read"])
    assert a.enters()
    world.pass_time(TTL / 2)
    lease = b.takes()
    assert lease is not None
    assert world.client.pttl(f"rung:{world.name}") > 0.9 * TTL * 1000
    assert lease.release() is True
    assert not world.client.exists(f"rung:{world.name}")


def test_a_key_without_a_ttl_says_minus_one_which_is_true_and_half_a_second_says_nothing(world: World) -> None:
    asked = world.client.pipeline().set("key", "").ttl("key").pexpire("key", 450).ttl("key").pttl("key")
    _, without_one, _, seconds, milliseconds = asked.execute()
    assert (without_one, seconds) == (-1, 0)
    assert 0 < milliseconds <= 450


def test_expire_of_the_wrong_key_is_no_error_and_the_holder_believes_in_his_ttl(world: World) -> None:
    lease = world.actor(LOCKS["wrong-key-expires"]).takes()
    assert lease is not None
    assert lease.remaining() <= TTL
    assert world.client.pttl(f"rung:{world.name}") == -1


def test_a_lock_that_does_not_expire_promises_no_end(world: World) -> None:
    lease = world.actor(LOCKS["setnx"]).takes()
    assert lease is not None
    assert lease.remaining() == math.inf
    lease.extend(1.0)
    assert world.client.pttl(f"rung:{world.name}") == -1


def test_one_late_holder_and_the_whole_line_goes_wrong(world: World) -> None:
    """A frees the lock of B, C enters beside B, B frees the lock of C, and so on: for ever two are inside."""
    line = [world.actor(LOCKS["set-nx-ex"]) for _ in range(6)]
    inside = [line[0].takes()]
    world.pass_time(TTL + 0.01)
    inside.append(line[1].takes())
    for actor in line[2:]:
        late = inside.pop(0)
        assert late is not None
        late.release()
        inside.append(actor.takes())
        assert None not in inside
        assert len(inside) == 2


def test_forked_workers_have_the_same_thread_id() -> None:
    assert in_fork(lambda: str(threading.get_ident())) == str(threading.get_ident())


def test_owners_of_one_place_differ_by_the_clock_alone(world: World) -> None:
    lock = world.actor(OwnerIsIpPidThreadTime).lock
    assert isinstance(lock, LockRung)
    one = lock.owner()
    world.clock.now += 0.004
    assert lock.owner() == one
    world.clock.now += 0.01
    assert lock.owner() != one


def test_a_watched_key_that_was_touched_but_is_still_ours_is_freed_at_the_second_try(world: World) -> None:
    actor = world.actor(LOCKS["watch-release"])
    lease = actor.takes()
    assert lease is not None
    actor.steps.before(lambda: world.client.pexpire(f"rung:{world.name}", 60_000), "DEL")
    assert lease.release() is True
    assert actor.steps.sent.count("MULTI") == 2
    assert not world.client.exists(f"rung:{world.name}")


@pytest.mark.parametrize(("slug", "knows"), [("watch-release", True), ("lua-release", True), ("renews-nothing", False)])
def test_only_renewal_that_renews_nothing_hides_from_the_holder_that_his_time_is_over(
    world: World, slug: str, knows: bool
) -> None:
    lease = world.actor(LOCKS[slug]).takes()
    assert lease is not None
    for _ in range(3):
        world_of.watchdog.tick()
        world.pass_time(0.35 * TTL)
    assert not world.client.exists(f"rung:{world.name}")
    assert lease.lost is knows
    lease.release()


def test_sold_out_is_answered_as_such(world: World) -> None:
    world.client.set("stock", 1)
    lock = world.actor(LOCKS["setnx"]).lock
    assert isinstance(lock, LockRung)
    assert [lock.sell("stock") for _ in range(3)] == [True, False, False]
    assert world.client.get("stock") == b"0"


@pytest.mark.parametrize("slug", [slug for slug in LOCK_RUNGS if slug not in {"no-lock", *IN_PROCESS}])
def test_a_server_that_does_not_answer_is_an_error_of_the_package(own_valkey: Valkey, slug: str) -> None:
    client = redis.Redis.from_url(own_valkey.url, single_connection_client=True, socket_timeout=10, retry=None)
    made: Any = LOCKS[slug]
    lease = made(client, "x").acquire()
    assert client.connection is not None
    assert own_valkey.child.pid is not None
    with paused(own_valkey.child.pid):
        # Impatient only now: a server that is merely slow must not count as one that does not answer.
        client.connection.socket_timeout = client.connection_pool.connection_kwargs["socket_timeout"] = 0.05
        client.connection.update_current_socket_timeout(0.05)
        with pytest.raises(LockUnavailable):
            made(client, "y").acquire(blocking=False)
        with pytest.raises(LockUnavailable):
            lease.release()
    client.close()


def test_a_holder_that_dies_publishes_nothing_so_the_waiter_sleeps_on_beside_a_lock_that_is_free(world: World) -> None:
    made = LOCKS["lost-wake-up"]
    assert world.actor(made).enters()
    waiter = world.actor(made)
    assert not waiter.enters(3 * TTL)
    assert waiter.steps.sent.count("SET") == 1
    assert world.actor(made).enters()


def test_who_gives_up_steps_out_of_the_line(world: World) -> None:
    a, b, c = (world.actor(LOCKS["dead-head"]) for _ in range(3))
    lease = a.takes()
    assert lease is not None
    assert not b.enters(TTL / 2)
    lease.release()
    assert c.enters()


def test_the_outer_lease_says_that_all_is_well_when_the_inner_one_has_freed_the_lock(world: World) -> None:
    a, b = world.actor(LOCKS["re-entrant-without-the-count"]), world.actor(LOCKS["re-entrant-without-the-count"])
    outer, inner = a.takes(), a.takes()
    assert outer is not None
    assert inner is not None
    assert inner.release() is True
    assert b.enters()
    outer.check()
    assert outer.release() is False


# Which promises of every lock each keeps


@only(EXCLUDES, HOLD_RELEASES, SERVES_THREADS)
class TestNoLock(RungConformance):
    SLUG = "no-lock"
    FAILS = frozenset({EXCLUDES, SERVES_THREADS})


@only(THREADS, PROCESSES, ANY_THREAD, ENTERS_AGAIN)
class TestThreadLock(RungConformance, AcrossProcessesConformance, ReentrantConformance):
    SLUG = "thread-lock"
    FAILS = frozenset({PROCESSES, ANY_THREAD})
    FAILS_WITH = (AssertionError, RuntimeError)  # the second is Python's, when another thread frees an RLock


@only(EXCLUDES, HOLD_RELEASES, ANY_THREAD, PROCESSES)
class TestProcessLock(RungConformance, AcrossProcessesConformance):
    """Its processes are no family of this one: they come from a server that was there before."""

    SLUG = "process-lock"
    FAILS = frozenset({PROCESSES})


@only(EXCLUDES, SERVES_THREADS)
class TestGetThenSet(RungConformance):
    """Whoever is about to set the key waits a second for another to come as far, so that nothing is left to chance."""

    SLUG = "get-then-set"
    FAILS = frozenset({SERVES_THREADS})

    @pytest.fixture
    def recipe(self, valkey: Valkey, client: redis.Redis) -> Iterator[MeetingRecipe]:
        self.client = client
        recipe = MeetingRecipe(valkey.url, self.SLUG, meeting_client(str(valkey.socket)))
        yield recipe
        recipe.meeting.close()


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestAnswerNotRead(RungConformance, ExpiresConformance):
    SLUG = "answer-not-read"
    FAILS = frozenset({EXCLUDES, LATE_RELEASE})


@only(EXCLUDES, HOLD_RELEASES, SERVES_THREADS, TOLD)
class TestBusyAsSuccess(RungConformance, OneRedisConformance):
    """The lock does what a lock does; its caller does not."""

    SLUG = "busy-as-success"
    FAILS = frozenset({TOLD})


@without("test_a_grant_is_a_lease_that_is_held", "test_125_processes_lose_no_update")
class TestSetnx(RungConformance, AcrossProcessesConformance, SurvivesHolderCrashConformance):
    """The whole suite, but for a test that wants a lease to be shorter than its TTL, which is infinite here.

    While everybody lives and releases once, it is a lock.
    """

    SLUG = "setnx"
    FAILS = frozenset({CRASH, ONLY_THE_OWNER})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE, TOLD)
class TestSetnxThenExpire(RungConformance, ExpiresConformance, OneRedisConformance):
    SLUG = "setnx-then-expire"
    FAILS = frozenset({LATE_RELEASE})


@only(EXCLUDES, HOLD_RELEASES, CRASH)
class TestWrongKeyExpires(RungConformance, SurvivesHolderCrashConformance):
    SLUG = "wrong-key-expires"
    FAILS = frozenset({CRASH})


@only(EXCLUDES, HOLD_RELEASES, CRASH)
class TestTtlHealedByWaiters(RungConformance, SurvivesHolderCrashConformance):
    SLUG = "ttl-healed-by-waiters"
    FAILS = frozenset({CRASH})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE, CRASH)
class TestTtlHealedInOneScript(RungConformance, ExpiresConformance, SurvivesHolderCrashConformance):
    SLUG = "ttl-healed-in-one-script"
    FAILS = frozenset({LATE_RELEASE})


@without(THREADS, "test_125_processes_lose_no_update", "test_greenlets_each_own_a_lease")
class TestSetNxEx(RungConformance, AcrossProcessesConformance, ExpiresConformance, SurvivesHolderCrashConformance):
    """The whole suite, less what takes long and is the same as with `setnx`."""

    SLUG = "set-nx-ex"
    FAILS = frozenset({LATE_RELEASE, ONLY_THE_OWNER, "test_a_holder_paused_beyond_its_ttl_is_told"})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestWrongArgument(RungConformance, ExpiresConformance):
    SLUG = "wrong-argument"
    FAILS = frozenset({EXCLUDES, HOLD_RELEASES, LATE_RELEASE})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE, HELD_UP)
class TestGetCompareDel(RungConformance, ExpiresConformance, OneRedisConformance):
    SLUG = "get-compare-del"
    FAILS = frozenset({HELD_UP})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestOwnerAsText(RungConformance, ExpiresConformance):
    SLUG = "owner-as-text"
    FAILS = frozenset({EXCLUDES, HOLD_RELEASES, LATE_RELEASE})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestOwnerIsThreadId(RungConformance, ExpiresConformance):
    SLUG = "owner-is-thread-id"
    FAILS = frozenset({LATE_RELEASE})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestOwnerIsIpPidThreadTime(RungConformance, ExpiresConformance):
    """All ask in the same hundredth of a second, as their clock stands still."""

    SLUG = "owner-is-ip-pid-thread-time"
    OPTIONS = {"ttl": LONG, "clock": Clock()}
    FAILS = frozenset({LATE_RELEASE})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE, HELD_UP, ALONE)
class TestWatchRelease(RungConformance, ExpiresConformance, OneRedisConformance):
    """Its release is right; its TTL is a guess."""

    SLUG = "watch-release"
    FAILS = frozenset({ALONE})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE, HELD_UP, ALONE)
class TestLuaRelease(RungConformance, ExpiresConformance, OneRedisConformance):
    """As `watch-release`."""

    SLUG = "lua-release"
    FAILS = frozenset({ALONE})


@only(EXCLUDES, HOLD_RELEASES, RENEWED, "test_renewal_ends_with_the_release")
class TestRenewsNothing(RungConformance, RenewsConformance):
    SLUG = "renews-nothing"
    FAILS = frozenset({RENEWED})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE, ENTERS_AGAIN, OUTERMOST)
class TestReEntrantWithoutTheCount(RungConformance, ExpiresConformance, ReentrantConformance):
    SLUG = "re-entrant-without-the-count"
    FAILS = frozenset({OUTERMOST})


@only(EXCLUDES, HOLD_RELEASES, WOKEN, NOT_MISSED)
class TestLostWakeUp(RungConformance, OneRedisConformance):
    SLUG = "lost-wake-up"
    FAILS = frozenset({NOT_MISSED})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE, WOKEN, IN_ORDER, DEAD_WAITER)
class TestDeadHead(RungConformance, ExpiresConformance, FairConformance, OneRedisConformance):
    SLUG = "dead-head"
    FAILS = frozenset({DEAD_WAITER})


@only(ALONE, HELD_UP, NOT_MISSED, DEAD_WAITER)
class TestTheSoundLock(RedisTraces, OneRedisConformance):
    """Keeps what rungs are asked here and the suite does not ask."""

    OPTIONS = {"ttl": LONG}

    @pytest.fixture
    def recipe(self, valkey: Valkey, client: redis.Redis) -> RedisRecipe:
        self.client = client
        return RedisRecipe(valkey.url)

    def waiters(self, lock: Lock) -> int:
        return self.in_line(lock.name)

    def lock_on(self, client: redis.Redis, name: str) -> Lock:
        return RedisLock(client, name, ttl=LONG, renew=False)

    def key(self, name: str) -> str:
        return f"lock:{{{name}}}"

    def in_line(self, name: str) -> int:
        return int(self.client.info("clients")["blocked_clients"])
