"""`manage.py servers`: output, exit status, and servers named by `DATABASE_URL` and `REDIS_URL`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers import RunFolder
from servers.folder import CHECKOUT
from servers.postgres import DATABASE, USER
from servers.valkey import Valkey
from tests.servers.support import server_processes

pytestmark = pytest.mark.slow

SECRET_KEY = "only-for-tests-" + "x" * 50
GIVEN = {
    "DATABASE_URL": "postgres://eve:hunter2@127.0.0.1:1/shop?password=hunter2",
    "REDIS_URL": "redis://:hunter2@127.0.0.1:1/0",
    "SECRET_KEY": SECRET_KEY,
}
"""Addresses that keep `manage.py servers` from starting Postgres and Valkey."""
RUNS_VALKEY = """
import signal, sys
from pathlib import Path
from servers import RunFolder, Servers
with Servers(RunFolder(Path(sys.argv[1])), runs=["valkey"]):
    print("ready", flush=True)
    signal.pause()
"""


def manage(folder: RunFolder, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run `manage.py servers` on a run folder. Only `environment` can set `DATABASE_URL` and `REDIS_URL`."""
    settings = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    settings |= {"RUN_FOLDER": str(folder.path), "DJANGO_SETTINGS_MODULE": "shop.runtime.settings"} | environment
    command = [sys.executable, "manage.py", "servers", *arguments]
    return subprocess.run(command, cwd=CHECKOUT, env=settings, capture_output=True, text=True, check=False)


def test_start_status_and_stop(folder: RunFolder) -> None:
    down = manage(folder, "status", "--json")
    assert down.returncode == 1
    assert [server["up"] for server in json.loads(down.stdout).values()] == [False, False]
    assert "manage.py servers start" in down.stderr

    started = manage(folder, "start")
    assert started.returncode == 0, started.stderr
    assert f"Started postgres and valkey in {folder.path}" in started.stdout
    again = manage(folder, "start")
    assert (again.returncode, f"Already running in {folder.path}" in again.stdout) == (0, True)

    shown = manage(folder, "status")
    assert (shown.returncode, shown.stdout.count("up, version")) == (0, 2)
    servers = json.loads(manage(folder, "status", "--json").stdout)
    assert set(servers) == {"postgres", "valkey"}
    assert all(set(server) == {"up", "address", "version", "pid"} for server in servers.values())
    assert all(server["up"] for server in servers.values())
    address = f"postgres://{USER}@/{DATABASE}?host={folder.postgres}"
    for options, up in (("", True), ("&options=-c%20no_such_setting%3D1", False)):
        shown = manage(folder, "status", "--json", DATABASE_URL=address + options, SECRET_KEY=SECRET_KEY)
        assert json.loads(shown.stdout)["postgres"]["up"] is up, shown.stderr

    stopped = manage(folder, "stop")
    assert (stopped.returncode, server_processes(folder)) == (0, [])
    assert f"Stopped the servers in {folder.path}." in stopped.stdout
    nothing = manage(folder, "stop", "--delete")
    assert (nothing.returncode, "No servers run" in nothing.stdout, folder.path.exists()) == (0, True, False)


def test_stop_names_a_program_that_ran_the_servers_for_itself(folder: RunFolder, tmp_path: Path) -> None:
    demo = tmp_path / "demo.py"
    demo.write_text(RUNS_VALKEY)
    command = [sys.executable, str(demo), str(folder.path)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline() == "ready\n"
            stopped = manage(folder, "stop")
            assert stopped.returncode == 0, stopped.stderr
            program.wait(30)
        finally:
            program.kill()
    assert f"Stopped `{demo} {folder.path}`, which ran the servers in {folder.path}." in stopped.stdout
    assert server_processes(folder) == []


def test_only_postgres_is_started_beside_a_given_redis(folder: RunFolder, other_folder: RunFolder) -> None:
    other_folder.create()
    outside = Valkey(other_folder.valkey)
    outside.start()
    given = {"REDIS_URL": outside.url, "SECRET_KEY": SECRET_KEY}
    started = manage(folder, "start", **given)
    assert started.returncode == 0, started.stderr
    assert f"Started postgres in {folder.path}" in started.stdout
    assert "REDIS_URL" in started.stdout
    assert json.loads(manage(folder, "status", "--json", **given).stdout)["valkey"]["pid"] == outside.child.pid
    assert manage(folder, "stop", **given).returncode == 0
    assert outside.child.alive
    outside.stop()


def test_only_valkey_is_started_beside_a_given_database(folder: RunFolder) -> None:
    given = {"DATABASE_URL": "postgres://eve:hunter2@127.0.0.1:1/shop", "SECRET_KEY": SECRET_KEY}
    started = manage(folder, "start", **given)
    assert f"Started valkey in {folder.path}" in started.stdout
    assert "postgres://***@127.0.0.1:1/shop" in started.stdout
    shown = manage(folder, "status", **given)
    manage(folder, "stop", **given)
    for done in (started, shown):
        assert (done.returncode, "No answer from postgres." in done.stderr) == (1, True)
        assert not any(secret in done.stdout + done.stderr for secret in ("hunter2", "eve"))


def test_nothing_is_started_when_both_are_given(folder: RunFolder) -> None:
    started = manage(folder, "start", **GIVEN)
    assert (started.returncode, "Nothing to start" in started.stdout) == (1, True)
    assert "No answer from postgres and valkey." in started.stderr
    assert "hunter2" not in started.stdout + started.stderr
    assert not folder.path.exists()


@pytest.mark.parametrize(("named", "deletes"), [((), True), (("RUN_FOLDER=/somewhere/of/mine",), False)])
def test_make_clean_keeps_a_run_folder_named_by_the_user(named: tuple[str, ...], deletes: bool) -> None:
    make = ["/usr/bin/env", "-i", f"PATH={os.environ['PATH']}", "make", "--dry-run", "clean", *named]
    would = subprocess.run(make, capture_output=True, text=True, check=True)
    assert ("servers stop --delete" in would.stdout) is deletes
    assert ("/somewhere/of/mine" in would.stdout) is not deletes


@pytest.mark.parametrize("arguments", [("start",), ("stop", "--delete")])
def test_an_unusable_folder_is_an_error_without_traceback(folder: RunFolder, arguments: tuple[str, ...]) -> None:
    folder.path.mkdir()
    (folder.path / "thesis.tex").touch()
    refused = manage(folder, *arguments, SECRET_KEY=SECRET_KEY)
    assert refused.returncode == 1
    assert refused.stderr.startswith("CommandError: ")
    assert "in use for something else" in refused.stderr
    assert "RUN_FOLDER" in refused.stderr
    assert "Traceback" not in refused.stderr
