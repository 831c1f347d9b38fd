"""etcd: on its own port, without privileges, gone with its parent; what it answered outlives a crash."""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest
from etcd3gw import Etcd3Client

from servers import RunFolder, ServerError
from servers.etcd import Etcd, status
from servers.folder import unprivileged_user
from tests.servers.support import gone, processes_naming, run_python
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

PARENT = """
import signal, sys
from pathlib import Path
from servers.etcd import Etcd
etcd = Etcd(Path(sys.argv[1]) / "etcd")
etcd.start()
print(etcd.url, flush=True)
signal.pause()
"""


@pytest.fixture
def etcd(folder: RunFolder) -> Iterator[Etcd]:
    folder.create()
    made = Etcd(folder.path / "etcd")
    yield made
    made.kill()


def test_it_starts_and_stops(etcd: Etcd) -> None:
    assert not status(etcd.url).up
    etcd.start()
    assert status(etcd.url).version == "3.5.1"
    assert psutil.Process(etcd.child.pid).username() == (unprivileged_user() or psutil.Process().username())
    assert {one.laddr.ip for one in psutil.Process(etcd.child.pid).net_connections("inet")} == {"127.0.0.1"}
    etcd.stop()
    assert not etcd.child.alive
    assert not status(etcd.url).up


@pytest.mark.parametrize("end", [Etcd.stop, Etcd.kill])
def test_what_it_answered_is_there_after_a_restart_at_the_same_address(etcd: Etcd, end: object) -> None:
    etcd.start()
    client = Etcd3Client(etcd.host, etcd.port)
    client.put("kept", "7")
    end(etcd)  # type: ignore[operator]
    etcd.start()
    assert client.get("kept") == [b"7"]


def test_it_ends_when_its_parent_is_killed(folder: RunFolder) -> None:
    folder.create()
    parent = run_python(PARENT, folder.path)
    assert parent.stdout is not None
    assert status(parent.stdout.readline().strip()).up
    (server,) = processes_naming(f"--data-dir={folder.path}/")
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: gone(server))


def test_what_an_earlier_run_left_is_ended(etcd: Etcd) -> None:
    etcd.start()
    second = Etcd(etcd.folder)
    second.start()
    assert not etcd.child.alive
    assert second.child.alive
    second.stop()


def test_one_that_does_not_start_says_why(folder: RunFolder) -> None:
    folder.create()
    with pytest.raises(ServerError, match="election"):
        Etcd(folder.path / "etcd", extra=["--election-timeout=1"]).start()
