"""`held`, which lists held locks, and `force_release`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any

import pytest
import redis

from locking import HeldLock, Lease, LockUnavailable, RedisLock, force_release, held
from tests.locking.conformance import RENEWED
from tests.locking.support import CommandStats, CutConnection, Log, Patch, Pool, RedisRecipe, socket_of
from tests.waiting import WAIT_TIMEOUT, wait_for


def test_a_handed_over_lock_is_listed(client: redis.Redis) -> None:
    lock = RedisLock(client, "handed over")
    with ThreadPoolExecutor(1, "the next one") as threads, lock.hold():
        waiting = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
        wait_for(lambda: client.info("clients")["blocked_clients"])
    lease = waiting.result()
    (found,) = held(client)
    assert (found.owner, found.fence, found.waiters) == ("", lease.fence, 0)
    lease.extend()
    (found,) = held(client)
    assert ":the next one" in found.owner
    assert (found.fence, found.waiters) == (lease.fence, 0)
    assert lease.release() is True


def test_it_sorts_by_name_and_stops_at_the_limit(client: redis.Redis) -> None:
    leases = [RedisLock(client, name, renew=False).acquire() for name in "cab"]
    assert [lock.name for lock in held(client)] == ["a", "b", "c"]
    assert len(held(client, limit=2)) == 2
    assert all(lease.release() for lease in leases)


def test_it_looks_at_no_more_keys_than_told(client: redis.Redis) -> None:
    client.mset({f"other {index}": index for index in range(5000)})
    lease = RedisLock(client, "somewhere").acquire()
    stats = CommandStats(client)
    held(client, scan=2000)
    assert stats()["scan"] <= 2
    assert [lock.name for lock in held(client)] == ["somewhere"]
    assert "keys" not in stats()
    lease.release()


def test_waiters_that_are_gone_do_not_count(client: redis.Redis) -> None:
    with RedisLock(client, "waited for").hold():
        client.zadd("lock:{waited for}:waiters", {"a dead waiter": 1})
        assert [lock.waiters for lock in held(client)] == [0]


def test_a_freed_lock_is_left_out(client: redis.Redis, monkeypatch: Patch) -> None:
    RedisLock(client, "gone").acquire().release()
    with RedisLock(client, "kept").hold():
        scan = client.scan
        monkeypatch.setattr(
            client, "scan", lambda *args, **kw: (lambda at, keys: (at, [b"lock:{gone}", *keys]))(*scan(*args, **kw))
        )
        assert [lock.name for lock in held(client)] == ["kept"]


def test_a_lock_that_ends_between_two_answers_is_left_out(client: redis.Redis, monkeypatch: Patch) -> None:
    with RedisLock(client, "fleeting").hold():
        pipeline = client.pipeline(transaction=False)
        monkeypatch.setattr(pipeline, "execute", lambda raise_on_error: [b"a token", -2, None, 0, None])
        monkeypatch.setattr(client, "pipeline", lambda transaction: pipeline)
        assert held(client) == []


def test_other_keys_do_no_harm(client: redis.Redis) -> None:
    client.lpush("lock:{list}", "x")
    client.set("lock:{without time}", "no token")
    client.set(b"lock:{bytes \\xff}" + b"\xff", "x")
    assert held(client) == [HeldLock("without time", "", None, None, None, 0)]


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 2}, {"protocol": 3}])
def test_it_reads_what_any_client_says(recipe: RedisRecipe, client: redis.Redis, options: dict[str, Any]) -> None:
    other = redis.Redis.from_url(recipe.url, **options)
    with RedisLock(client, "é").hold() as lease:
        assert [(lock.name, lock.fence) for lock in held(other)] == [("é", lease.fence)]
    other.close()


@pytest.fixture
def forbidden(client: redis.Redis) -> Iterator[Callable[[str], None]]:
    """Return a function that makes the server refuse a command until the end of the test."""

    def forbid(command: str) -> None:
        client.execute_command("ACL", "SETUSER", "default", f"-{command}")

    yield forbid
    client.execute_command("ACL", "SETUSER", "default", "+@all")


@pytest.mark.parametrize("command", ["scan", "time"])
def test_a_server_that_refuses_is_said_to_be(
    client: redis.Redis, forbidden: Callable[[str], None], command: str
) -> None:
    with RedisLock(client, "hidden").hold():
        forbidden(command)
        with pytest.raises(LockUnavailable, match=f"(?i)no permissions.*{command}"):
            held(client)


# By force


def test_force_release_frees_and_tells(client: redis.Redis, caplog: Log) -> None:
    lock = RedisLock(client, "stuck", ttl=RENEWED)
    lease = lock.acquire()
    assert force_release(client, "stuck", by="admin: the worker\nis gone") is True
    assert caplog.text.count(r"MainThread' by force, by 'admin: the worker\nis gone'") == 2, "one line for each"
    with lock.hold(timeout=0):
        wait_for(lambda: lease.lost)
    assert force_release(client, "stuck", by="admin") is False
    assert lease.release() is False


def test_force_release_takes_members_of_an_enum_as_their_values(client: redis.Redis, caplog: Log) -> None:
    by = Enum("By", {"ADMIN": "admin: the worker is gone"}, type=str)
    fence = Enum("Fence", {"FIRST": 1}, type=int)
    RedisLock(client, "stuck").acquire()
    (key,) = client.keys("lock:{stuck}:fence")
    _, _, owner = client.get(key).partition(b" ")
    client.set(key, b"1 " + owner)
    assert force_release(client, "stuck", by=by.ADMIN, fence=fence.FIRST) is True
    assert caplog.text.count("by force, by 'admin: the worker is gone'.") == 2


def test_force_release_hands_over(client: redis.Redis, threads: Pool) -> None:
    lock = RedisLock(client, "stuck", ttl=60.0)  # The TTL is so long that only a wake-up can end the wait.
    lease = lock.acquire()
    waiting = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
    wait_for(lambda: client.info("clients")["blocked_clients"])
    force_release(client, "stuck", by="admin")
    assert waiting.result(WAIT_TIMEOUT).release() is True
    assert lease.release() is False


def test_a_grant_made_meanwhile_is_not_taken(client: redis.Redis, monkeypatch: Patch) -> None:
    lock = RedisLock(client, "moving")
    first = lock.acquire()
    leases: list[Lease] = []
    pttl = client.pttl

    def overtaken(key: str) -> int:
        first.release()
        leases.append(lock.acquire())
        return int(pttl(key))

    monkeypatch.setattr(client, "pttl", overtaken)
    assert force_release(client, "moving", by="admin") is False
    leases[0].extend()
    assert leases[0].release() is True


def test_a_grant_with_another_fence_is_not_taken(client: redis.Redis) -> None:
    lock = RedisLock(client, "moved")
    first = lock.acquire()
    first.release()
    second = lock.acquire()
    assert force_release(client, "moved", by="admin", fence=first.fence) is False
    second.extend()
    assert force_release(client, "moved", by="admin", fence=second.fence) is True
    assert second.release() is False


@pytest.mark.parametrize("command", ["get", "pttl", "evalsha"])
def test_a_refused_force_release_is_reported(
    client: redis.Redis, forbidden: Callable[[str], None], command: str
) -> None:
    lease = RedisLock(client, "kept", ttl=30.0).acquire()
    forbidden(command)
    with pytest.raises(LockUnavailable, match=f"(?i)no permissions.*{command}"):
        force_release(client, "kept", by="admin")
    client.execute_command("ACL", "SETUSER", "default", "+@all")
    assert lease.release() is True


def test_what_is_no_lock_is_not_released(client: redis.Redis) -> None:
    client.lpush("lock:{list}", "x")
    with pytest.raises(LockUnavailable, match="WRONGTYPE"):
        force_release(client, "list", by="admin")
    assert client.llen("lock:{list}") == 1


def test_force_release_is_logged_without_an_answer(recipe: RedisRecipe, client: redis.Redis, caplog: Log) -> None:
    lease = RedisLock(client, "stuck").acquire()
    cut = type("Cut", (CutConnection,), {"cut_next": True})
    pool = redis.ConnectionPool(connection_class=cut, path=socket_of(recipe.url))
    with pytest.raises(LockUnavailable):
        force_release(redis.Redis(connection_pool=pool), "stuck", by="admin: the worker is gone")
    assert not client.exists("lock:{stuck}")
    assert caplog.text.count("MainThread' by force, by 'admin: the worker is gone'") == 1
    assert lease.release() is False
    pool.disconnect()
