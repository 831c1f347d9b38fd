"""Servers for the lock benchmark only, separate from the servers in the settings."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from locking.postgres import create_lock_tables
from servers.etcd import Etcd
from servers.folder import RunFolder
from servers.postgres import Postgres
from servers.valkey import Valkey
from servers.zookeeper import ZooKeeper

VALKEYS = 5
ON_ZOOKEEPER = ("zookeeper", "kazoo")
"""Locks that need ZooKeeper. No Python package provides this server."""


@dataclass(frozen=True)
class Addresses:
    """Addresses of the servers, for every process of the benchmark.

    Args:
        valkeys: URLs; locks on a single server use the first URL.
        postgres: connection URL.
        zookeeper: host and port as one string.
        etcd: host and port.
        folder: folder for lock files.
    """

    valkeys: Sequence[str]
    postgres: str
    zookeeper: str
    etcd: tuple[str, int]
    folder: Path


@contextmanager
def running_servers(names: Collection[str]) -> Iterator[Addresses]:
    """Run Valkey, Postgres and etcd, and ZooKeeper if one of the locks `names` needs it.

    The benchmark shares no server with a shop.

    Raises:
        ServerError: a server does not start, or ZooKeeper is needed and not installed.
    """
    outer = Path(tempfile.mkdtemp(prefix="lu-"))
    outer.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, outer, ignore_errors=True)
        folders = [RunFolder(outer / f"run{number}") for number in range(VALKEYS)]
        for folder in folders:
            folder.create()
        valkeys = [Valkey(folder.valkey) for folder in folders]
        home = folders[0].path
        postgres, etcd, zookeeper = Postgres(folders[0].postgres), Etcd(home / "etcd"), ZooKeeper(home / "zookeeper")
        servers: list[Any] = [*valkeys, postgres, etcd]
        if any(name in ON_ZOOKEEPER for name in names):
            servers.append(zookeeper)
        for server in servers:
            server.start()
            stack.callback(server.stop)
        create_lock_tables(postgres.url)
        yield Addresses(
            [valkey.url for valkey in valkeys], postgres.url, zookeeper.hosts, (etcd.host, etcd.port), outer
        )
