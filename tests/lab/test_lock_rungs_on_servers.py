"""The rungs after `renewal`: what the sound lock cannot do alone. Real locks, real servers, fixed schedules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from lab.ladder.locks import LOCKS
from lab.ladder.locks.fence import Fence
from lab.ladder.locks.fence_on_write_only import FenceOnWriteOnly
from locking import Lease, RedisLock
from servers.valkey import Valkey
from tests.locking.conftest import valkey
from tests.waiting import wait_for

__all__ = ["valkey"]


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        yield client


def overtaken(client: redis.Redis) -> tuple[Lease, Lease]:
    """Two leases of one lock: the TTL of the first was over before the second was granted."""
    lock = RedisLock(client, "stock", renew=False)
    first = lock.acquire()
    client.pexpire("lock:{stock}", 1)
    wait_for(lambda: not client.exists("lock:{stock}"))
    second = lock.acquire()
    assert first is not None
    assert second is not None
    return first, second


@pytest.mark.parametrize(("made", "written"), [(FenceOnWriteOnly, [True, True]), (Fence, [False, True])])
def test_both_read_then_both_write(client: redis.Redis, made: type[FenceOnWriteOnly], written: list[bool]) -> None:
    """Without the claim two are told that they have sold, and one unit is gone."""
    client.set("stock", 10)
    store = made(client, "stock")
    fences = [lease.fence or 0 for lease in overtaken(client)]
    assert fences == sorted(set(fences))
    seen = [store.read(fence) for fence in fences]
    assert seen == [10, 10]
    assert [store.write(fence, 9) for fence in fences] == written
    assert client.get("stock") == b"9"
    broken = None if written.count(True) == 1 else "conserved"
    assert broken == made.breaks


def test_who_was_overtaken_before_he_read_is_told_at_once(client: redis.Redis) -> None:
    client.set("stock", 10)
    late, early = (lease.fence or 0 for lease in overtaken(client))
    store = Fence(client, "stock")
    assert store.read(early) == 10
    assert store.read(late) is None


def test_the_ladder_has_it_and_names_its_fix() -> None:
    made = LOCKS["fence-on-write-only"]
    assert made.fixed_by == Fence.slug
    for said in ("Flawed", "schedule", "`fence`", made.source, "lost"):
        assert said in (made.__doc__ or "")
