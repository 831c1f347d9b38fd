"""etcd and ZooKeeper, alone and as clusters of three members: data, failures, orphans and network partitions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from etcd3gw import Etcd3Client
from kazoo.client import KazooClient

from servers import RunFolder, ServerError, Servers, etcd, zookeeper
from servers.cluster import Cluster
from servers.etcd import Etcd
from servers.folder import unprivileged_user
from servers.status import Status
from servers.zookeeper import ZooKeeper
from tests.lock_servers import needs_zookeeper
from tests.servers.support import kill, processes_naming
from tests.servers.test_command import GIVEN, manage
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(params=[Etcd, pytest.param(ZooKeeper, marks=needs_zookeeper)])
def server(folder: RunFolder, request: pytest.FixtureRequest) -> Iterator[Etcd | ZooKeeper]:
    folder.create()
    made = request.param(folder.path / "server")
    yield made
    made.kill()


def status(server: Etcd | ZooKeeper) -> Status:
    return etcd.status(server.url) if isinstance(server, Etcd) else zookeeper.status(server.hosts)


@contextmanager
def started(server: ZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def write(server: Etcd | ZooKeeper) -> None:
    if isinstance(server, Etcd):
        Etcd3Client(server.host, server.port).put("/kept", "7")
        return
    with started(server) as client:
        client.create("/kept", b"7")


def read(server: Etcd | ZooKeeper) -> bytes:
    if isinstance(server, Etcd):
        return bytes(Etcd3Client(server.host, server.port).get("/kept")[0])
    with started(server) as client:
        return bytes(client.get("/kept")[0])


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_confirmed_data_survives_a_restart(server: Etcd | ZooKeeper, end: str) -> None:
    assert not status(server).up
    server.start()
    assert status(server).version
    write(server)
    getattr(server, end)()
    assert (server.child.alive, status(server).up) == (False, False)
    server.start()
    assert read(server) == b"7"


def test_it_is_private_and_ends_an_orphan(server: Etcd | ZooKeeper) -> None:
    server.start()
    process = psutil.Process(server.child.pid)
    listening = {socket.laddr.ip for socket in process.net_connections("inet") if not socket.raddr}
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert process.uids().real == (unprivileged_user() or os.geteuid())
    assert server.folder.stat().st_mode & 0o777 == 0o700
    assert set(server.child.env or ()) == {"PATH", "LC_ALL"}
    second = type(server)(server.folder)
    second.start()
    assert (server.child.alive, second.child.alive) == (False, True)
    second.stop()


def test_a_missing_zookeeper_is_reported(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "CLASSES", (Path(os.devnull) / "zookeeper.jar",))
    assert not zookeeper.available()
    with pytest.raises(ServerError, match="apt-get install zookeeper"):
        ZooKeeper(folder.path / "zookeeper").start()


KINDS = [etcd.cluster, pytest.param(zookeeper.cluster, marks=needs_zookeeper)]


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
    """No connection escapes a cut."""
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


def test_a_cluster_without_proxies_cannot_be_cut_and_its_orphans_are_ended(folder: RunFolder) -> None:
    folder.create()
    left = etcd.cluster(folder.path)
    with pytest.raises(ServerError, match="without a network"):
        left.isolate(left.members[0])
    left.launch()
    with Servers(folder, runs=["etcd"]) as servers:
        (again,) = servers.clusters
        assert [member.child.alive for member in (*left.members, *again.members)] == [False] * 3 + [True] * 3
