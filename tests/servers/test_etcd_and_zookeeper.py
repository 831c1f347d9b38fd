"""etcd and ZooKeeper start, keep confirmed data, end with their parent, and report a failed start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from etcd3gw import Etcd3Client
from kazoo.client import KazooClient

from servers import RunFolder, ServerError, etcd, zookeeper
from servers.etcd import Etcd
from servers.folder import unprivileged_user
from servers.status import Status
from servers.zookeeper import ZooKeeper
from tests.lock_servers import needs_zookeeper
from tests.locking.zookeeper_support import require_zookeeper
from tests.servers.support import gone, run_python
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

PARENT = """
import signal, sys
from pathlib import Path
from servers.{module} import {name}
server = {name}(Path(sys.argv[1]))
server.start()
print(server.child.pid, flush=True)
signal.pause()
"""


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


def test_it_ends_with_its_parent(server: Etcd | ZooKeeper) -> None:
    kind = type(server)
    parent = run_python(PARENT.format(module=kind.__module__.split(".")[1], name=kind.__name__), server.folder)
    process = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: gone(process))


def test_a_failed_start_of_etcd_shows_the_log(folder: RunFolder) -> None:
    folder.create()
    with pytest.raises(ServerError, match="election"):
        Etcd(folder.path / "etcd", extra=["--election-timeout=1"]).start()


def test_a_failed_start_of_zookeeper_shows_the_log(folder: RunFolder) -> None:
    require_zookeeper()
    folder.create()
    with pytest.raises(ServerError, match=r"(?s)zookeeper ended with status.*(tickTime|NumberFormat)"):
        ZooKeeper(folder.path / "zookeeper", extra={"tickTime": "nonsense"}).start()


def test_a_missing_zookeeper_is_reported(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "CLASSES", (Path(os.devnull) / "zookeeper.jar",))
    assert not zookeeper.available()
    with pytest.raises(ServerError, match="apt-get install zookeeper"):
        ZooKeeper(folder.path / "zookeeper").start()
