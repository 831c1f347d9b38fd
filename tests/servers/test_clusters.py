"""Clusters of three members: they elect a leader, lose a member or its disk, and are split by a network partition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from servers import RunFolder, ServerError, Servers, etcd, zookeeper
from servers.cluster import Cluster
from tests.lock_servers import needs_zookeeper
from tests.servers.support import kill, processes_naming
from tests.servers.test_command import SECRET_KEY, manage
from tests.servers.test_etcd_and_zookeeper import read, write
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

KINDS = [etcd.cluster, pytest.param(zookeeper.cluster, marks=needs_zookeeper)]
GIVEN = {
    "DATABASE_URL": "postgres://eve@127.0.0.1:1/shop",
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "SECRET_KEY": SECRET_KEY,
}
"""Addresses that keep `manage.py servers` from starting Postgres and Valkey."""


@pytest.fixture(params=KINDS)
def cluster(folder: RunFolder, request: pytest.FixtureRequest) -> Iterator[Cluster[Any]]:
    folder.create()
    made = request.param(folder.path, cuttable=True)
    made.start()
    yield made
    for member in made.members:
        member.kill()
    made.stop()
    made.stop()  # a second stop does nothing


def test_a_majority_goes_on_without_the_killed_leader(cluster: Cluster[Any]) -> None:
    killed = cluster.leader()
    write(killed)
    killed.kill()
    leader = cluster.leader()
    assert leader is not killed
    assert read(leader) == b"7"
    assert cluster.status().up
    (third,) = [member for member in cluster.members if member not in (killed, leader)]
    third.kill()
    wait_for(lambda: not leader.leads(), "the last member to notice that it is no majority")
    assert not cluster.status().up
    cluster.heal()
    assert [read(member) for member in cluster.members] == [b"7"] * 3


def test_a_leader_that_is_cut_off_is_replaced(cluster: Cluster[Any]) -> None:
    old = cluster.leader()
    cluster.isolate(old)
    new = cluster.leader(other_than=old)
    wait_for(lambda: not old.leads(), "the old leader to notice")
    assert not old.status().up
    write(new)
    cluster.heal()
    assert read(old) == b"7"


def test_the_network_is_the_only_way_between_the_members(cluster: Cluster[Any]) -> None:
    """Negative control of `isolate`: members connect only through proxies, so no connection escapes a cut."""
    ports = {
        port
        for ports in json.loads(next(cluster.members[0].folder.parent.glob("*.ports")).read_text())
        for port in ports[1:]
    }
    for member in cluster.members:
        found = psutil.Process(member.child.pid).net_connections("tcp")
        own = {one.laddr.port for one in found if one.status == "LISTEN"}
        to_others = {one.raddr.port for one in found if one.raddr and one.laddr.port not in own}
        assert not to_others & ports
        assert to_others & {*cluster.network.proxies}


def test_a_cluster_without_proxies_cannot_be_cut(folder: RunFolder) -> None:
    folder.create()
    cluster = etcd.cluster(folder.path)
    with pytest.raises(ServerError, match="without a network"):
        cluster.isolate(cluster.members[0])


@pytest.mark.parametrize("name", ["etcd", pytest.param("zookeeper", marks=needs_zookeeper)])
def test_the_command_starts_and_stops_a_cluster(folder: RunFolder, name: str) -> None:
    started = manage(folder, "start", name, **GIVEN)
    assert f"Started {name} in {folder.path}" in started.stdout, started.stderr
    before = json.loads(manage(folder, "status", "--json", **GIVEN).stdout)[name]
    assert (before["up"], before["address"].count(",")) == (True, 2)
    killed = processes_naming(folder.path / f"{name}-2")
    kill(killed)
    wait_for(lambda: {*processes_naming(folder.path / f"{name}-2")} - {*killed}, "the supervisor to restart it")
    assert {"etcd": etcd, "zookeeper": zookeeper}[name].cluster(folder.path).status().address == before["address"]
    assert manage(folder, "stop", "--delete", **GIVEN).returncode == 0
    assert not processes_naming(f"{folder.path}/{name}")
    assert not folder.path.exists()


def test_orphans_of_a_cluster_are_ended(folder: RunFolder) -> None:
    folder.create()
    left = etcd.cluster(folder.path)
    left.launch()
    with Servers(folder, runs=["etcd"]) as servers:
        (again,) = servers.clusters
        assert [member.child.alive for member in (*left.members, *again.members)] == [False] * 3 + [True] * 3
