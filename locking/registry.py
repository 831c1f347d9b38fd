"""Who holds which lock on a server right now, for people to look at. What it says may be over when it is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from locking.errors import LockUnavailable
from locking.wire import NO_ANSWER

if TYPE_CHECKING:
    from redis import Redis

KEYS_A_STEP = 1000
GONE = -2
"""What PTTL says of a key that does not exist; -1 is for one that does not expire."""


@dataclass(frozen=True)
class HeldLock:
    """One lock that somebody holds.

    Attributes:
        name: the name of the lock.
        owner: host, process and thread that asked for it: a label for people, not an identity.
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


def held(client: Redis, limit: int = 1000, *, scan: int = 1_000_000) -> list[HeldLock]:
    """Return the Redis locks that are held, by name.

    It looks through the keys of the server step by step (SCAN), which holds up nobody, and stops at the bounds. A lock
    that comes or goes meanwhile may be missing.

    Args:
        client: the client of the server.
        limit: how many locks to return at most.
        scan: how many keys of the server to look at, about, at most.

    Raises:
        LockUnavailable: the server cannot be reached.
    """
    try:
        names = list(islice(_names(client, scan), limit))
        locks = [
            lock for at in range(0, len(names), KEYS_A_STEP) for lock in _look(client, names[at : at + KEYS_A_STEP])
        ]
    except NO_ANSWER as error:
        raise LockUnavailable(f"The Redis server cannot be asked for its locks ({error}). Try again.") from error
    return sorted(locks, key=lambda lock: lock.name)


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
        fence = None if last is None else int(last)
        yield HeldLock(
            name=name,
            owner=_text(token).partition(":")[2],
            fence=fence,
            age=None if fence is None else max(0.0, (now - fence) / 1_000_000),
            ttl=None if ttl < 0 else ttl / 1000,
            waiters=waiters,
        )


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")
