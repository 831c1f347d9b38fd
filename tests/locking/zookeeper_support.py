"""Helpers of the tests of ZooKeeperLock and of kazoo's lock: servers and picklable recipes."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import Delete, int_struct

from locking import Lock
from locking._once import Once
from locking.zookeeper import ZooKeeperLock
from tests.locking.support import FileCell, Patch, Proxies, run_folder, separate_clients, stack_of, started
from tests.waiting import wait_for

if TYPE_CHECKING:
    from servers.zookeeper import ZooKeeper

SHORTEST = 2.0
"""Seconds: the shortest session timeout that works on a busy machine, as kazoo's pings are up to 0.4 s late."""

LONGEST = 60.0


def require_zookeeper() -> None:
    """Skip the test if ZooKeeper is not installed. In CI the test fails instead."""
    # Import late, because over a hundred short-lived processes import this file.
    from servers.zookeeper import INSTALL, available

    if not available() and not os.environ.get("CI"):
        pytest.skip(f"ZooKeeper is not installed; on Debian: {INSTALL}")


@contextmanager
def running_zookeeper(*java: str) -> Iterator[ZooKeeper]:
    from servers.zookeeper import ZooKeeper

    require_zookeeper()
    with run_folder() as folder:
        zookeeper = ZooKeeper(folder.path / "zookeeper")
        zookeeper.child.args[1:1] = java
        with started(zookeeper):
            yield zookeeper


class CountingClient(KazooClient):
    """Counts requests, except those that renew leases."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.asked: Counter[str] = Counter()
        super().__init__(*args, **options)

    def _call(self, request: Any, async_object: Any) -> Any:
        if threading.current_thread().name != "lock-renewal":
            self.asked[type(request).__name__] += 1
        return super()._call(request, async_object)


class Clients:
    """The clients of this process: one for each server, session timeout and number."""

    def __init__(self) -> None:
        # gevent may patch `threading` after the import of this module.
        self._mutex = Once(lambda: threading.Lock())
        self._made: dict[tuple[str, float, int, int], CountingClient] = {}

    def __call__(self, hosts: str, timeout: float, own: int = 0) -> CountingClient:
        key = (hosts, timeout, own, os.getpid())
        with self._mutex():
            if key not in self._made:
                self._made[key] = CountingClient(hosts, timeout=timeout)
                self._made[key].start()
            return self._made[key]

    def reconnect(self) -> None:
        """Wait until each client has a working connection. A new election makes all servers cut their connections."""
        for client in list(self._made.values()):
            wait_for(lambda client=client: self._answered(client))  # type: ignore[misc]

    @staticmethod
    def _answered(client: CountingClient) -> bool:
        try:
            return bool(client.exists("/"))
        except ConnectionLoss:
            return False

    def close(self, hosts: str | None = None, own: int | None = None) -> None:
        """Close all clients, or only those with this address of servers and this `own` number."""
        for key in [key for key in self._made if hosts in (None, key[0]) and own in (None, key[2])]:
            client = self._made.pop(key)
            client.stop()
            client.close()


clients = Clients()


def request_of(kind: type) -> bytes:
    """Return the bytes that mark requests of this type."""
    return bytes(int_struct.pack(kind.type)) + b"\0\0"  # type: ignore[attr-defined]


@dataclass(frozen=True)
class ZooKeeperRecipe:
    """Makes locks of one kind on the servers at `hosts`.

    Locks with the same TTL share a client with that session timeout.
    """

    RELEASE: ClassVar[bytes] = request_of(Delete)

    hosts: str
    folder: Path
    """Folder for the files of `FileCell`."""
    own: int = 0
    kind: type[Lock] = ZooKeeperLock

    def client(self, ttl: float = LONGEST) -> CountingClient:
        return clients(self.hosts, max(ttl, SHORTEST), self.own)

    def __call__(self, name: str, *, ttl: float = LONGEST, **options: Any) -> Lock:
        return self.kind(self.client(ttl), name, **options)  # type: ignore[call-arg]

    def cell(self, name: str) -> FileCell:
        return FileCell(self.folder / name)

    def through(self, proxy: Proxies) -> Self:
        host, _, port = self.hosts.partition(":")
        return replace(self, hosts="{}:{}".format(*proxy((host, int(port)))))

    def close(self) -> None:
        clients.close(self.hosts, self.own)


def parts(lock: Any) -> tuple[CountingClient, str]:
    """Return the client of a lock (ZooKeeperLock or kazoo's) and the path of its queue."""
    return lock._client, lock._queue_path


class ZooKeeperTraces:
    """Counts what a lock (ZooKeeperLock or kazoo's) leaves behind, and wakes or delays its waiters."""

    zookeeper: ZooKeeper

    def restart(self) -> None:
        self.zookeeper.kill()
        self.zookeeper.start()

    @staticmethod
    def line(lock: Lock) -> list[str]:
        client, line = parts(lock)
        return sorted(client.get_children(line) if client.exists(line) else [], key=lambda node: node[-10:])

    def traces(self, lock: Lock) -> dict[str, int]:
        client, _ = parts(lock)
        return {
            "in line": len(self.line(lock)),
            "watchers": sum(map(len, client._data_watchers.values())),
            "watchers of children": sum(map(len, client._child_watchers.values())),
            "listeners": len(client.state_listeners),
            "requests": len(client._pending) + len(client._queue),
        }

    def waiters(self, lock: Lock) -> int:
        """Count the queued clients that watch the node before their own."""
        client, line = parts(lock)
        *before, _ = self.line(lock) or [""]
        return sum(f"{line}/{node}" in client._data_watchers for node in before)

    def is_asleep(self, thread: int) -> bool:
        """Return whether no request is running, because kazoo reports an interrupted one as a closed connection."""
        stack = stack_of(thread)
        return stack[0] == "wait" and "get" not in stack

    def in_line(self, lock: Lock) -> int:
        return len(self.line(lock)) - 1

    def written(self, lock: Lock) -> int:
        """Return the number of changes to the queue."""
        client, line = parts(lock)
        seen = client.exists(line)
        return int(seen.version + seen.cversion)

    def forget(self, lock: Lock) -> None:
        client, line = parts(lock)
        client.delete(line)

    def asked(self, lock: Lock) -> int:
        return parts(lock)[0].asked.total()

    clients = staticmethod(separate_clients)

    @contextmanager
    def woken_in_vain(self, lock: Lock) -> Iterator[Callable[[], object]]:
        """Yield a function that changes the holder's node, which wakes the waiter that watches it."""
        client, path = parts(lock)
        with lock.hold():
            (holder,) = self.line(lock)
            yield lambda: client.set(f"{path}/{holder}", b"")

    def before_sleep(self, monkeypatch: Patch, body: Callable[[], object]) -> None:
        """Run `body` before a client sets its watch on the node before its own."""
        get = KazooClient.get_async

        def get_async(self: KazooClient, path: str, watch: Any = None) -> Any:
            if watch is not None:
                body()
            return get(self, path, watch)

        monkeypatch.setattr(KazooClient, "get_async", get_async)
