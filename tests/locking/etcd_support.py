"""What the tests of the etcd lock share: locks that other processes can make, and what etcd says of them."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psutil
import requests
from etcd3gw import Etcd3Client

from locking import Lock
from locking.etcd import EtcdLock
from tests.locking.support import FileCell

if TYPE_CHECKING:
    from servers.etcd import Etcd


@contextmanager
def running_etcd(*extra: str) -> Iterator[Etcd]:
    # Not at the top: over a hundred short-lived processes import this file.
    from servers.etcd import Etcd
    from servers.folder import RunFolder

    outer = Path(tempfile.mkdtemp(prefix="lu-"))
    outer.chmod(0o755)
    folder = RunFolder(outer / "run")
    folder.create()
    etcd = Etcd(folder.path / "etcd", extra=extra)
    etcd.start()
    try:
        yield etcd
    finally:
        etcd.stop()
        shutil.rmtree(outer, ignore_errors=True)


@functools.cache
def client_of(host: str, port: int, pid: int) -> Etcd3Client:
    return Etcd3Client(host, port)


@dataclass(frozen=True)
class EtcdRecipe:
    """Makes `EtcdLock`s on one server."""

    host: str
    port: int
    folder: Path
    """Where the cells are."""

    @property
    def client(self) -> Etcd3Client:
        return client_of(self.host, self.port, os.getpid())

    def __call__(self, name: str, **options: Any) -> EtcdLock:
        return EtcdLock(self.client, name, **options)

    def cell(self, name: str) -> FileCell:
        return FileCell(self.folder / quote(name))


class Observer:
    """Asks etcd what there is, over connections of its own."""

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
        """Revoke every etcd lease, and delete every key with that."""
        for id_ in self.ids():
            requests.post(f"{self.url}/v3/lease/revoke", data=json.dumps({"ID": str(id_)}), timeout=10.0)

    def keys(self, lock: Lock) -> int:
        return int(self.ask("kv/range", **lock._range(), count_only=True).get("count", 0))  # type: ignore[attr-defined]

    def compact(self) -> None:
        """Make it forget all that was before now."""
        self.ask("kv/compaction", revision=self.ask("kv/range", key="AA==")["header"]["revision"])

    def watchers(self) -> int:
        return self.metric(r"etcd_debugging_mvcc_watcher_total (\d+)")

    def commands(self) -> int:
        """How many messages there have been to the services that locks use."""
        return self.metric(r'grpc_server_msg_received_total{.*grpc_service="etcdserverpb\.(?:KV|Lease|Watch)".*} (\d+)')

    def metric(self, pattern: str) -> int:
        return sum(map(int, re.findall(pattern, requests.get(f"{self.url}/metrics", timeout=10.0).text)))

    def connections(self) -> int:
        """How many connections of this process to the server are open."""
        found = psutil.Process().net_connections("tcp")
        return sum(bool(one.raddr) and one.raddr.port == self.port and one.status == "ESTABLISHED" for one in found)

    def asleep(self, lock: Lock) -> int:
        """Those that are in the line and listen, too."""
        return min(max(self.keys(lock) - 1, 0), self.watchers())


class EtcdTraces:
    """What an etcd lock leaves on its server and here."""

    observer: Observer

    def waiters(self, lock: Lock) -> int:
        return self.observer.asleep(lock)

    def traces(self, lock: Lock) -> dict[str, int]:
        seen = self.observer
        return {
            "keys": seen.keys(lock),
            "leases": seen.leases(),
            "watchers": seen.watchers(),
            "connections": seen.connections(),
        }

    def forget(self, lock: Lock) -> None:
        """A lock that nobody holds leaves nothing but history; that goes when it is compacted."""
        self.observer.compact()

    def asked(self, lock: Lock) -> int:
        return self.observer.commands()
