"""Registry: list the `RedisLock`s that are held on a server, and release one by force.

A listing may be out of date by the time it is read. Only `RedisLock`s are listed: a single node of a `Redlock` does not
know whether a majority granted the lock, and locks on other servers are not in Redis.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from secrets import token_hex
from typing import TYPE_CHECKING, Any, cast

import redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from locking.arguments import require_count, require_text
from locking.errors import LockUnavailable
from locking.redis.arguments import require_redis, require_tag
from locking.redis.connection import ScriptCall, run_script

if TYPE_CHECKING:
    from redis import Redis

    from locking.redis.connection import Client

logger = logging.getLogger(__name__)

KEYS_A_STEP = 1000
"""Number of keys that one SCAN reads. It is sent as text, like all arguments: see
`locking.redis.connection.Command`."""

FAILURES = (RedisError, RedisClusterException)
"""redis-py's errors for no connection, no answer, a refused command, or no reachable node of a cluster."""

NO_SUCH_KEY = -2
"""Result of PTTL for a key that does not exist. For a key without an expiry, it is -1."""


@dataclass(frozen=True)
class HeldLock:
    """A `RedisLock` that was held when the server was asked.

    Attributes:
        name: name of the lock.
        owner: host, process id and thread name of the holder, for display only. Empty after a waiter was handed the
            lock, until the waiter's lease is first renewed.
        fence: fencing token of the grant; None if its key is missing.
        age: seconds since the grant, by the server's clock; None without a fence.
        ttl: seconds until the grant expires unless it is renewed; None if the key does not expire.
        waiters: number of waiters that the server knows of. Several waiting threads of one process may count as one.
    """

    name: str
    owner: str
    fence: int | None
    age: float | None
    ttl: float | None
    waiters: int


def held(client: Client, limit: int = 1000, *, scan: int = 1_000_000) -> list[HeldLock]:
    """Return the `RedisLock`s that are held on a server or cluster, sorted by name.

    The keys of the server are read in steps (SCAN), which blocks no other client. A lock that is acquired or released
    meanwhile may be missing. A lock that a release has offered to its waiters is missing until one of them takes it.

    Args:
        client: client of the server or cluster.
        limit: maximum number of locks to return.
        scan: approximate maximum number of keys to look at on each server.

    Raises:
        LockUnavailable: the server could not be reached, or refused a command.
        TypeError: the client is of another class, or `limit` or `scan` is not an `int`.
        ValueError: `limit` or `scan` is out of range.
    """
    require_redis(client, redis.Redis, RedisCluster)
    limit = require_count("limit", limit)
    scan = require_count("scan", scan)
    try:
        locks: list[HeldLock] = []
        for node in _nodes(client):
            names = list(islice(_names(node, scan), limit - len(locks)))
            for at in range(0, len(names), KEYS_A_STEP):
                locks.extend(_look(node, names[at : at + KEYS_A_STEP]))
    except FAILURES as error:
        raise LockUnavailable(f"The Redis server could not list its locks ({error}). Try again.") from error
    return sorted(locks, key=lambda lock: lock.name)


def force_release(client: Client, name: str, *, by: str, fence: int | None = None) -> bool:
    """Release a `RedisLock` on behalf of its holder, and hand it to the next waiter.

    The holder works on until it notices its loss: at the next renewal, or in `check()` once its lifetime is over. Use
    this only if every write is guarded by the fence, or if the holder is known to be dead.

    One warning is logged before the request, because the answer may be lost, and another one after success.

    Args:
        client: client of the server or cluster.
        name: name of the lock.
        by: who releases the lock and why, for the log.
        fence: fencing token of the grant to release, from `held`, so that no later holder loses the lock. None releases
            the present grant without a check.

    Returns:
        True if that grant was released. False if there was none, or if the lock was only offered to its waiters.

    Raises:
        LockUnavailable: the server could not be reached, did not answer, or refused a command.
        TypeError: the client is of another class, `name` or `by` is not a `str`, or `fence` is not an `int`.
        ValueError: no `RedisLock` can have this name, or `fence` is out of range.
    """
    require_redis(client, redis.Redis, RedisCluster)
    name = require_tag(name)
    by = require_text("by", by)
    if fence is not None:
        fence = require_count("fence", fence)
    key = f"lock:{{{name}}}"
    keys = (key, f"{key}:fence", f"{key}:waiters", f"{key}:wake")
    try:
        token, last, ttl = client.get(key), client.get(keys[1]), client.pttl(key)
        offer = cast(Any, client).lindex(keys[3], "0")
    except FAILURES as error:
        raise LockUnavailable(f"The Redis server could not look up lock {name!r} ({error}). Try again.") from error
    if token is None or token == offer:
        return False
    granted, _, owner = _text(last or b"").partition(" ")
    if fence is not None and granted != str(fence):
        return False
    holder = owner or "an unknown holder"
    logger.warning("Lock %r is about to be taken from %r by force, by %r.", name, holder, by)
    # The release is for this token only, so a grant made in the meantime is not affected.
    call = ScriptCall("release", keys, (_text(token), "", max(ttl, 1000), token_hex(16)))
    released = bool(run_script(client, name, call, seconds=5.0))
    if released:
        logger.warning("Lock %r was taken from %r by force, by %r.", name, holder, by)
    return released


def _nodes(client: Client) -> list[Redis]:
    if isinstance(client, RedisCluster):
        return [client.get_redis_connection(node) for node in cast(Any, client).get_primaries()]
    return [client]


def _names(client: Redis, scan: int) -> Iterator[str]:
    """Yield the name of each lock once, although SCAN may return a key twice."""
    seen: set[str] = set()
    cursor = 0
    for _ in range(0, scan, KEYS_A_STEP):
        cursor, keys = cast(Any, client).scan(str(cursor), match="lock:{*}", count=str(KEYS_A_STEP))
        for name in (_text(key).removeprefix("lock:{").removesuffix("}") for key in keys):
            if name not in seen:
                seen.add(name)
                yield name
        if not cursor:
            return


def _look(client: Redis, names: list[str]) -> Iterator[HeldLock]:
    seconds, micros = client.time()
    now = seconds * 1_000_000 + micros
    pipeline: Any = client.pipeline(transaction=False)
    for name in names:
        key = f"lock:{{{name}}}"
        pipeline.get(key)
        pipeline.pttl(key)
        pipeline.get(f"{key}:fence")
        pipeline.zcount(f"{key}:waiters", f"({now // 1000}", "+inf")
        pipeline.lindex(f"{key}:wake", "0")
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for name, token, ttl, last, waiters, offer in zip(names, *(answers[part::5] for part in range(5)), strict=True):
        # Skip a lock that was freed since the scan, and a lock that is only offered to its waiters.
        # Skip a key that is not a lock, for which the commands return errors.
        if (
            token is None
            or token == offer
            or ttl == NO_SUCH_KEY
            or any(isinstance(answer, Exception) for answer in (token, ttl, last, waiters))
        ):
            continue
        fence, _, owner = ("" if last is None else _text(last)).partition(" ")
        yield HeldLock(
            name=name,
            owner=owner,
            fence=int(fence) if fence else None,
            age=max(0.0, (now - int(fence)) / 1_000_000) if fence else None,
            ttl=None if ttl < 0 else ttl / 1000,
            # Do not count a new holder as a waiter: until its first renewal, it is still in the list of waiters.
            waiters=waiters if owner or not waiters else waiters - 1,
        )


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")
