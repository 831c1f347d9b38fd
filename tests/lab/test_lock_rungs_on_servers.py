"""The rungs after `renewal`: what the sound locks cannot do alone. Real locks, real servers, fixed schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
import redis

from lab.ladder.locks import LOCKS
from lab.ladder.locks.fence import Fence
from lab.ladder.locks.fence_on_write_only import FenceOnWriteOnly
from locking import Lease, LeaseLost, LockUnavailable, RedisLock, Redlock
from servers.valkey import Valkey
from tests.lab.faketime_support import own_clock
from tests.lab.rung_properties import EXCLUDES, HOLD_RELEASES, RESTARTED, FlawedConformance
from tests.locking import test_redlock
from tests.locking.conformance import only
from tests.locking.conftest import valkey
from tests.locking.redlock_support import admin, dead
from tests.locking.test_redlock import nodes, recipe
from tests.locking.valkey_support import HOST, client_of, valkeys
from tests.waiting import wait_for

__all__ = ["nodes", "recipe", "valkey"]

pytestmark = pytest.mark.slow

TTL = 60.0
"""Seconds: no test lives to see the end of it."""

NODE_TIMEOUT = 10.0
"""Seconds: no node that is there needs as long, and one that is not refuses at once."""

REPLICATES = ("--repl-diskless-sync-delay", "0")
"""Or the first copy takes five seconds."""


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        yield client


def sells_twice(client: redis.Redis, store: type[FenceOnWriteOnly], leases: Sequence[Lease | None]) -> str | None:
    """Both read, then both write what they have computed. With one lease nobody sells twice."""
    if None in leases:
        return None
    client.set("stock", 10)
    made = store(client, "stock")
    fences = [lease.fence or 0 for lease in leases if lease is not None]
    assert fences == sorted(set(fences))
    assert [made.read(fence) for fence in fences] == [10, 10]
    written = [made.write(fence, 9) for fence in fences]
    assert client.get("stock") == b"9"
    assert written[-1] is True
    return None if written.count(True) == 1 else "conserved"


def both_hold(leases: Sequence[Lease | None]) -> str | None:
    """Both were granted the lock, and neither lease knows of the other."""
    for lease in leases:
        if lease is not None:
            lease.check()
    return None if None in leases else "one holder"


# Schedules: of a rung, or of the one that fixes it

Schedule = Callable[[redis.Redis, str], str | None]


class Trusting(FenceOnWriteOnly):
    """The store of who has nothing but his lock: it looks at no fence."""

    slug = "renewal-and-a-pause"

    def write(self, fence: int, value: int) -> bool:
        return bool(self.client.set(self.keys[0], value))


def reads_before_it_is_overtaken(client: redis.Redis, slug: str) -> str | None:
    """The TTL of the first lease is over before the second one is granted. Both read, then both write."""
    stores = {made.slug: made for made in (Trusting, FenceOnWriteOnly, Fence)}
    return sells_twice(client, stores[slug], overtaken(client))


def overtaken(client: redis.Redis) -> tuple[Lease | None, Lease | None]:
    """Two leases of one lock: the TTL of the first was over before the second was granted."""
    lock = RedisLock(client, "stock", renew=False)
    first = lock.acquire()
    client.pexpire("lock:{stock}", 1)
    wait_for(lambda: not client.exists("lock:{stock}"))
    return first, lock.acquire()


def fails_over_before_it_is_copied(client: redis.Redis, slug: str) -> str | None:
    """The replica is cut off. A is granted the lock; the primary is lost, the replica promoted, and B asks it.

    For `redlock` it is one of five nodes that is lost, after two others were.
    """
    if slug == "redlock":
        return a_node_fails_over(client, slug)
    with valkeys(2, *REPLICATES) as ((primary, first), (_, second)):
        copies(first, second)
        cut_off(second)
        a = RedisLock(client_of(first), "stock", ttl=TTL, renew=False).acquire()
        primary.child.kill()
        client_of(second).replicaof("NO", "ONE")
        b = RedisLock(client_of(second), "stock", ttl=TTL, renew=False).acquire(blocking=False)
        return sells_twice(client, Fence, (a, b)) if slug == "fence" else both_hold((a, b))


def copies(primary: int, *replicas: int) -> None:
    for replica in replicas:
        client_of(replica).replicaof(HOST, primary)
    wait_for(lambda: client_of(primary).wait(len(replicas), 100) == len(replicas), "the replicas")


def cut_off(replica: int) -> None:
    """It keeps what it has, and from now on looks for its primary where nobody is."""
    client_of(replica).replicaof(HOST, 1)
    wait_for(lambda: client_of(replica).info("replication")["master_link_status"] == "down")


def second_majority(nodes: Sequence[Valkey], happens: Callable[[], str]) -> str | None:
    """A is granted the lock by three of five, as two cannot be reached. Then it happens, the two are back, and B asks.

    Args:
        nodes: five.
        happens: what does, to the third. Returns where the third is to be found from then on.
    """
    clients = [admin(node) for node in nodes]
    options = {"ttl": TTL, "node_timeout": NODE_TIMEOUT, "renew": False}
    with dead(nodes[0]), dead(nodes[1]):
        a = Redlock(clients, "stock", **options).acquire()
    clients[2] = redis.Redis.from_url(happens())
    return both_hold((a, Redlock(clients, "stock", **options).acquire(blocking=False)))


def a_node_restarts(client: redis.Redis, slug: str) -> str | None:
    """The third node loses power. What it has on disk says `redlock`: all that it granted; otherwise nothing."""
    kept = "yes" if slug == "redlock" else "no"
    with valkeys(5, "--appendonly", kept, "--appendfsync", "always") as made:
        nodes = [node for node, _ in made]

        def restart() -> str:
            with dead(nodes[2]):
                pass
            return nodes[2].url

        return second_majority(nodes, restart)


def a_node_fails_over(client: redis.Redis, slug: str) -> str | None:
    """The third node is lost. Its replica, which was cut off before the grant, takes its place, unless it has none."""
    with valkeys(6, "--appendonly", "no", *REPLICATES) as made:
        *nodes, replica = (node for node, _ in made)
        copies(made[2][1], made[5][1])
        cut_off(made[5][1])

        def fail_over() -> str:
            nodes[2].child.kill()
            if slug == "redlock":
                return nodes[2].url
            client_of(made[5][1]).replicaof("NO", "ONE")
            return replica.url

        return second_majority(nodes, fail_over)


def a_clock_leaps(client: redis.Redis, slug: str, ahead: float = 2 * TTL) -> str | None:
    """The third node's clock is set ahead by two TTLs; for `fence`, that of the one server of a lock which has one."""
    with ExitStack() as stack:
        nodes = [node for node, _ in stack.enter_context(valkeys(5, "--appendonly", "no"))]
        leap = stack.enter_context(own_clock(nodes[2]))

        def happen() -> str:
            leap(ahead)
            return nodes[2].url

        if slug != "fence":
            return second_majority(nodes, happen)
        lock = RedisLock(admin(nodes[2]), "stock", ttl=TTL, renew=False)
        a = lock.acquire()
        happen()
        b = lock.acquire(blocking=False)
        assert both_hold((a, b)) == "one holder"
        return sells_twice(client, Fence, (a, b))


SCHEDULES: list[tuple[str, Schedule]] = [
    ("renewal-and-a-pause", reads_before_it_is_overtaken),
    ("fence-on-write-only", reads_before_it_is_overtaken),
    ("one-primary-with-replicas", fails_over_before_it_is_copied),
    ("redlock-no-fsync", a_node_restarts),
    ("redlock-replicated-nodes", a_node_fails_over),
    ("redlock-clock-jump", a_clock_leaps),
]
EACH = pytest.mark.parametrize(("slug", "schedule"), SCHEDULES, ids=[slug for slug, _ in SCHEDULES])


@EACH
def test_the_schedule_breaks_what_the_rung_says(client: redis.Redis, slug: str, schedule: Schedule) -> None:
    assert schedule(client, slug) == LOCKS[slug].breaks


@EACH
def test_the_rung_that_fixes_it_survives_the_same_schedule(client: redis.Redis, slug: str, schedule: Schedule) -> None:
    fix = LOCKS[slug].fixed_by
    assert fix is not None
    assert schedule(client, fix) is None


# What is special


def test_who_was_overtaken_before_he_read_is_told_at_once(client: redis.Redis) -> None:
    client.set("stock", 10)
    late, early = (lease.fence for lease in overtaken(client) if lease is not None)
    assert late is not None
    assert early is not None
    store = Fence(client, "stock")
    assert store.read(early) == 10
    assert store.read(late) is None


def test_the_fence_refuses_whom_a_failover_has_forgotten(client: redis.Redis) -> None:
    assert fails_over_before_it_is_copied(client, "fence") is None


def test_a_grant_that_was_copied_in_time_survives_the_failover() -> None:
    """It is being late that breaks it, and nothing else of a failover."""
    with valkeys(2, *REPLICATES) as ((primary, first), (_, second)):
        copies(first, second)
        lease = RedisLock(client_of(first), "stock", ttl=TTL, renew=False).acquire()
        wait_for(lambda: client_of(second).exists("lock:{stock}"))
        cut_off(second)
        primary.child.kill()
        client_of(second).replicaof("NO", "ONE")
        assert both_hold((lease, RedisLock(client_of(second), "stock", ttl=TTL).acquire(blocking=False))) is None


def test_a_grant_that_no_replica_has_is_none_so_a_failover_forgets_nothing() -> None:
    """The schedule of the rung, with `wait_for_replicas`."""
    with valkeys(2, *REPLICATES) as ((primary, first), (_, second)):
        copies(first, second)
        cut_off(second)
        with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
            RedisLock(client_of(first), "stock", ttl=2.0, wait_for_replicas=1).acquire()
        primary.child.kill()
        client_of(second).replicaof("NO", "ONE")
        assert RedisLock(client_of(second), "stock", ttl=TTL, renew=False).acquire(blocking=False) is not None


def test_a_grant_that_one_replica_has_is_forgotten_when_the_other_is_promoted(client: redis.Redis) -> None:
    """What `wait_for_replicas` leaves open, and the fence does not."""
    with valkeys(3, *REPLICATES) as ((primary, first), (_, second), (_, third)):
        copies(first, second, third)
        cut_off(third)
        a = RedisLock(client_of(first), "stock", ttl=TTL, wait_for_replicas=1, renew=False).acquire()
        assert client_of(second).exists("lock:{stock}")
        primary.child.kill()
        client_of(third).replicaof("NO", "ONE")
        b = RedisLock(client_of(third), "stock", ttl=TTL, renew=False).acquire(blocking=False)
        assert both_hold((a, b)) == "one holder"
        assert sells_twice(client, Fence, (a, b)) is None


def test_who_extends_a_forgotten_grant_is_told() -> None:
    """Renewal does no more: until then two hold the lock."""
    with valkeys(1) as ((_, port),):
        lease = RedisLock(client_of(port), "stock", ttl=TTL, renew=False).acquire()
        assert lease is not None
        client_of(port).flushall()
        lease.check()
        with pytest.raises(LeaseLost):
            lease.extend()


@pytest.mark.parametrize("ahead", [0.0, TTL / 2])
def test_a_clock_that_leaps_by_less_than_the_ttl_breaks_nothing(client: redis.Redis, ahead: float) -> None:
    assert a_clock_leaps(client, "redlock-clock-jump", ahead) is None


# Which promises of every lock each keeps


@only(EXCLUDES, HOLD_RELEASES, RESTARTED)
class TestRedlockNoFsync(FlawedConformance, test_redlock.TestRedlock):
    """Redlock, on nodes that have nothing on disk."""

    SLUG = "redlock-no-fsync"
    FAILS = frozenset({RESTARTED})

    def restart(self) -> None:
        for node in self.nodes:
            with dead(node):
                pass
