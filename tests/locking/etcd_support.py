"""Helpers of the tests of EtcdLock: picklable recipes (factories of locks), and an observer of the server."""

from __future__ import annotations

import functools
import json
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import quote

import psutil
import requests
from etcd3gw import Etcd3Client

from locking import Lock
from locking.etcd import EtcdLock
from locking.etcd.gateway import EtcdGateway, session_of
from locking.etcd.watch import DeletionWatch
from tests.locking.support import FileCell, Patch, Proxies, run_folder, separate_clients, started

if TYPE_CHECKING:
    from servers.etcd import Etcd


@contextmanager
def running_etcd(*extra: str) -> Iterator[Etcd]:
    # Import late, because over a hundred short-lived processes import this file.
    from servers.etcd import Etcd

    with run_folder() as folder, started(Etcd(folder.path / "etcd", extra=extra)) as etcd:
        yield etcd


@functools.cache
def client_of(host: str, port: int, pid: int, own: int = 0) -> Etcd3Client:
    return Etcd3Client(host, port)


@dataclass(frozen=True)
class EtcdRecipe:
    """Makes `EtcdLock`s on one server, with client object number `own` of this process."""

    RELEASE: ClassVar[bytes] = b"/lease/revoke"

    host: str
    port: int
    folder: Path
    """Folder for the files of `FileCell`."""
    own: int = 0

    @property
    def client(self) -> Etcd3Client:
        return client_of(self.host, self.port, os.getpid(), self.own)

    def __call__(self, name: str, **options: Any) -> EtcdLock:
        return EtcdLock(self.client, name, **options)

    def cell(self, name: str) -> FileCell:
        return FileCell(self.folder / quote(name))

    def through(self, proxy: Proxies) -> Self:
        host, port = proxy((self.host, self.port))
        return replace(self, host=host, port=port)

    def close(self) -> None:
        session_of(self.client).close()


class Observer:
    """Inspects etcd through its own connections."""

    def __init__(self, etcd: Etcd) -> None:
        self.url = etcd.url
        self.port = etcd.port

    def ask(self, path: str, **question: Any) -> Any:
        answer = requests.post(f"{self.url}/v3/{path}", data=json.dumps(question), timeout=10.0)
        assert answer.ok, answer.text
        return answer.json()

    def leases(self) -> int:
        return len(self.ids())

    def ids(self) -> set[int]:
        return {int(lease["ID"]) for lease in self.ask("lease/leases").get("leases", ())}

    def clear(self) -> None:
        """Revoke every etcd lease, which deletes every key."""
        for id_ in self.ids():
            requests.post(f"{self.url}/v3/lease/revoke", data=json.dumps({"ID": str(id_)}), timeout=10.0)

    def keys(self, lock: Lock) -> int:
        return int(self.ask("kv/range", **lock._range(), count_only=True).get("count", 0))  # type: ignore[attr-defined]

    def revision(self) -> int:
        return int(self.ask("kv/range", key="AA==")["header"]["revision"])

    def compact(self) -> None:
        """Compact the history: drop all revisions before the current one."""
        self.ask("kv/compaction", revision=str(self.revision()))

    def watchers(self) -> int:
        return self.metric(r"etcd_debugging_mvcc_watcher_total (\d+)")

    def commands(self) -> int:
        """Return how many messages the etcd services that the locks use have received."""
        return self.metric(r'grpc_server_msg_received_total{.*grpc_service="etcdserverpb\.(?:KV|Lease|Watch)".*} (\d+)')

    def metric(self, pattern: str) -> int:
        return sum(map(int, re.findall(pattern, requests.get(f"{self.url}/metrics", timeout=10.0).text)))

    def connections(self) -> int:
        """Return the number of connections of this process to the server."""
        found = psutil.Process().net_connections("tcp")
        return sum(bool(one.raddr) and one.raddr.port == self.port and one.status == "ESTABLISHED" for one in found)

    def asleep(self, lock: Lock) -> int:
        """Return how many queued clients watch a key."""
        return min(max(self.keys(lock) - 1, 0), self.watchers())


class EtcdTraces:
    """Counts what an etcd lock leaves behind, and wakes or delays its waiters."""

    observer: Observer

    def waiters(self, lock: Lock) -> int:
        return self.observer.asleep(lock)

    def in_line(self, lock: Lock) -> int:
        return self.observer.keys(lock) - 1

    def traces(self, lock: Lock) -> dict[str, int]:
        seen = self.observer
        return {
            "keys": seen.keys(lock),
            "leases": seen.leases(),
            "watchers": seen.watchers(),
            "connections": seen.connections(),
        }

    def written(self, lock: Lock) -> int:
        return self.observer.revision()

    def forget(self, lock: Lock) -> None:
        """Drop the history. Fences still grow, because a fence is the revision of the whole store."""
        assert self.observer.keys(lock) == 0
        self.observer.compact()

    clients = staticmethod(separate_clients)

    @contextmanager
    def woken_in_vain(self, lock: EtcdLock) -> Iterator[Callable[[], object]]:
        """Put queue entries before the waiters. Yield a function that deletes one entry, which wakes a waiter."""
        seen = self.observer
        with lock.hold():
            keys = [b64encode(f"{lock._prefix}x{place}".encode()).decode() for place in range(100)]
            for key in keys:
                seen.ask("kv/put", key=key)
            yield lambda: keys and seen.ask("kv/deleterange", key=keys.pop())
            for key in keys:
                seen.ask("kv/deleterange", key=key)

    def before_sleep(self, monkeypatch: Patch, body: Callable[[], object]) -> None:
        watch = EtcdGateway.deletions

        @contextmanager
        def deletions(self: EtcdGateway, key: str, revision: int, seconds: float) -> Iterator[DeletionWatch]:
            body()
            with watch(self, key, revision, seconds) as heard:
                yield heard

        monkeypatch.setattr(EtcdGateway, "deletions", deletions)

    def asked(self, lock: Lock) -> int:
        return self.observer.commands()
