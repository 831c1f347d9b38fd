"""The supervisor runs servers in the background until they are stopped."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from servers import RunFolder, ServerError, Servers, supervisor
from servers.valkey import Valkey
from tests.servers.support import gone, read_one, run_python, server_processes, sockets, write_one
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def supervised(folder: RunFolder) -> Iterator[psutil.Process]:
    """The supervisor process, with its servers running."""
    assert supervisor.start(folder)
    owner = folder.ownership.owner()
    process = psutil.Process(owner.pid)
    yield process
    supervisor.stop(folder)
    wait_for(lambda: gone(process))


def test_of_two_concurrent_starts_one_starts_and_both_return_once_the_servers_answer(folder: RunFolder) -> None:
    start = "from servers import supervisor; print(supervisor.start(RunFolder(path)))"
    starters = [run_python(start, folder.path) for _ in range(2)]
    assert sorted(starter.communicate()[0] for starter in starters) == ["False\n", "True\n"]
    assert all(server.up for server in supervisor.status(folder))
    assert supervisor.stop(folder)


def test_stop_keeps_the_data_unless_told_to_delete_it(folder: RunFolder, supervised: psutil.Process) -> None:
    assert os.getsid(supervised.pid) == supervised.pid  # Ctrl-C does not reach another session.
    write_one(folder)
    assert supervisor.stop(folder)
    assert (server_processes(folder), sockets(folder)) == ([], [])
    assert folder.ownership.owner() is None
    assert supervisor.start(folder)
    assert read_one(folder) == ("7", "7")
    assert supervisor.stop(folder, delete=True)
    assert server_processes(folder) == []
    assert not folder.path.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux to see which signals a process ignores")
def test_a_second_signal_does_not_interrupt_the_shutdown(folder: RunFolder, supervised: psutil.Process) -> None:
    valkey = psutil.Process(supervisor.status(folder)[1].pid)
    valkey.suspend()
    supervised.terminate()
    wait_for(lambda: {signal.SIGTERM, signal.SIGINT} <= ignored_signals(supervised.pid))
    supervised.send_signal(signal.SIGINT)
    assert not gone(supervised)
    valkey.resume()
    wait_for(lambda: gone(supervised))
    assert server_processes(folder) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the servers stay until the next start")
@pytest.mark.parametrize("at_once", [False, True])
def test_a_start_takes_over_from_a_killed_one(folder: RunFolder, supervised: psutil.Process, at_once: bool) -> None:
    write_one(folder)
    supervised.kill()
    if not at_once:
        wait_for(lambda: server_processes(folder) == [])
        assert sockets(folder) == []
    assert supervisor.start(folder)
    assert read_one(folder) == ("7", "7")


def test_a_server_that_cannot_be_run_is_tried_until_it_can(folder: RunFolder, supervised: psutil.Process) -> None:
    # Simulate a full disk: without a log file, the server's process cannot even start.
    server_log = folder.path / "valkey.log"
    server_log.unlink()
    server_log.mkdir()
    postgres, valkey = (server.pid for server in supervisor.status(folder))
    os.kill(valkey, signal.SIGKILL)
    wait_for(lambda: "valkey was not restarted" in (folder.path / "supervisor.log").read_text())
    assert supervisor.status(folder)[0].pid == postgres
    server_log.rmdir()
    wait_for(lambda: supervisor.status(folder)[1].up)


def test_a_slow_recovery_does_not_delay_the_other_server(folder: RunFolder, supervised: psutil.Process) -> None:
    write_one(folder)
    data = folder.postgres / "data"
    # Keep recovery waiting until the file `go` exists.
    (data / "postgresql.conf").write_text(
        f"restore_command = 'while [ ! -e {folder.path}/go ]; do sleep 0.05; done; false'\nhot_standby = off\n"
    )
    (data / "recovery.signal").touch()
    postgres, valkey = (server.pid for server in supervisor.status(folder))
    os.kill(postgres, signal.SIGKILL)
    recovering = wait_for(lambda: postmaster_of(folder, other_than=postgres))
    os.kill(valkey, signal.SIGKILL)
    wait_for(lambda: supervisor.status(folder)[1].pid not in (None, valkey))
    assert not supervisor.status(folder)[0].up
    (folder.path / "go").touch()
    wait_for(lambda: supervisor.status(folder)[0].up)
    (folder.path / "go").unlink()
    assert supervisor.status(folder)[0].pid == recovering
    assert read_one(folder) == ("7", "7")
    assert (folder.path / "supervisor.log").read_text().count("restarting it") == 2


@pytest.mark.parametrize("booted", [5.0, 1000.0])
def test_the_pause_grows_while_restarts_fail_and_starts_over_after_a_good_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, booted: float
) -> None:
    folder.create()
    valkey = Valkey(folder.valkey, extra=["--nonsense"])
    restarts = supervisor.Restarts(valkey)
    now = booted
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now))
    attempts = []
    for _ in range(200):
        before = restarts.next
        restarts.restart_if_dead()
        if restarts.next != before:
            attempts.append(now - booted)
            wait_for(lambda: not valkey.child.alive)
        now += 1.0
    assert attempts == [0, 1, 3, 7, 15, 31, 61, 91, 121, 151, 181]
    now += 100.0
    restarts.restart_if_dead()
    assert restarts.pause == supervisor.FIRST_PAUSE


def test_stop_ends_orphans(folder: RunFolder) -> None:
    folder.create()
    with Servers(folder) as servers:
        folder.ownership.release()  # Simulate an owner that has died while its servers run on.
        assert supervisor.stop(folder)
        assert server_processes(folder) == []
        assert not servers.valkey.child.alive


def test_a_failed_start_says_why(folder: RunFolder) -> None:
    with Servers(folder):
        pass
    settings = folder.postgres / "data" / "postgresql.conf"
    settings.write_text("nonsense\n")
    with pytest.raises(ServerError, match=r"(?s)postgres ended with status 1.*syntax error.*postgresql\.conf"):
        supervisor.start(folder)
    assert server_processes(folder) == []
    assert folder.ownership.owner() is None
    settings.write_text("")
    assert supervisor.start(folder)
    assert supervisor.stop(folder)


def postmaster_of(folder: RunFolder, *, other_than: int) -> int | None:
    """Return the id of a new postmaster once it is recovering the folder's data; None before that."""
    with suppress(OSError, ValueError, IndexError, psutil.Error):
        pid = int((folder.postgres / "data" / "postmaster.pid").read_text().split()[0])
        recovers = any("startup" in " ".join(child.cmdline()) for child in psutil.Process(pid).children())
        return pid if recovers and pid != other_than else None
    return None


def ignored_signals(pid: int) -> set[int]:
    status = Path(f"/proc/{pid}/status").read_text()
    [mask] = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:")]
    return {number for number in range(1, 65) if mask & 1 << (number - 1)}
