"""Who holds which `RedisLock` on a server right now, for people to look at, and to end by force.

What it says may be over when it is read. Locks of other kinds are not seen, Redlock among them: one of its nodes does
not know whether a majority has granted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from secrets import token_hex
from typing import TYPE_CHECKING, Any, cast

from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from locking.errors import LockUnavailable
from locking.redis.connection import Call, request

if TYPE_CHECKING:
    from redis import Redis

    from locking.redis.connection import Client

logger = logging.getLogger(__name__)

KEYS_A_STEP = 1000
FAILURES = (RedisError, RedisClusterException)
"""No connection, no answer, an error instead of one, and no node of a cluster that could be asked."""

GONE = -2
"""What PTTL says of a key that does not exist; -1 is for one that does not expire."""


@dataclass(frozen=True)
class HeldLock:
    """One lock that somebody holds.

    Attributes:
        name: the name of the lock.
        owner: host, process and thread that asked for it: a label for people, not an identity. Empty for a waiter
            that it was handed to, until the lease is renewed for the first time.
        fence: the fencing token of the grant; None when its key is gone.
        age: seconds since the grant, by the server's clock; None without a fence.
        ttl: seconds until the grant expires unless it is renewed; None for a key that does not expire.
        waiters: how many wait for it.
    """

    name: str
    owner: str
    fence: int | None
    age: float | None
    ttl: float | None
    waiters: int


def held(client: Client, limit: int = 1000, *, scan: int = 1_000_000) -> list[HeldLock]:
    """Return the `RedisLock`s that are held on this server, by name: no Redlock, and none on other kinds of servers.

    It looks through the keys of the server step by step (SCAN), which holds up nobody, and stops at the bounds. A lock
    that comes or goes meanwhile may be missing.

    Args:
        client: the client of the server, or of a cluster.
        limit: how many locks to return at most.
        scan: how many keys of the server to look at, about, at most.

    Raises:
        LockUnavailable: the server cannot be reached, or refuses.
    """
    try:
        locks: list[HeldLock] = []
        for node in _nodes(client):
            names = list(islice(_names(node, scan), limit - len(locks)))
            for at in range(0, len(names), KEYS_A_STEP):
                locks.extend(_look(node, names[at : at + KEYS_A_STEP]))
    except FAILURES as error:
        raise LockUnavailable(f"The Redis server cannot be asked for its locks ({error}). Try again.") from error
    return sorted(locks, key=lambda lock: lock.name)


def force_release(client: Client, name: str, *, by: str) -> bool:
    """Take a lock from whoever holds it, and hand it to the next in the queue.

    Who does it is logged before it is done, for the answer may not come; and again when it was.

    The holder is told when its lease is renewed next, or by `check()` when its time is over; until then it goes on. So
    only where its writes are guarded by the fence, or when it is known to be dead, is this safe.

    Args:
        client: the client of the server, or of a cluster.
        name: the name of the lock.
        by: who does it, and why: for the log.

    Returns:
        Whether somebody held it.

    Raises:
        LockUnavailable: the server cannot be reached, did not answer, or refuses.
    """
    key = f"lock:{{{name}}}"
    keys = (key, f"{key}:fence", f"{key}:waiters", f"{key}:wake")
    try:
        token, last, ttl = client.get(key), client.get(keys[1]), client.pttl(key)
    except FAILURES as error:
        raise LockUnavailable(f"The Redis server cannot be asked for lock {name!r} ({error}). Try again.") from error
    if token is None:
        return False
    holder = _text(last or b"").partition(" ")[2] or "somebody without a name"
    logger.warning("Lock %r is about to be taken from %s by force, by %s.", name, holder, by)
    # By its token: a grant made in the meantime is another one, and stays.
    released = bool(
        request(client, name, Call("release", keys, (_text(token), "", max(ttl, 1000), token_hex(16))), seconds=5.0)
    )
    if released:
        logger.warning("Lock %r was taken from %s by force, by %s.", name, holder, by)
    return released


def _nodes(client: Client) -> list[Redis]:
    if isinstance(client, RedisCluster):
        return [client.get_redis_connection(node) for node in cast(Any, client).get_primaries()]
    return [client]


def _names(client: Redis, scan: int) -> Iterator[str]:
    """Yield each name once: SCAN may return a key twice."""
    seen: set[str] = set()
    cursor = 0
    for _ in range(0, scan, KEYS_A_STEP):
        cursor, keys = client.scan(cursor, match="lock:{*}", count=KEYS_A_STEP)
        for name in (_text(key).removeprefix("lock:{").removesuffix("}") for key in keys):
            if name not in seen:
                seen.add(name)
                yield name
        if not cursor:
            return


def _look(client: Redis, names: list[str]) -> Iterator[HeldLock]:
    seconds, micros = client.time()
    now = seconds * 1_000_000 + micros
    pipeline = client.pipeline(transaction=False)
    for name in names:
        key = f"lock:{{{name}}}"
        pipeline.get(key)
        pipeline.pttl(key)
        pipeline.get(f"{key}:fence")
        pipeline.zcount(f"{key}:waiters", f"({now // 1000}", "+inf")
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for name, token, ttl, last, waiters in zip(names, *(answers[part::4] for part in range(4)), strict=True):
        # No token, or no key any more when its time was asked for: freed since it was found. An error: not a lock.
        if token is None or ttl == GONE or any(isinstance(answer, Exception) for answer in (token, ttl, last, waiters)):
            continue
        fence, _, owner = ("" if last is None else _text(last)).partition(" ")
        yield HeldLock(
            name=name,
            owner=owner,
            fence=int(fence) if fence else None,
            age=max(0.0, (now - int(fence)) / 1_000_000) if fence else None,
            ttl=None if ttl < 0 else ttl / 1000,
            # Who was handed the lock is on the list of waiters until it is known by name.
            waiters=waiters if owner or not waiters else waiters - 1,
        )


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")
