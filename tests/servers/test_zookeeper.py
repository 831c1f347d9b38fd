"""A ZooKeeper of our own: it starts, keeps its data, stops, and says what is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from servers import RunFolder, ServerError, zookeeper
from servers.folder import unprivileged_user
from servers.zookeeper import ZooKeeper, available, status
from tests.servers.support import gone, run_python
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not available() and not os.environ.get("CI"),
        reason="ZooKeeper is not installed; on Debian: apt-get install zookeeper default-jre-headless",
    ),
]

PARENT = """
import signal, sys
from pathlib import Path
from servers.zookeeper import ZooKeeper
server = ZooKeeper(Path(sys.argv[1]))
server.start()
print(server.child.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def server(folder: RunFolder) -> Iterator[ZooKeeper]:
    folder.create()
    made = ZooKeeper(folder.path / "zookeeper")
    yield made
    made.stop()


def write(server: ZooKeeper) -> None:
    with_client(server, lambda client: client.create("/kept", b"7"))


def read(server: ZooKeeper) -> bytes:
    return with_client(server, lambda client: client.get("/kept")[0])


def with_client(server, ask):  # type: ignore[no-untyped-def]
    client = KazooClient(server.hosts)
    client.start()
    try:
        return ask(client)
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize("crash", [False, True])
def test_what_it_answered_is_there_again_on_the_same_port(server: ZooKeeper, crash: bool) -> None:
    server.start()
    assert status(server.hosts).version
    write(server)
    server.kill() if crash else server.stop()
    assert not status(server.hosts).up
    server.start()
    assert read(server) == b"7"


def test_it_is_private_and_listens_on_the_loopback_interface_only(server: ZooKeeper) -> None:
    server.start()
    process = psutil.Process(server.child.pid)
    assert {socket.laddr.ip.removeprefix("::ffff:") for socket in process.net_connections() if not socket.raddr} == {
        "127.0.0.1"
    }
    assert process.username() == (unprivileged_user() or psutil.Process().username())
    assert server.folder.stat().st_mode & 0o777 == 0o700
    assert set(server.child.env or ()) == {"PATH", "LC_ALL"}


def test_it_stops_when_its_parent_is_killed(folder: RunFolder) -> None:
    folder.create()
    parent = run_python(PARENT, folder.path / "zookeeper")
    assert parent.stdout is not None
    process = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    wait_for(lambda: gone(process))


def test_one_that_does_not_start_is_reported_with_its_log(folder: RunFolder) -> None:
    folder.create()
    with pytest.raises(ServerError, match=r"(?s)zookeeper ended with status.*tickTime|NumberFormat"):
        ZooKeeper(folder.path / "zookeeper", extra={"tickTime": "nonsense"}).start()


def test_when_it_is_not_installed_the_error_says_how_to_install_it(
    server: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "CLASSES", (Path(os.devnull) / "zookeeper.jar",))
    assert not zookeeper.available()
    with pytest.raises(ServerError, match="apt-get install zookeeper"):
        server.start()
