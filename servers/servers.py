"""Run Postgres, Valkey, and clusters of etcd and ZooKeeper together."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from servers import etcd, postgres, valkey, zookeeper
from servers.cluster import Cluster
from servers.errors import ServerError
from servers.folder import RunFolder
from servers.postgres import Postgres
from servers.status import Status
from servers.valkey import Valkey

STATUS: dict[str, Callable[[RunFolder], Status]] = {
    "postgres": lambda folder: postgres.status(folder.postgres),
    "valkey": lambda folder: valkey.status(folder.valkey_url),
    "etcd": lambda folder: etcd.cluster(folder.path).status(),
    "zookeeper": lambda folder: zookeeper.cluster(folder.path).status(),
}
SHOPS = ("postgres", "valkey")
"""The servers that the shop needs."""
CLUSTERS: dict[str, Callable[[RunFolder], Cluster[Any]]] = {
    "etcd": lambda folder: etcd.cluster(folder.path),
    "zookeeper": lambda folder: zookeeper.cluster(folder.path),
}
"""The clusters that some locks need."""
START_TIMEOUT = 60.0  # seconds to wait for another process to start its servers


class Servers:
    """The servers of one run folder. As a context manager, it runs them inside the block.

    If another live process runs the servers already, they are used and not stopped: `owned` is False, and `postgres`
    and `valkey` are None. Servers that this object starts also stop when this process is killed.

    Args:
        folder: the run folder; None for the default run folder of this checkout.
        runs: the servers to run: any of "postgres", "valkey", "etcd" and "zookeeper".
    """

    def __init__(self, folder: RunFolder | None = None, *, runs: Sequence[str] = SHOPS) -> None:
        self.folder = folder or RunFolder.default()
        self.runs = tuple(runs)
        self.owned = False
        self.postgres: Postgres | None = None
        self.valkey: Valkey | None = None
        self.clusters: list[Cluster[Any]] = []
        self._running = ExitStack()

    def start(self) -> None:
        """Start the servers and return once all are ready. Call it from the main thread.

        Raises:
            ServerError: the folder cannot be used, or a server does not start. If another process owns the folder: it
                does not run all of these servers, or they do not answer within `START_TIMEOUT` seconds.
        """
        deadline = time.monotonic() + START_TIMEOUT
        self.folder.create()
        while not self.folder.ownership.take(self.runs):
            if self._others_answer(give_up=time.monotonic() > deadline):
                return
            time.sleep(0.05)
            self.folder.create()
        with ExitStack() as running:
            running.callback(self.folder.ownership.release)
            if "valkey" in self.runs:
                self.valkey = Valkey(self.folder.valkey)
                running.callback(self.valkey.stop)
                self.valkey.launch()
            for cluster in [make(self.folder) for name, make in CLUSTERS.items() if name in self.runs]:
                running.callback(cluster.stop)
                self.clusters.append(cluster)
                cluster.launch()
            if "postgres" in self.runs:
                self.postgres = Postgres(self.folder.postgres)
                running.callback(self.postgres.stop)
                self.postgres.start()
            if self.valkey:
                self.valkey.wait()
            for cluster in self.clusters:
                cluster.wait()
            self._running = running.pop_all()
            self.owned = True

    def stop(self) -> None:
        """Stop the servers that we started, and return when they are gone."""
        self._running.close()
        self.owned = False
        self.postgres = self.valkey = None
        self.clusters = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _others_answer(self, *, give_up: bool) -> bool:
        if all(STATUS[name](self.folder).up for name in self.runs):
            return True
        owner = self.folder.ownership.owner()
        if owner and (give_up or (owner.runs and not set(self.runs) <= set(owner.runs))):
            raise ServerError(
                f"Process {owner.pid} owns {self.folder.path} and runs {' and '.join(owner.runs) or 'nothing'} there, "
                f"but {' and '.join(self.runs)} should answer. If it has just started them, they may still recover "
                "their data: their logs in that folder tell. Otherwise stop that process first: manage.py servers stop"
            )
        return False
