"""`manage.py servers`: what an operator types, reads and scripts."""

import json
import os
import subprocess
import sys

import pytest

from servers import RunFolder
from servers.postgres import DATABASE, USER
from servers.valkey import Valkey
from tests.servers.support import CHECKOUT, server_processes

pytestmark = pytest.mark.slow

SECRET_KEY = "only-for-tests-" + "x" * 50


def manage(folder: RunFolder, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a folder, with no server given from outside but those in `environment`."""
    settings = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    settings |= {"RUN_FOLDER": str(folder.path), "DJANGO_SETTINGS_MODULE": "shop.runtime.settings"} | environment
    command = [sys.executable, "manage.py", "servers", *arguments]
    return subprocess.run(command, cwd=CHECKOUT, env=settings, capture_output=True, text=True, check=False)


def test_start_status_and_stop(folder: RunFolder) -> None:
    started = manage(folder, "start")
    assert started.returncode == 0, started.stderr
    assert f"Started postgres and valkey in {folder.path}" in started.stdout
    assert started.stdout.count("(our own)") == 2

    again = manage(folder, "start")
    assert again.returncode == 0
    assert f"Already running in {folder.path}" in again.stdout

    shown = manage(folder, "status")
    assert shown.returncode == 0
    assert shown.stdout.count("up, version") == 2

    told = manage(folder, "status", "--json")
    assert told.returncode == 0
    servers = json.loads(told.stdout)
    assert set(servers) == {"postgres", "valkey"}
    assert set(servers["postgres"]) == set(servers["valkey"]) == {"up", "address", "version", "pid"}
    assert all(server["up"] for server in servers.values())

    stopped = manage(folder, "stop")
    assert stopped.returncode == 0
    assert "Stopped" in stopped.stdout
    assert server_processes(folder) == []

    nothing = manage(folder, "stop")
    assert nothing.returncode == 0
    assert "No servers run" in nothing.stdout


def test_status_exits_with_1_and_says_what_to_do_when_they_are_down(folder: RunFolder) -> None:
    down = manage(folder, "status", "--json")
    assert down.returncode == 1
    assert [server["up"] for server in json.loads(down.stdout).values()] == [False, False]
    assert "manage.py servers start" in down.stderr


def test_stop_with_delete_removes_the_folder(folder: RunFolder) -> None:
    manage(folder, "start")
    stopped = manage(folder, "stop", "--delete")
    assert stopped.returncode == 0
    assert not folder.path.exists()


def test_a_given_redis_is_used_and_only_postgres_is_started(folder: RunFolder, other_folder: RunFolder) -> None:
    other_folder.create()
    outside = Valkey(other_folder.valkey)
    outside.start()
    given = {"REDIS_URL": outside.url, "SECRET_KEY": SECRET_KEY}
    started = manage(folder, "start", **given)
    assert started.returncode == 0, started.stderr
    assert f"Started postgres in {folder.path}" in started.stdout
    assert "(given by REDIS_URL)" in started.stdout
    assert json.loads(manage(folder, "status", "--json", **given).stdout)["valkey"]["pid"] == outside.child.pid
    assert manage(folder, "stop", **given).returncode == 0
    assert outside.child.alive
    outside.stop()


def test_a_given_database_is_used_and_only_valkey_is_started(folder: RunFolder) -> None:
    given = {"DATABASE_URL": "postgres://eve:hunter2@127.0.0.1:1/shop", "SECRET_KEY": SECRET_KEY}
    started = manage(folder, "start", **given)
    assert f"Started valkey in {folder.path}" in started.stdout
    assert (started.returncode, "No answer from postgres." in started.stderr) == (1, True)
    assert "postgres://***@127.0.0.1:1/shop  (given by DATABASE_URL)" in started.stdout
    shown = manage(folder, "status", **given)
    assert shown.returncode == 1
    assert "No answer from postgres." in shown.stderr
    manage(folder, "stop", **given)
    for said in (started, shown):
        assert "hunter2" not in said.stdout + said.stderr
        assert "eve" not in said.stdout + said.stderr


def test_a_given_database_is_asked_with_all_that_its_address_says(folder: RunFolder) -> None:
    assert manage(folder, "start").returncode == 0
    address = f"postgres://{USER}@/{DATABASE}?host={folder.postgres}"
    for options, up in (("", True), ("&options=-c%20no_such_setting%3D1", False)):
        shown = manage(folder, "status", "--json", DATABASE_URL=address + options, SECRET_KEY=SECRET_KEY)
        assert json.loads(shown.stdout)["postgres"]["up"] is up, shown.stderr
    manage(folder, "stop")


def test_with_both_given_nothing_is_started_and_no_credentials_are_shown(folder: RunFolder) -> None:
    given = {
        "DATABASE_URL": "postgres://eve:hunter2@127.0.0.1:1/shop?password=hunter2",
        "REDIS_URL": "redis://:hunter2@127.0.0.1:1/0?password=hunter2",
        "SECRET_KEY": SECRET_KEY,
    }
    started = manage(folder, "start", **given)
    assert (started.returncode, "Nothing to start" in started.stdout) == (1, True)
    assert "No answer from postgres and valkey." in started.stderr
    assert "hunter2" not in started.stdout + started.stderr
    assert not folder.path.exists()


@pytest.mark.parametrize(("named", "deletes"), [((), True), (("RUN_FOLDER=/somewhere/of/mine",), False)])
def test_make_clean_deletes_no_run_folder_that_somebody_has_named(named: tuple[str, ...], deletes: bool) -> None:
    make = ["/usr/bin/env", "-i", f"PATH={os.environ['PATH']}", "make", "--dry-run", "clean", *named]
    would = subprocess.run(make, capture_output=True, text=True, check=True)
    assert ("servers stop --delete" in would.stdout) is deletes
    assert ("/somewhere/of/mine stays" in would.stdout) is not deletes


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_a_folder_that_cannot_be_used_is_an_error_and_no_traceback(folder: RunFolder, verb: str) -> None:
    folder.path.mkdir()
    (folder.path / "thesis.tex").touch()
    options = ["--delete"] if verb == "stop" else []
    refused = manage(folder, verb, *options, SECRET_KEY=SECRET_KEY)
    assert refused.returncode == 1
    assert refused.stderr.startswith("CommandError: ")
    assert "in use for something else" in refused.stderr
    assert "RUN_FOLDER" in refused.stderr
    assert "Traceback" not in refused.stderr
