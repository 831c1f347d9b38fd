"""The Redis database of a sandbox. It is emptied before each schedule, but never if it holds data of others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.sandbox import hooks
from lab.sandbox.steps import scripts
from servers import ServerError

EXPIRE_EARLIER = """
-- ARGV: milliseconds. Every key that expires does so that much earlier.
local keys = redis.call('KEYS', '*')
for _, key in ipairs(keys) do
    local left = redis.call('PTTL', key)
    if left >= 0 then
        redis.call('PEXPIRE', key, left - ARGV[1])
    end
end
"""
NEXT_EXPIRY = """
-- Returns the milliseconds until the first key expires, or -1.
local next = -1
for _, key in ipairs(redis.call('KEYS', '*')) do
    local left = redis.call('PTTL', key)
    if left >= 0 and (next < 0 or left < next) then
        next = left
    end
end
return next
"""
MARK = "lab:sandbox"
"""The key that marks a Redis database as a sandbox's database. Its value names the sandbox's Postgres database."""
EMPTY = """
-- KEYS: the mark. ARGV: its value. Empties the database except for the mark, and returns 0. When there are keys but
-- not this mark, the keys are not the lab's: changes nothing, and returns their number.
local keys = redis.call('DBSIZE')
if keys > 0 and redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return keys
end
redis.call('FLUSHDB')
redis.call('SET', KEYS[1], ARGV[1])
return 0
"""
CONNECT_TIMEOUT = 5
"""Seconds within which a server must accept a connection."""
SOCKET_TIMEOUT = 10


class NotOurs(ServerError):
    """A sandbox would empty or replace a database that is not the lab's. The lab has changed nothing."""


class RedisDatabase:
    """One Redis database, and the scripts that let time pass in it.

    Args:
        url: address of the database.
    """

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(
            url, retry=Retry(NoBackoff(), 0), socket_timeout=SOCKET_TIMEOUT, socket_connect_timeout=CONNECT_TIMEOUT
        )
        self._pass_time = self.client.register_script(EXPIRE_EARLIER)
        self._next_expiry = self.client.register_script(NEXT_EXPIRY)
        self._empty = self.client.register_script(EMPTY)
        self._snapshot: dict[bytes, bytes] = {}

    def load_scripts(self) -> None:
        """Load the scripts into the server. Without this, the first run would send more commands than later runs."""
        pipeline = self.client.pipeline(transaction=False)
        for script in scripts():
            pipeline.script_load(script)
        pipeline.execute()

    def empty(self, mark: str) -> None:
        """Delete all keys except the mark. After a crash, the mark shows that the data is the lab's.

        Raises:
            NotOurs: the database holds keys that are not the lab's.
        """
        if keys := self._empty(keys=[MARK], args=[mark]):
            there = self.client.connection_pool.connection_kwargs
            server = there.get("path") or f"{there.get('host')}:{there.get('port')}"
            raise NotOurs(
                f"Redis database {there.get('db', 0)} of {server} holds {keys} keys that are not this lab's. The lab "
                "would empty it, so it did nothing. Lower LAB_SANDBOXES, or give the shop a Redis of its own "
                "(REDIS_URL), or empty that database yourself."
            )

    def unmark(self) -> None:
        """Delete the mark. After that, keys in the database count as data of others."""
        self.client.delete(MARK)

    def pass_time(self, seconds: float, others: Collection[Any] = ()) -> None:
        """Let time pass: make every key with a TTL expire earlier, here and on other servers."""
        for client in (self.client, *others):
            self._pass_time(args=[round(seconds * 1000)], client=client)

    def expiries(self, others: Collection[Any] = ()) -> list[float]:
        """Return the seconds until the first key expires, for each server that has an expiring key."""
        found = [self._next_expiry(client=client) for client in (self.client, *others)]
        return [left / 1000 for left in found if left >= 0]

    def fingerprint(self, names: Collection[str]) -> Sequence[Any]:
        """Return the values of these keys, and for each key whether it has no TTL."""
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.dump(name)
            pipeline.expiretime(name)
        found = pipeline.execute()
        return [value if place % 2 == 0 else value < 0 for place, value in enumerate(found)]

    def save_snapshot(self) -> None:
        """Keep a copy of the data in memory, for `restore_snapshot`."""
        self._snapshot = {key: self.client.dump(key) for key in self.client.keys("*")}

    def restore_snapshot(self) -> None:
        """Restore the data of `save_snapshot`, without TTLs, in one transaction: no client sees a part of the data."""
        pipeline = self.client.pipeline()
        pipeline.flushdb()
        for key, value in self._snapshot.items():
            pipeline.restore(key, 0, value)
        pipeline.execute()


def stepping_client(url: str) -> redis.Redis:
    """Return a client of Redis whose commands are steps of the actor that sends them."""
    kind = hooks.StoppingSocket if url.startswith("unix:") else hooks.StoppingConnection
    pool = redis.ConnectionPool.from_url(
        url, connection_class=kind, retry=Retry(NoBackoff(), 0), socket_timeout=SOCKET_TIMEOUT
    )
    return redis.Redis(connection_pool=pool)


def shown_keys(client: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the data in a Redis database, as text for people: of lists and sorted sets, the first ten entries."""
    found = []
    for name in sorted({*client.keys("*")} - {MARK.encode()}):
        kind = client.type(name)
        value: Any
        if kind == b"string":
            value = _text(client.get(name))
        elif kind == b"list":
            value = [_text(item) for item in client.lrange(name, 0, 9)]
        elif kind == b"hash":
            value = {_text(field): _text(item) for field, item in client.hgetall(name).items()}
        elif kind == b"zset":
            value = [_text(member) for member, _ in client.zrange(name, 0, 9, withscores=True)]
        else:
            value = _text(kind)
        left = client.pttl(name)
        found.append({"where": "redis", "name": _text(name), "value": value, "ttl": None if left < 0 else left / 1000})
    return tuple(found)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")
