"""The keeper: servers in the background, until they are told to stop."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from servers import RunFolder, ServerError, Servers, supervisor
from tests.servers.support import gone, run_python, server_processes, sockets, sql, start_parent, valkey_client
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

START = """
import sys
from pathlib import Path
from servers import RunFolder, keeper
print(keeper.start(RunFolder(Path(sys.argv[1]))))
"""


@pytest.fixture
def kept(folder: RunFolder) -> Iterator[psutil.Process]:
    """Servers in the background; the process that keeps them."""
    assert supervisor.start(folder)
    owner = folder.claim.owner()
    assert owner is not None
    process = psutil.Process(owner.pid)
    yield process
    supervisor.stop(folder)
    wait_for(lambda: gone(process))


def test_start_returns_once_both_answer_and_they_outlive_the_one_who_started_them(folder: RunFolder) -> None:
    starter = run_python(START, folder.path)
    assert starter.communicate()[0] == "True\n"
    assert sql(folder, "SELECT 1") == "1"
    assert valkey_client(folder).ping()
    assert all(server.up for server in supervisor.status(folder))
    assert supervisor.stop(folder)


def test_the_keeper_is_out_of_reach_of_the_terminal(kept: psutil.Process) -> None:
    assert os.getsid(kept.pid) == kept.pid
    assert kept.terminal() is None or os.getsid(kept.pid) != os.getsid(0)


def test_start_again_says_that_they_run_already_and_changes_nothing(folder: RunFolder, kept: psutil.Process) -> None:
    before = supervisor.status(folder)
    assert supervisor.start(folder) is False
    assert supervisor.status(folder) == before
    assert not gone(kept)


def test_of_two_that_start_at_once_one_starts_and_both_return_when_it_answers(folder: RunFolder) -> None:
    starters = [run_python(START, folder.path) for _ in range(2)]
    assert sorted(starter.communicate()[0] for starter in starters) == ["False\n", "True\n"]
    assert all(server.up for server in supervisor.status(folder))
    assert supervisor.stop(folder)


def test_status_says_where_each_server_is_and_which_process_and_version(
    folder: RunFolder, kept: psutil.Process
) -> None:
    postgres, valkey = supervisor.status(folder)
    assert (postgres.name, valkey.name) == ("postgres", "valkey")
    assert postgres.up
    assert valkey.up
    assert str(postgres.version).startswith("18.")
    assert str(valkey.version).startswith("9.")
    assert str(folder.postgres_socket) in postgres.address
    assert valkey.address == folder.valkey_url
    assert {postgres.pid, valkey.pid} == {child.pid for child in kept.children()}


def test_status_and_stop_without_servers_say_so_and_make_nothing(folder: RunFolder) -> None:
    assert [server.up for server in supervisor.status(folder)] == [False, False]
    assert supervisor.stop(folder) is False
    assert supervisor.stop(folder, delete=True) is False
    assert not folder.path.exists()


def test_stop_returns_once_everything_is_gone_and_keeps_the_data(folder: RunFolder, kept: psutil.Process) -> None:
    sql(folder, "CREATE TABLE kept AS SELECT 7 AS n")
    assert supervisor.stop(folder)
    assert server_processes(folder) == []
    assert sockets(folder) == []
    assert folder.claim.owner() is None
    assert supervisor.start(folder)
    assert sql(folder, "SELECT n FROM kept") == "7"


def test_stop_with_delete_removes_the_folder(folder: RunFolder, kept: psutil.Process) -> None:
    assert supervisor.stop(folder, delete=True)
    assert server_processes(folder) == []
    assert not folder.path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_keeper_stops_both_in_good_order(
    folder: RunFolder, kept: psutil.Process, number: signal.Signals
) -> None:
    kept.send_signal(number)
    wait_for(lambda: gone(kept))
    assert server_processes(folder) == []
    assert sockets(folder) == []
    assert "database system is shut down" in (folder.path / "postgres.log").read_text()
    assert "ready to exit" in (folder.path / "valkey.log").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux to see which signals a process ignores")
def test_a_second_signal_does_not_keep_the_keeper_from_stopping_in_good_order(
    folder: RunFolder, kept: psutil.Process
) -> None:
    valkey = psutil.Process(supervisor.status(folder)[1].pid)
    valkey.suspend()
    kept.terminate()
    wait_for(lambda: {signal.SIGTERM, signal.SIGINT} <= ignored(kept.pid))
    kept.send_signal(signal.SIGINT)
    assert not gone(kept)
    valkey.resume()
    wait_for(lambda: gone(kept))
    assert server_processes(folder) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the servers stay until the next start")
def test_killing_the_keeper_stops_both_and_the_next_start_takes_over(folder: RunFolder, kept: psutil.Process) -> None:
    sql(folder, "CREATE TABLE kept AS SELECT 7 AS n")
    kept.kill()
    wait_for(lambda: server_processes(folder) == [])
    assert sockets(folder) == []
    assert supervisor.start(folder)
    assert sql(folder, "SELECT n FROM kept") == "7"


def test_the_next_start_takes_over_at_once_from_a_keeper_that_was_killed(
    folder: RunFolder, kept: psutil.Process
) -> None:
    sql(folder, "CREATE TABLE kept AS SELECT 7 AS n")
    kept.kill()
    assert supervisor.start(folder)
    assert sql(folder, "SELECT n FROM kept") == "7"


@pytest.mark.parametrize("index", [0, 1], ids=["postgres", "valkey"])
def test_a_server_that_dies_is_started_again(folder: RunFolder, kept: psutil.Process, index: int) -> None:
    before = supervisor.status(folder)[index].pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: supervisor.status(folder)[index].pid not in (None, before))
    assert all(server.up for server in supervisor.status(folder))
    assert "starting it again" in (folder.path / "keeper.log").read_text()


def test_stop_also_ends_what_a_dead_keeper_left_behind(folder: RunFolder) -> None:
    folder.create()
    with Servers(folder) as servers:
        # As if our claim had died with us, and the servers had not.
        folder.claim.release()
        assert supervisor.stop(folder)
        assert server_processes(folder) == []
        assert servers.valkey is not None
        assert not servers.valkey.child.alive


def test_stop_also_stops_a_process_that_is_no_keeper(folder: RunFolder) -> None:
    parent = start_parent(folder)
    assert supervisor.stop(folder)
    assert parent.wait() == -signal.SIGTERM
    assert server_processes(folder) == []
    assert sockets(folder) == []


def test_a_start_that_fails_says_why_and_leaves_nothing_running(folder: RunFolder) -> None:
    with Servers(folder):
        pass
    (folder.postgres / "data" / "postgresql.conf").write_text("nonsense\n")
    with pytest.raises(ServerError, match=r"(?s)postgres ended with status 1.*syntax error.*postgresql\.conf"):
        supervisor.start(folder)
    assert server_processes(folder) == []
    assert folder.claim.owner() is None


def test_a_folder_that_cannot_be_used_is_said_by_start_too(outer: Path) -> None:
    with pytest.raises(ServerError, match="too long for a socket") as error:
        supervisor.start(RunFolder(outer / ("x" * 100)))
    assert "Traceback" not in str(error.value)


def test_one_of_the_two_can_be_kept_alone_and_asking_for_both_then_is_a_clear_error(folder: RunFolder) -> None:
    assert supervisor.start(folder, runs=["valkey"])
    assert [server.up for server in supervisor.status(folder)] == [False, True]
    assert supervisor.start(folder, runs=["valkey"]) is False
    with pytest.raises(ServerError, match=r"runs valkey there.*servers stop"):
        supervisor.start(folder)
    assert supervisor.stop(folder)


def ignored(pid: int) -> set[int]:
    """The signals that a process ignores."""
    status = Path(f"/proc/{pid}/status").read_text()
    [mask] = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:")]
    return {number for number in range(1, 65) if mask & 1 << (number - 1)}
