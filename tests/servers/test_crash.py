"""Crashes: everything stops with its parent, committed data survives, and what is left behind is taken over."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from servers import RunFolder, ServerError, Servers
from servers.folder import unprivileged_user
from servers.orphans import forget_the_dead
from servers.postgres import Postgres
from servers.valkey import Valkey
from tests.servers.support import (
    PARENT_WITHOUT_DEATH_SIGNAL,
    gone,
    kill,
    server_processes,
    sockets,
    sql,
    start_parent,
    valkey_client,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

# Never waits, and so never looks whether the postmaster is still there.
BUSY = "DO $$ BEGIN LOOP END LOOP; END $$"


def write_one(folder: RunFolder) -> None:
    sql(folder, "CREATE TABLE kept AS SELECT 7 AS n")
    valkey_client(folder).set("kept", "7")


def read_one(folder: RunFolder) -> tuple[str, str]:
    return sql(folder, "SELECT n FROM kept"), valkey_client(folder).get("kept")


@pytest.fixture
def busy_backend(folder: RunFolder) -> Iterator[tuple[Postgres, psutil.Process]]:
    """A Postgres whose postmaster was killed, and a backend that goes on without it."""
    folder.create()
    postgres = Postgres(folder.postgres)
    postgres.start()
    client = psycopg.connect(host=str(folder.postgres_socket), user="postgres", dbname="postgres", autocommit=True)
    backend = psutil.Process(client.info.backend_pid)
    client.pgconn.send_query(BUSY.encode())
    client.pgconn.flush()
    wait_for(lambda: sql(folder, f"SELECT state FROM pg_stat_activity WHERE pid = {backend.pid}") == "active")
    os.kill(postgres.child.pid, signal.SIGKILL)
    wait_for(lambda: not postgres.child.alive)
    # All others of its processes see that the postmaster is gone, and go.
    wait_for(lambda: server_processes(folder) == [backend])
    yield postgres, backend
    client.close()
    postgres.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_when_the_parent_ends_by_a_signal_nothing_is_left(folder: RunFolder, number: signal.Signals) -> None:
    parent = start_parent(folder)
    write_one(folder)
    assert len(server_processes(folder)) > 2
    parent.send_signal(number)
    parent.wait()
    wait_for(lambda: server_processes(folder) == [])
    assert sockets(folder) == []
    with Servers(folder) as servers:
        assert servers.owned
        assert read_one(folder) == ("7", "7")


def test_ctrl_c_in_the_terminal_stops_both_in_good_order(folder: RunFolder) -> None:
    parent = start_parent(folder)
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait() == -signal.SIGINT
    assert server_processes(folder) == []
    assert sockets(folder) == []
    log = (folder.path / "postgres.log").read_text()
    assert "database system is shut down" in log
    assert "ready to exit" in (folder.path / "valkey.log").read_text()


def test_what_was_answered_survives_the_kill_of_everything(folder: RunFolder) -> None:
    parent = start_parent(folder)
    write_one(folder)
    kill([*server_processes(folder), psutil.Process(parent.pid)])
    parent.wait()
    wait_for(lambda: server_processes(folder) == [])
    assert len(sockets(folder)) == 2
    with Servers(folder) as servers:
        assert servers.owned
        assert read_one(folder) == ("7", "7")
    assert "was not properly shut down" in (folder.path / "postgres.log").read_text()


def test_servers_that_outlived_their_parent_are_ended_and_the_folder_is_taken_over(folder: RunFolder) -> None:
    parent = start_parent(folder, PARENT_WITHOUT_DEATH_SIGNAL)
    write_one(folder)
    old = server_processes(folder)
    parent.kill()
    parent.wait()
    assert read_one(folder) == ("7", "7")
    with Servers(folder) as servers:
        assert servers.owned
        assert all(map(gone, old))
        assert read_one(folder) == ("7", "7")


def test_one_that_does_not_listen_any_more_is_ended_all_the_same(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = start_parent(folder, PARENT_WITHOUT_DEATH_SIGNAL)
    write_one(folder)
    old = server_processes(folder)
    for process in old:
        process.suspend()
    parent.kill()
    parent.wait()
    monkeypatch.setattr("servers.orphans.PATIENCE", 0.5)
    with Servers(folder):
        assert all(map(gone, old))
        assert read_one(folder) == ("7", "7")


def test_postgres_starts_again_though_a_busy_backend_outlived_the_postmaster(
    folder: RunFolder, busy_backend: tuple[Postgres, psutil.Process]
) -> None:
    postgres, backend = busy_backend
    postgres.start()
    assert gone(backend)
    assert sql(folder, "SELECT 1") == "1"


def test_were_the_busy_backend_not_ended_postgres_would_not_start(
    busy_backend: tuple[Postgres, psutil.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres, backend = busy_backend
    monkeypatch.setattr(Postgres, "end_orphans", lambda self: False)
    with pytest.raises(ServerError, match="pre-existing shared memory block"):
        postgres.start()
    assert not gone(backend)
    monkeypatch.undo()


def test_a_killed_server_is_started_again_by_its_owner(folder: RunFolder) -> None:
    with Servers(folder) as servers:
        assert servers.postgres is not None
        assert servers.valkey is not None
        write_one(folder)
        for server in (servers.postgres, servers.valkey):
            server.child.kill()
            assert not server.child.alive
            server.start()
        assert read_one(folder) == ("7", "7")


def test_nothing_but_the_folders_own_servers_is_taken_for_a_leftover(
    folder: RunFolder, other_folder: RunFolder
) -> None:
    pause = "import signal; print('up', flush=True); signal.pause()"
    cluster = Postgres(folder.postgres).cluster
    bystanders = [
        subprocess.Popen([*command, "-c", pause, *more], executable=sys.executable, stdout=subprocess.PIPE)
        for command, more in [
            (["valkey-cli"], ["-s", str(folder.valkey / "valkey.sock")]),
            (["tail"], [str(folder.path / "postgres.log"), cluster]),
            (["psql"], [f"--cluster_name={cluster}"]),
            (["valkey-server"], [str(other_folder.valkey / "valkey.sock")]),
            (["postgres"], [f"--cluster_name={Postgres(other_folder.postgres).cluster}"]),
        ]
    ]
    for bystander in bystanders:
        assert bystander.stdout is not None
        assert bystander.stdout.readline() == b"up\n"
    folder.create()
    for server in (Postgres(folder.postgres), Valkey(folder.valkey)):
        server.folder.mkdir()
        assert not server.end_orphans()
    assert [bystander.poll() for bystander in bystanders] == [None] * 5
    for bystander in bystanders:
        bystander.kill()
        bystander.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a process look like somebody else's server")
def test_a_process_of_another_user_is_never_a_leftover(folder: RunFolder) -> None:
    folder.create()
    folder.valkey.mkdir()
    command = ["valkey-server", "-c", "trap : TERM; echo up; read never", str(folder.valkey / "valkey.sock")]
    theirs = subprocess.Popen(
        command, executable="/bin/sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE, user="daemon"
    )
    assert theirs.stdout is not None
    assert theirs.stdout.readline() == b"up\n"
    assert not Valkey(folder.valkey).end_orphans()
    assert theirs.poll() is None
    theirs.kill()
    theirs.communicate()


def test_a_dead_postmaster_that_nobody_reaped_is_not_taken_for_a_live_one(folder: RunFolder) -> None:
    with Servers(folder, runs=["postgres"]):
        pass
    zombie = subprocess.Popen(["/bin/true"], user=unprivileged_user())
    wait_for(lambda: gone(psutil.Process(zombie.pid)))
    for name in (Path("data") / "postmaster.pid", Path(".s.PGSQL.5432.lock")):
        (folder.postgres / name).write_text(f"{zombie.pid}\n{folder.postgres / 'data'}\n")
    with Servers(folder, runs=["postgres"]):
        assert sql(folder, "SELECT 1") == "1"
    zombie.wait()


def test_another_program_that_got_the_postmasters_number_is_neither_ended_nor_in_the_way(folder: RunFolder) -> None:
    with Servers(folder, runs=["postgres"]):
        pass
    other = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=unprivileged_user())
    (folder.postgres / "data" / "postmaster.pid").write_text(f"{other.pid}\n{folder.postgres / 'data'}\n")
    with Servers(folder, runs=["postgres"]):
        assert sql(folder, "SELECT 1") == "1"
    assert other.poll() is None
    other.communicate()


def test_the_lock_file_of_a_live_postmaster_is_left_alone(folder: RunFolder) -> None:
    with Servers(folder, runs=["postgres"]):
        lock_file = folder.postgres / "data" / "postmaster.pid"
        forget_the_dead(lock_file, "postgres")
        assert lock_file.exists()
