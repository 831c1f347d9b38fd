"""Running servers: durable, on Unix sockets only, several side by side, and shared with later processes."""

import re
import subprocess
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from servers import RunFolder, ServerError, Servers
from servers.postgres import Postgres
from servers.valkey import Valkey
from tests.servers.support import of_each, server_processes, sockets, sql, start_parent, valkey_client

pytestmark = pytest.mark.slow


def test_both_answer_and_are_private_and_durable(folder: RunFolder, other_folder: RunFolder) -> None:
    cluster = Postgres(folder.postgres).cluster
    assert cluster != Postgres(other_folder.postgres).cluster
    with Servers(folder) as servers:
        assert servers.owned
        assert sql(folder, "SHOW server_version").startswith("18.")
        assert sql(folder, "SELECT current_database()") == "last_unit"
        for name in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
            assert sql(folder, f"SHOW {name}") == "on", name
        client = valkey_client(folder)
        assert client.info("server")["valkey_version"].startswith("9.")
        expected = {"appendonly": "yes", "appendfsync": "always", "port": "0"}
        assert {name: client.config_get(name)[name] for name in expected} == expected

        assert sql(folder, "SHOW listen_addresses") == ""
        assert len(sockets(folder)) == 2
        for path in sockets(folder):
            assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o700, 0o700)
        for server in (servers.postgres, servers.valkey):
            assert set(server.child.env or ()) == {"PATH", "LC_ALL"}

        # Text must sort and change case equally on every system, whatever locales are installed.
        assert sql(folder, "SHOW server_encoding") == "UTF8"
        assert sql(folder, "SELECT upper('æøå') || lower('ÄÖÜ')") == "ÆØÅäöü"
        assert sql(folder, "SHOW timezone") == "UTC"

        # Every process title names its cluster, so that two clusters can be told apart.
        titles = [" ".join(parts) for parts in of_each(psutil.Process.cmdline, server_processes(folder))]
        titles = [title for title in titles if "valkey" not in title]
        assert len(titles) > 5
        assert all(re.search(rf"cluster_name={cluster}|postgres: {cluster}: ", title) for title in titles)
    assert (server_processes(folder), sockets(folder)) == ([], [])
    assert (servers.owned, servers.postgres, servers.valkey) == (False, None, None)


def test_odd_variables_and_an_odd_path_change_nothing(outer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"PGHOST": "nowhere.invalid", "PGHOSTADDR": "192.0.2.1", "PGPORT": "1", "PGUSER": "eve", "PGDATABASE": "none"}
    odd |= {"PGDATA": "/nowhere", "PGOPTIONS": "-c fsync=off -c nonsense=1", "PGSSLMODE": "verify-full"}
    odd |= {"PGREQUIREAUTH": "scram-sha-256", "PGTARGETSESSIONATTRS": "standby", "PGCLIENTENCODING": "LATIN1"}
    odd |= {"LC_ALL": "xx_XX.nonsense", "LANG": "xx", "TZ": "Mars/Olympus"}
    for name, value in odd.items():
        monkeypatch.setenv(name, value)
    folder = RunFolder(outer / "50% of it's ü")
    with Servers(folder):
        assert sql(folder, "SHOW fsync") == "on"
        assert sql(folder, "SHOW lc_messages") == "C"
        assert valkey_client(folder).ping()
    assert server_processes(folder) == []


def test_a_dropped_database_is_created_again(folder: RunFolder) -> None:
    with Servers(folder, runs=["postgres"]) as servers:
        with psycopg.connect(host=str(folder.postgres_socket), user="postgres", autocommit=True) as connection:
            connection.execute("DROP DATABASE last_unit")
        servers.postgres.stop()
        servers.postgres.start()
        assert sql(folder, "SELECT current_database()") == "last_unit"


@pytest.mark.parametrize("ours", [True, False], ids=["this process", "another process"])
def test_running_servers_are_shared(folder: RunFolder, ours: bool) -> None:
    with Servers(folder) if ours else start_parent(folder) as owner:
        with Servers(folder) as second:
            assert (second.owned, second.postgres, second.valkey) == (False, None, None)
        assert sql(folder, "SELECT 1") == "1"
        assert valkey_client(folder).ping()
        if isinstance(owner, subprocess.Popen):
            owner.terminate()


def test_one_server_alone(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servers.servers.START_TIMEOUT", 3600.0)
    with Servers(folder, runs=["valkey"]) as servers:
        assert servers.postgres is None
        assert valkey_client(folder).ping()
        assert len(server_processes(folder)) == 1
        with pytest.raises(ServerError, match=r"runs valkey there.*servers stop"):
            Servers(folder).start()


def test_an_owner_whose_servers_never_answer_is_an_error(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servers.servers.START_TIMEOUT", 0.1)
    folder.create()
    assert folder.ownership.take(["postgres", "valkey"])
    with pytest.raises(ServerError, match=r"postgres and valkey should answer.*servers stop"):
        Servers(RunFolder(folder.path)).start()


def test_connected_clients_do_not_delay_the_stop(folder: RunFolder) -> None:
    folder.create()
    postgres = Postgres(folder.postgres)
    postgres.start()
    with psycopg.connect(host=str(folder.postgres_socket), user="postgres", dbname="last_unit") as client:
        postgres.stop()
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            client.execute("SELECT 1")
    assert postgres.child.returncode == 0


def test_a_failed_initdb_leaves_no_data(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.create()
    (folder.postgres / "unfinished").mkdir(parents=True)
    (folder.postgres / "unfinished" / "PG_VERSION").write_text("18\n")
    monkeypatch.setattr("servers.postgres.INITDB", ("--no-such-option",))
    with pytest.raises(ServerError, match=r"(?s)initdb ended with status 1\..*no-such-option"):
        Postgres(folder.postgres).start()
    assert not (folder.postgres / "data").exists()
    monkeypatch.undo()
    with Servers(folder, runs=["postgres"]):
        assert sql(folder, "SELECT 1") == "1"


def test_valkeys_with_extra_arguments_share_a_folder(folder: RunFolder) -> None:
    folder.create()
    servers = [Valkey(folder.path / "one", extra=["--appendfsync", "everysec"]), Valkey(folder.path / "two")]
    for server in servers:
        server.start()
    clients = [redis.Redis.from_url(server.url, decode_responses=True) for server in servers]
    assert [client.config_get("appendfsync")["appendfsync"] for client in clients] == ["everysec", "always"]
    for server in servers:
        server.stop()
    with pytest.raises(ServerError, match=r"(?s)valkey ended with status 1.*no-such-option"):
        Valkey(folder.valkey, extra=["--no-such-option", "1"]).start()
