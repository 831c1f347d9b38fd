"""A cluster of three for tests of locks: recipes for clients of some members, and ways to lose members."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from locking import Lease, LeaseLost, Lock, LockUnavailable
from servers import etcd, zookeeper
from servers.cluster import Cluster
from tests.locking import conformance as suite
from tests.locking.etcd_support import EtcdRecipe, client_of
from tests.locking.support import MakeLock, renew, run_folder
from tests.locking.zookeeper_support import ZooKeeperRecipe, clients, require_zookeeper
from tests.waiting import wait_for


class OnThreeServers(suite.SurvivesNodeLossConformance):
    """Runs the node-loss tests on a cluster of three servers whose leader is lost."""

    KIND: ClassVar[str]
    """Kind of the servers: "etcd" or "zookeeper"."""

    @pytest.fixture
    def on_several_servers(self, name: str, tmp_path: Path) -> Iterator[MakeLock]:
        with running_quorum(self.KIND, tmp_path) as self.quorum:
            recipe = self.quorum.recipe(*self.quorum.followers())
            yield lambda **options: self.made(recipe, name, **options)

    @contextmanager
    def without_a_minority(self) -> Iterator[None]:
        self.quorum.cluster.leader().kill()
        self.quorum.cluster.leader()
        clients.reconnect()
        yield


@dataclass(frozen=True)
class Quorum:
    """Three servers of one kind."""

    cluster: Cluster[Any]
    folder: Path
    """Folder for the files of `FileCell`."""

    @property
    def is_etcd(self) -> bool:
        return isinstance(self.cluster.members[0], etcd.Etcd)

    def followers(self) -> list[Any]:
        leader = self.cluster.leader()
        return [member for member in self.cluster.members if member is not leader]

    def recipe(self, *members: Any, own: int = 0) -> EtcdRecipe | ZooKeeperRecipe:
        """Return a recipe for clients of these members. etcd's client uses only the first member."""
        if self.is_etcd:
            return EtcdRecipe(members[0].host, members[0].port, self.folder, own)
        return ZooKeeperRecipe(",".join(member.hosts for member in members), self.folder, own)

    def replace_disk(self, member: Any) -> None:
        """Kill a member, delete its data, and let it join again, as the server's manual says."""
        member.kill()
        member.lose_disk()
        if self.is_etcd:
            leader = self.cluster.leader()
            found = etcd.ask(leader.url, "cluster/member/list")["members"]
            number = member.folder.name.rpartition("-")[2]
            (old,) = [one for one in found if one["name"] == number]
            # etcd refuses to change its members until it has been healthy for some seconds.
            wait_for(lambda: "error" not in etcd.ask(leader.url, "cluster/member/remove", ID=old["ID"]))
            wait_for(lambda: "error" not in etcd.ask(leader.url, "cluster/member/add", peerURLs=old["peerURLs"]))
            others = [one for one in self.cluster.members if one is not member]
            wait_for(lambda: all(len(etcd.ask(one.url, "cluster/member/list")["members"]) == 3 for one in others))
            member.child.args.append("--initial-cluster-state=existing")
        member.launch()
        member.wait()


@contextmanager
def running_quorum(kind: str, folder: Path) -> Iterator[Quorum]:
    """Run a cluster of `kind` ("etcd" or "zookeeper") whose network can be cut."""
    if kind == "zookeeper":
        require_zookeeper()
    with run_folder() as run:
        cluster: Cluster[Any] = {"etcd": etcd.cluster, "zookeeper": zookeeper.cluster}[kind](run.path, cuttable=True)
        try:
            cluster.start()
            yield Quorum(cluster, folder)
        finally:
            for member in cluster.members:
                member.kill()
            clients.close()
            client_of.cache_clear()
            cluster.stop()


def granted(lock: Lock) -> Lease:
    """Acquire the lock and return its lease. Try again while the servers elect a leader."""

    def ask() -> Lease | None:
        try:
            return lock.acquire(timeout=1.0)
        except LockUnavailable:
            return None

    return wait_for(ask, "the lock to be granted")


def renewed(lease: Lease) -> bool:
    """Wait until the lease has been renewed. Return False if it is lost instead."""
    with suppress(LeaseLost):
        renew(lease, seconds=0.1)
    return not lease.lost
