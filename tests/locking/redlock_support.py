"""Helpers of the tests of Redlock: a recipe, and ways to make a node dead, hanging or refusing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from locking import Lease
from locking.redis.nodes import node_of
from locking.redis.redlock import Redlock
from tests.locking.support import Proxies, RedisCell, client_of, paused, socket_of

if TYPE_CHECKING:
    from servers.valkey import Valkey  # Used for type hints only: many short-lived processes import this file.


class CountedRedlock(Redlock):
    """Counts as waiters the threads that have paused at least once and still wait."""

    waiting: ClassVar[dict[str, set[int]]] = {}

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:
        try:
            return super().acquire(blocking, timeout)
        finally:
            self.waiting.get(self.name, set()).discard(threading.get_ident())

    def _pause(self, seconds: float) -> None:
        self.waiting.setdefault(self.name, set()).add(threading.get_ident())
        super()._pause(seconds)


@dataclass(frozen=True)
class RedlockRecipe:
    """Makes `Redlock`s on the servers at `urls`, with client objects number `own`."""

    RELEASE: ClassVar[bytes] = b"EVALSHA"

    urls: tuple[str, ...]
    own: int = 0

    @property
    def clients(self) -> list[redis.Redis]:
        return [client_of(url, os.getpid(), self.own) for url in self.urls]

    def __call__(self, name: str, **options: Any) -> CountedRedlock:
        return CountedRedlock(self.clients, name, **{"retry_delay": 0.1, **options})

    def cell(self, name: str) -> RedisCell:
        return RedisCell(self.clients[0], f"cell:{name}")

    def through(self, proxy: Proxies) -> Self:
        return replace(self, urls=tuple("redis://{}:{}".format(*proxy(socket_of(url))) for url in self.urls))

    def close(self) -> None:
        for client in self.clients:
            node = node_of(client.connection_pool)
            while (connection := node.take_idle()) is not None:
                connection.disconnect()
            client.close()


def admin(node: Valkey) -> redis.Redis:
    """Return a client of the node, without retries."""
    return redis.Redis.from_url(node.url, retry=Retry(NoBackoff(), 0))


@contextmanager
def dead(node: Valkey) -> Iterator[None]:
    """Stop the server during the `with` block, and start it without data afterwards."""
    node.child.kill()
    node.socket.unlink(missing_ok=True)
    try:
        yield
    finally:
        node.start()


@contextmanager
def hanging(node: Valkey) -> Iterator[None]:
    """During the `with` block, the server accepts requests and does not respond."""
    with paused(node.child.pid):
        yield


@contextmanager
def refusing(node: Valkey, how: str) -> Iterator[None]:
    """During the `with` block, the server answers every write, or every script, with an error."""
    start, end = REFUSALS[how]
    with admin(node) as client:
        client.execute_command(*start)
        try:
            yield
        finally:
            client.execute_command(*end)


REFUSALS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "READONLY": (("REPLICAOF", "127.0.0.1", 1), ("REPLICAOF", "NO", "ONE")),
    "NOREPLICAS": (("CONFIG", "SET", "min-replicas-to-write", 1), ("CONFIG", "SET", "min-replicas-to-write", 0)),
    "NOPERM": (("ACL", "SETUSER", "default", "-@scripting"), ("ACL", "SETUSER", "default", "+@scripting")),
}
