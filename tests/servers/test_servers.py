"""Real servers: durable, on sockets only, several side by side, and shared by those who come later."""

import re
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


def test_both_answer_inside_the_block_and_nothing_is_left_after_it(folder: RunFolder) -> None:
    with Servers(folder) as servers:
        assert servers.owned
        assert sql(folder, "SHOW server_version").startswith("18.")
        assert valkey_client(folder).info("server")["valkey_version"].startswith("9.")
        assert sql(folder, "SELECT current_database()") == "last_unit"
    assert server_processes(folder) == []
    assert sockets(folder) == []
    assert (servers.owned, servers.postgres, servers.valkey) == (False, None, None)


def test_what_is_answered_is_on_disk(folder: RunFolder) -> None:
    with Servers(folder):
        for name in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
            assert sql(folder, f"SHOW {name}") == "on", name
        client = valkey_client(folder)
        assert client.config_get("append*") | {"appenddirname": "", "appendfilename": ""} == {
            "appendonly": "yes",
            "appendfsync": "always",
            "appenddirname": "",
            "appendfilename": "",
        }


def test_there_is_no_way_in_but_the_sockets_and_those_are_closed_to_others(folder: RunFolder) -> None:
    with Servers(folder):
        assert sql(folder, "SHOW listen_addresses") == ""
        assert valkey_client(folder).config_get("port") == {"port": "0"}
        assert len(sockets(folder)) == 2
        for socket in sockets(folder):
            assert socket.stat().st_mode & 0o777 == 0o700
            assert socket.parent.stat().st_mode & 0o777 == 0o700


def test_text_sorts_and_folds_the_same_whatever_locales_the_system_has(folder: RunFolder) -> None:
    with Servers(folder, runs=["postgres"]):
        assert sql(folder, "SHOW server_encoding") == "UTF8"
        assert sql(folder, "SELECT upper('æøå') || lower('ÄÖÜ')") == "ÆØÅäöü"
        assert sql(folder, "SHOW timezone") == "UTC"


def test_odd_variables_of_the_environment_change_nothing(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"PGHOST": "nowhere.invalid", "PGHOSTADDR": "192.0.2.1", "PGPORT": "1", "PGUSER": "eve", "PGDATABASE": "none"}
    odd |= {"PGDATA": "/nowhere", "PGOPTIONS": "-c fsync=off -c nonsense=1", "PGSSLMODE": "verify-full"}
    odd |= {"PGREQUIREAUTH": "scram-sha-256", "PGTARGETSESSIONATTRS": "standby", "PGCLIENTENCODING": "LATIN1"}
    odd |= {"LC_ALL": "xx_XX.nonsense", "LANG": "xx", "TZ": "Mars/Olympus"}
    for name, value in odd.items():
        monkeypatch.setenv(name, value)
    with Servers(folder):
        assert sql(folder, "SHOW fsync") == "on"
        assert sql(folder, "SHOW lc_messages") == "C"


def test_a_path_with_odd_letters_works(outer: Path) -> None:
    folder = RunFolder(outer / "50% of it's ü")
    with Servers(folder):
        assert sql(folder, "SELECT 1") == "1"
        assert valkey_client(folder).ping()
    assert server_processes(folder) == []


def test_two_folders_run_side_by_side_and_share_nothing(folder: RunFolder, other_folder: RunFolder) -> None:
    with Servers(folder) as first, Servers(other_folder) as second:
        assert first.owned
        assert second.owned
        sql(folder, "CREATE TABLE mine ()")
        valkey_client(folder).set("mine", "1")
        assert sql(other_folder, "SELECT to_regclass('mine')") == "None"
        assert valkey_client(other_folder).get("mine") is None
        second.stop()
        assert sql(folder, "SELECT to_regclass('mine')") == "mine"


def test_data_is_there_again_after_a_stop(folder: RunFolder) -> None:
    with Servers(folder):
        sql(folder, "CREATE TABLE kept AS SELECT 7 AS n")
        valkey_client(folder).set("kept", "7")
    with Servers(folder):
        assert sql(folder, "SELECT n FROM kept") == "7"
        assert valkey_client(folder).get("kept") == "7"


def test_a_database_that_was_dropped_is_made_again(folder: RunFolder) -> None:
    with Servers(folder, runs=["postgres"]) as servers:
        assert servers.postgres is not None
        with psycopg.connect(host=str(folder.postgres_socket), user="postgres", autocommit=True) as connection:
            connection.execute("DROP DATABASE last_unit")
        servers.postgres.stop()
        servers.postgres.start()
        assert sql(folder, "SELECT current_database()") == "last_unit"


def test_servers_that_another_process_runs_are_used_and_left_alone(folder: RunFolder) -> None:
    parent = start_parent(folder)
    with Servers(folder) as servers:
        assert not servers.owned
        assert servers.postgres is None
        assert servers.valkey is None
        assert sql(folder, "SELECT 1") == "1"
    assert sql(folder, "SELECT 1") == "1"
    assert valkey_client(folder).ping()
    parent.terminate()
    parent.wait()


def test_servers_that_we_run_already_are_used_and_left_alone(folder: RunFolder) -> None:
    with Servers(folder) as first:
        with Servers(folder) as second:
            assert not second.owned
        assert first.owned
        assert sql(folder, "SELECT 1") == "1"


def test_one_of_the_two_can_be_run_alone(folder: RunFolder) -> None:
    with Servers(folder, runs=["valkey"]) as servers:
        assert servers.postgres is None
        assert valkey_client(folder).ping()
        assert len(server_processes(folder)) == 1


def test_a_server_that_the_owner_does_not_run_is_a_clear_error_at_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servers.servers.PATIENCE", 3600.0)
    with Servers(folder, runs=["valkey"]), pytest.raises(ServerError, match=r"runs valkey there.*servers stop"):
        Servers(folder).start()


def test_an_owner_whose_servers_never_answer_is_a_clear_error_in_the_end(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servers.servers.PATIENCE", 0.1)
    folder.create()
    assert folder.claim.take(["postgres", "valkey"])
    with pytest.raises(ServerError, match=r"postgres and valkey should answer.*servers stop"):
        Servers(RunFolder(folder.path)).start()


def test_one_that_does_not_start_is_reported_with_its_log_and_takes_the_other_with_it(folder: RunFolder) -> None:
    with Servers(folder):
        pass
    settings = folder.postgres / "data" / "postgresql.conf"
    settings.write_text("nonsense\n")
    with pytest.raises(ServerError, match=r"(?s)postgres ended with status 1.*syntax error.*postgresql\.conf"):
        Servers(folder).start()
    assert server_processes(folder) == []
    assert folder.claim.owner() is None
    settings.write_text("")
    with Servers(folder):
        assert sql(folder, "SELECT 1") == "1"


def test_clients_that_stay_do_not_keep_postgres_from_stopping_in_good_order(folder: RunFolder) -> None:
    folder.create()
    postgres = Postgres(folder.postgres)
    postgres.start()
    with psycopg.connect(host=str(folder.postgres_socket), user="postgres", dbname="last_unit") as client:
        postgres.stop()
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            client.execute("SELECT 1")
    assert postgres.child.returncode == 0


def test_data_that_cannot_be_made_is_reported_with_the_reason_and_nothing_is_kept_of_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.create()
    monkeypatch.setattr("servers.postgres.INITDB", ("--no-such-option",))
    with pytest.raises(ServerError, match=r"(?s)initdb ended with status 1\..*no-such-option"):
        Postgres(folder.postgres).start()
    assert not (folder.postgres / "data").exists()


def test_what_our_environment_holds_is_not_handed_to_the_servers(folder: RunFolder) -> None:
    for server in (Postgres(folder.postgres), Valkey(folder.valkey)):
        assert server.child.env is not None
        assert set(server.child.env) == {"PATH", "LC_ALL"}


def test_a_first_start_that_failed_half_way_does_not_spoil_the_next(folder: RunFolder) -> None:
    folder.create()
    (folder.postgres / "unfinished").mkdir(parents=True)
    (folder.postgres / "unfinished" / "PG_VERSION").write_text("18\n")
    with Servers(folder, runs=["postgres"]):
        assert sql(folder, "SELECT 1") == "1"


def test_valkey_takes_further_arguments_which_win_and_several_fit_in_one_folder(folder: RunFolder) -> None:
    folder.create()
    first = Valkey(folder.path / "one", extra=["--appendfsync", "everysec"])
    second = Valkey(folder.path / "two")
    for server in (first, second):
        server.start()
    modes = [
        redis.Redis.from_url(server.url, decode_responses=True).config_get("appendfsync") for server in (first, second)
    ]
    assert modes == [{"appendfsync": "everysec"}, {"appendfsync": "always"}]
    first.stop()
    second.stop()


def test_a_valkey_that_does_not_start_is_reported_with_its_log(folder: RunFolder) -> None:
    folder.create()
    with pytest.raises(ServerError, match=r"(?s)valkey ended with status 1.*no-such-option"):
        Valkey(folder.valkey, extra=["--no-such-option", "1"]).start()


def test_every_process_of_postgres_can_be_told_from_another_ones(folder: RunFolder, other_folder: RunFolder) -> None:
    mine, other = Postgres(folder.postgres).cluster, Postgres(other_folder.postgres).cluster
    assert mine != other
    with Servers(folder, runs=["postgres"]):
        titles = [" ".join(parts) for parts in of_each(psutil.Process.cmdline, server_processes(folder))]
        assert len(titles) > 5
        assert all(re.search(rf"cluster_name={mine}|postgres: {mine}: ", title) for title in titles)
