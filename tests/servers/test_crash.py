"""Crashes: servers stop with their parent, confirmed data survives, and orphans are ended."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from servers import RunFolder, ServerError, Servers
from servers.folder import unprivileged_user
from servers.orphans import remove_stale_lock_file
from servers.postgres import Postgres
from servers.valkey import Valkey
from tests.servers.support import (
    PARENT_WITHOUT_DEATH_SIGNAL,
    gone,
    kill,
    read_one,
    server_processes,
    sockets,
    sql,
    start_parent,
    write_one,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

# This statement never waits, so its backend never notices that the postmaster has ended.
BUSY = "DO $$ BEGIN LOOP END LOOP; END $$"


def assert_data_is_kept(folder: RunFolder) -> None:
    with Servers(folder) as servers:
        assert servers.owned
        assert read_one(folder) == ("7", "7")


@pytest.fixture
def busy_backend(folder: RunFolder) -> Iterator[tuple[Postgres, psutil.Process]]:
    """A Postgres whose postmaster was killed, and a backend that keeps running."""
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
    wait_for(lambda: server_processes(folder) == [backend])  # Idle processes end with the postmaster.
    yield postgres, backend
    client.close()
    postgres.stop()


@pytest.mark.parametrize(
    ("send", "number"),
    [(os.killpg, signal.SIGINT), (os.kill, signal.SIGINT), (os.kill, signal.SIGTERM), (os.kill, signal.SIGKILL)],
    ids=["Ctrl-C", "SIGINT", "SIGTERM", "SIGKILL"],
)
def test_servers_stop_cleanly_with_their_parent(
    folder: RunFolder, send: Callable[[int, int], None], number: signal.Signals
) -> None:
    parent = start_parent(folder)
    write_one(folder)
    assert len(server_processes(folder)) > 2
    send(parent.pid, number)
    assert parent.wait() == -number
    wait_for(lambda: server_processes(folder) == [])
    assert sockets(folder) == []
    assert "database system is shut down" in (folder.path / "postgres.log").read_text()
    assert "ready to exit" in (folder.path / "valkey.log").read_text()
    assert_data_is_kept(folder)


def test_confirmed_data_survives_when_everything_is_killed(folder: RunFolder) -> None:
    parent = start_parent(folder)
    write_one(folder)
    kill([*server_processes(folder), psutil.Process(parent.pid)])
    parent.wait()
    wait_for(lambda: server_processes(folder) == [])
    assert len(sockets(folder)) == 2
    assert_data_is_kept(folder)
    assert "was not properly shut down" in (folder.path / "postgres.log").read_text()


@pytest.mark.parametrize("suspended", [False, True])
def test_orphans_are_ended(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, suspended: bool) -> None:
    monkeypatch.setattr("servers.orphans.GRACE", 0.5 if suspended else 5.0)
    parent = start_parent(folder, PARENT_WITHOUT_DEATH_SIGNAL)
    write_one(folder)
    orphans = server_processes(folder)
    parent.kill()
    parent.wait()
    assert read_one(folder) == ("7", "7")
    for orphan in orphans if suspended else ():
        orphan.suspend()
    assert_data_is_kept(folder)
    assert all(map(gone, orphans))


def test_postgres_restarts_although_a_busy_backend_is_left(folder: RunFolder, busy_backend: Any) -> None:
    """Negative control: without ending orphans, it does not restart."""
    postgres, backend = busy_backend
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Postgres, "end_orphans", lambda self: False)
        with pytest.raises(ServerError, match="pre-existing shared memory block"):
            postgres.start()
    assert not gone(backend)
    postgres.start()
    assert gone(backend)
    assert sql(folder, "SELECT 1") == "1"


def test_other_processes_are_not_orphans(folder: RunFolder, other_folder: RunFolder) -> None:
    cluster, socket = Postgres(folder.postgres).cluster, str(folder.valkey / "valkey.sock")
    bystanders = [
        ("valkey-cli", "-s", socket),
        ("tail", str(folder.path / "postgres.log"), cluster),
        ("psql", f"--cluster_name={cluster}"),
        ("valkey-server", str(other_folder.valkey / "valkey.sock")),
        ("postgres", f"--cluster_name={Postgres(other_folder.postgres).cluster}"),
    ]
    if os.geteuid() == 0:
        bystanders.append(("valkey-server", socket))  # This looks like a server, but another user runs it.
    processes = []
    for command, *more in bystanders:
        process = subprocess.Popen(
            [command, "-c", "trap : TERM; echo up; read never", *more],
            executable="/bin/sh",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            user="daemon" if len(processes) == 5 else None,
        )
        assert process.stdout.readline() == b"up\n"
        processes.append(process)
    folder.create()
    for server in (Postgres(folder.postgres), Valkey(folder.valkey)):
        server.folder.mkdir()
        assert not server.end_orphans()
    for process in processes:
        assert process.poll() is None
        process.kill()
        process.communicate()


@pytest.mark.parametrize("program", ["/bin/true", "/bin/cat"], ids=["zombie", "unrelated program"])
def test_a_lock_file_with_a_reused_process_id_is_no_obstacle(folder: RunFolder, program: str) -> None:
    with Servers(folder, runs=["postgres"]):
        lock_file = folder.postgres / "data" / "postmaster.pid"
        remove_stale_lock_file(lock_file, "postgres")
        assert lock_file.exists()  # The lock file of a live postmaster is kept.
    other = subprocess.Popen([program], stdin=subprocess.PIPE, user=unprivileged_user())
    wait_for(lambda: program == "/bin/cat" or gone(psutil.Process(other.pid)))
    for name in (Path("data") / "postmaster.pid", Path(".s.PGSQL.5432.lock")):
        (folder.postgres / name).write_text(f"{other.pid}\n{folder.postgres / 'data'}\n")
    with Servers(folder, runs=["postgres"]):
        assert sql(folder, "SELECT 1") == "1"
    assert other.poll() == (None if program == "/bin/cat" else 0)
    other.communicate()
