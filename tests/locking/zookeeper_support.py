"""What the tests of the ZooKeeper lock share: servers, locks that other processes can make, and a line to cut."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient

from locking import Lock
from locking.zookeeper import ZooKeeperLock
from tests.locking.support import FileCell

if TYPE_CHECKING:
    from servers.zookeeper import ZooKeeper

SHORTEST = 1.0
"""Seconds: the shortest session that kazoo, whose pings come up to 0.4 s late, keeps alive for certain."""

LONGEST = 60.0


@contextmanager
def running_zookeeper(*java: str) -> Iterator[ZooKeeper]:
    # Not at the top: over a hundred short-lived processes import this file.
    from servers.folder import RunFolder
    from servers.zookeeper import ZooKeeper, available

    if not available() and not os.environ.get("CI"):
        pytest.skip("ZooKeeper is not installed; on Debian: apt-get install zookeeper default-jre-headless")
    outer = Path(tempfile.mkdtemp(prefix="lu-"))
    outer.chmod(0o755)
    folder = RunFolder(outer / "run")
    folder.create()
    zookeeper = ZooKeeper(folder.path / "zookeeper")
    zookeeper.child.args[1:1] = java
    zookeeper.start()
    try:
        yield zookeeper
    finally:
        zookeeper.stop()
        shutil.rmtree(outer, ignore_errors=True)


class CountingClient(KazooClient):
    """Counts what is asked, but for the renewals of leases."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.asked: Counter[str] = Counter()
        super().__init__(*args, **options)

    def _call(self, request: Any, async_object: Any) -> Any:
        if threading.current_thread().name != "lock-renewal":
            self.asked[type(request).__name__] += 1
        return super()._call(request, async_object)


class Clients:
    """The clients of this process, one for each server and session timeout."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._made: dict[tuple[str, float, int], CountingClient] = {}

    def __call__(self, hosts: str, timeout: float) -> CountingClient:
        key = (hosts, timeout, os.getpid())
        with self._mutex:
            if key not in self._made:
                self._made[key] = CountingClient(hosts, timeout=timeout)
                self._made[key].start()
            return self._made[key]

    def close(self) -> None:
        for client in self._made.values():
            client.stop()
            client.close()
        self._made.clear()


clients = Clients()


@dataclass(frozen=True)
class ZooKeeperRecipe:
    """Makes `ZooKeeperLock`s on one server. Their TTL is the session timeout of a client that all of that TTL share."""

    hosts: str
    folder: Path
    """Where the cells are."""

    def client(self, ttl: float = LONGEST) -> CountingClient:
        return clients(self.hosts, max(ttl, SHORTEST))

    def __call__(self, name: str, *, ttl: float = LONGEST, **options: Any) -> Lock:
        return ZooKeeperLock(self.client(ttl), name, **options)

    def cell(self, name: str) -> FileCell:
        return FileCell(self.folder / name)


def parts(lock: Any) -> tuple[CountingClient, str]:
    """The client of a lock, ours or kazoo's, and the path of its line."""
    return lock._client, lock._line


class ZooKeeperTraces:
    """What a ZooKeeper lock, ours or kazoo's, leaves on its server and here."""

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
        """Those that stand in line behind somebody, and watch him."""
        client, line = parts(lock)
        *before, _ = self.line(lock) or [""]
        return sum(f"{line}/{node}" in client._data_watchers for node in before)

    def forget(self, lock: Lock) -> None:
        client, line = parts(lock)
        client.delete(line)

    def asked(self, lock: Lock) -> int:
        return parts(lock)[0].asked.total()


class Proxy:
    """Stands between clients and a server, and can lose an answer or hold everything up."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.open = True
        """Whether clients can connect."""
        self.lose: int | None = None
        """Cut the connection instead of passing on the answer to the next request of this kind."""
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut every connection."""
        for end in self._sockets[1:]:
            self._end(end)
        del self._sockets[1:]

    def close(self) -> None:
        self.open = False
        self._end(self._listener)
        self.cut()

    @staticmethod
    def _end(end: socket.socket) -> None:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self.open:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += (client, server)
                lost: set[int] = set()
                for source, target, watch in ((client, server, self._request), (server, client, self._answer)):
                    threading.Thread(target=self._pass, args=(source, target, watch, lost), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, watch: Any, lost: set[int]) -> None:
        with suppress(OSError, struct.error), source.makefile("rb") as stream:
            stream.peek()
            while True:
                size = stream.read(4)
                frame = stream.read(*struct.unpack("!i", size))
                if not watch(frame, lost):
                    self.cuts += 1
                    break
                target.sendall(size + frame)
        self._end(source)
        self._end(target)

    def _request(self, frame: bytes, lost: set[int]) -> bool:
        number, kind = struct.unpack_from("!ii", frame)
        if self.lose is not None and kind == self.lose and number > 0:
            self.lose = None
            lost.add(number)
        return True

    def _answer(self, frame: bytes, lost: set[int]) -> bool:
        return struct.unpack_from("!i", frame)[0] not in lost
