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
from typing import Any, TypeVar
from uuid import uuid4

import pytest
import redis

from inventory.strategies import NAMES
from lab.ladder.locks import LOCKS as ALL
from lab.ladder.locks import LockRung
from lab.ladder.locks.owner_is_ip_pid_thread_time import OwnerIsIpPidThreadTime
from lab.ladder.locks.rung import Rung
from locking import Lock, LockUnavailable
from servers.valkey import Valkey
from tests.lab import rung_support as world_of
from tests.lab.rung_support import (
    TTL,
    Crash,
    MeetingRecipe,
    Renewal,
    RungRecipe,
    Schedule,
    World,
    asleep,
    meeting_client,
    rung,
)
from tests.locking import conformance
from tests.locking.conformance import (
    LONG,
    SHORT,
    AcrossProcessesConformance,
    ExpiresConformance,
    LockConformance,
    ReentrantConformance,
    RenewsConformance,
    SurvivesHolderCrashConformance,
)
from tests.locking.conftest import own_valkey, valkey
from tests.locking.support import client_of, in_fork, paused

__all__ = ["own_valkey", "valkey"]

LOCKS = {slug: made for slug, made in ALL.items() if slug != "fence-on-write-only"}
"""The others need more than this world: they are in test_lock_rungs_on_servers.py."""


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


def test_the_ladder_has_every_rung_in_order_and_a_schedule_for_each() -> None:
    assert list(dict.fromkeys(slug for slug, _ in SCHEDULES)) == list(LOCKS)
    assert {slug: made.slug for slug, made in LOCKS.items()} == {slug: slug for slug in LOCKS}


@pytest.mark.parametrize("slug", LOCKS)
def test_a_rung_says_what_it_is(slug: str) -> None:
    made = LOCKS[slug]
    assert made.title
    assert made.flaw is not None
    assert made.flaw.endswith(".")
    assert made.breaks in ("conserved", "one holder", "progress")
    assert made.fixed_by in {*LOCKS, Renewal.slug} - {slug}
    for said in ("Flawed", "schedule", f"`{made.fixed_by}`", *made.source.split(", ")):
        assert said in (made.__doc__ or ""), said


def test_whoever_follows_the_fixes_arrives_at_the_sound_lock() -> None:
    for slug in LOCKS:
        seen = []
        while slug != Renewal.slug:
            assert slug not in seen
            seen.append(slug)
            slug = rung(slug).fixed_by or ""


def test_a_rung_is_no_strategy_of_the_shop() -> None:
    assert not set(LOCKS) & set(NAMES)


IN_PROCESS = {"thread-lock", "process-lock"}
LOCK_RUNGS = [slug for slug, made in LOCKS.items() if issubclass(made, LockRung)]


@pytest.mark.parametrize("slug", LOCK_RUNGS)
def test_it_survives_a_crash_exactly_if_it_says_so(new_world: Callable[[], World], slug: str) -> None:
    """Whatever command the holder was about to send, others enter after three TTLs at most."""
    dies = dies_with_it if slug in IN_PROCESS else dies_anywhere
    survives = excludes(new_world(), LOCKS[slug]) and dies(new_world, LOCKS[slug])
    assert survives is ("crash" in LOCKS[slug].survives)


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
    impatient = redis.Redis.from_url(own_valkey.url, socket_timeout=0.05, retry=None)
    made: Any = LOCKS[slug]
    lease = made(impatient, "x").acquire()
    assert own_valkey.child.pid is not None
    with paused(own_valkey.child.pid):
        with pytest.raises(LockUnavailable):
            made(impatient, "y").acquire(blocking=False)
        with pytest.raises(LockUnavailable):
            lease.release()
    impatient.close()


# Which promises of every lock each keeps

Tests = TypeVar("Tests", bound=type[LockConformance])


def only(*names: str) -> Callable[[Tests], Tests]:
    """Leave the other tests of the suite out: with a rung that polls they are slow, or left to chance."""
    return lambda tests: without(*{name for name in dir(tests) if name.startswith("test_")} - {*names})(tests)


def without(*names: str) -> Callable[[Tests], Tests]:
    def keep(tests: Tests) -> Tests:
        for name in names:
            assert hasattr(tests, name)
            setattr(tests, name, None)
        return tests

    return keep


class RungConformance(LockConformance):
    """What a rung promises and does not keep is in `FAILS`, and has to fail."""

    SLUG: str
    OPTIONS = {"ttl": LONG}
    CRASH_OPTIONS = {"ttl": 5 * SHORT}  # nobody renews it: it has to outlast the test's look at a living holder
    PAIRS = 300

    @pytest.fixture(autouse=True)
    def _impatient(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """What must not come is not waited for as long as what must."""
        if request.node.originalname in self.FAILS:
            monkeypatch.setattr(conformance, "PATIENCE", 6 * SHORT)

    @pytest.fixture
    def recipe(self, valkey: Valkey, client: redis.Redis) -> RungRecipe:
        self.client = client
        return RungRecipe(valkey.url, self.SLUG)

    def waiters(self, lock: Lock) -> int:
        return asleep.count

    def traces(self, lock: Lock) -> dict[str, int]:
        return {"keys": self.client.dbsize()}


EXCLUDES = "test_it_excludes_others_until_it_is_released"
SERVES_THREADS = "test_one_lock_object_serves_many_threads_at_once"
HOLD_RELEASES = "test_hold_releases_on_leaving"
ANY_THREAD = "test_a_lease_may_be_used_by_another_thread"
THREADS = "test_threads_lose_no_update"
PROCESSES = "test_processes_lose_no_update"
CRASH = "test_the_lock_of_a_crashed_holder_becomes_free"
LATE_RELEASE = "test_who_has_lost_the_lock_cannot_release_it"
RENEWED = "test_renewal_keeps_the_lock_beyond_its_ttl"


@only(EXCLUDES, HOLD_RELEASES, SERVES_THREADS)
class TestNoLock(RungConformance):
    SLUG = "no-lock"
    FAILS = frozenset({EXCLUDES, SERVES_THREADS})


@only(THREADS, PROCESSES, ANY_THREAD, "test_it_enters_again_only_if_it_says_so")
class TestThreadLock(RungConformance, AcrossProcessesConformance, ReentrantConformance):
    SLUG = "thread-lock"
    FAILS = frozenset({PROCESSES, ANY_THREAD})


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


@only(EXCLUDES, HOLD_RELEASES, SERVES_THREADS)
class TestBusyAsSuccess(RungConformance):
    """The lock does what a lock does; its caller does not."""

    SLUG = "busy-as-success"


@without("test_a_grant_is_a_lease_that_is_held", "test_125_short_lived_processes_lose_no_update")
class TestSetnx(RungConformance, AcrossProcessesConformance, SurvivesHolderCrashConformance):
    """The whole suite, but for a test that wants a lease to be shorter than its TTL, which is infinite here.

    While everybody lives, it is a lock.
    """

    SLUG = "setnx"
    FAILS = frozenset({CRASH})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestSetnxThenExpire(RungConformance, ExpiresConformance):
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


@without(THREADS, "test_125_short_lived_processes_lose_no_update", "test_greenlets_each_own_a_lease")
class TestSetNxEx(RungConformance, AcrossProcessesConformance, ExpiresConformance, SurvivesHolderCrashConformance):
    """The whole suite, less what takes long and is the same as with `setnx`."""

    SLUG = "set-nx-ex"
    FAILS = frozenset({LATE_RELEASE, "test_a_holder_that_was_paused_too_long_is_told"})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestWrongArgument(RungConformance, ExpiresConformance):
    SLUG = "wrong-argument"
    FAILS = frozenset({EXCLUDES, HOLD_RELEASES, LATE_RELEASE})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestGetCompareDel(RungConformance, ExpiresConformance):
    """What it fails takes a schedule."""

    SLUG = "get-compare-del"


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestOwnerAsText(RungConformance, ExpiresConformance):
    SLUG = "owner-as-text"
    FAILS = frozenset({EXCLUDES, HOLD_RELEASES, LATE_RELEASE})


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestOwnerIsThreadId(RungConformance, ExpiresConformance):
    SLUG = "owner-is-thread-id"
    FAILS = frozenset({LATE_RELEASE})


@only(EXCLUDES, HOLD_RELEASES)
class TestOwnerIsIpPidThreadTime(RungConformance, ExpiresConformance):
    """The late release is left out: it goes wrong whenever both happen to ask in one hundredth of a second."""

    SLUG = "owner-is-ip-pid-thread-time"


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestWatchRelease(RungConformance, ExpiresConformance):
    """What it promises, it keeps; work that outlasts the TTL it does not promise to survive."""

    SLUG = "watch-release"


@only(EXCLUDES, HOLD_RELEASES, LATE_RELEASE)
class TestLuaRelease(RungConformance, ExpiresConformance):
    """As `watch-release`."""

    SLUG = "lua-release"


@only(EXCLUDES, HOLD_RELEASES, RENEWED, "test_renewal_ends_with_the_release")
class TestRenewsNothing(RungConformance, RenewsConformance):
    SLUG = "renews-nothing"
    FAILS = frozenset({RENEWED})


def test_every_lock_rung_is_held_against_the_suite() -> None:
    assert {tests.SLUG for tests in RungConformance.__subclasses__()} == set(LOCK_RUNGS)
