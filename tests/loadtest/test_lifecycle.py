"""Whole shops start and stop, leave no process behind, and report obstacles."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadtest.demo import PROGRESSION
from loadtest.local_shop import free_port
from servers import RunFolder
from tests.loadtest.conftest import CHECKOUT, Manage
from tests.servers.support import of_each, processes_in, sockets
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

# Enable Ctrl-C again: a shell makes background jobs ignore it, and the tests may be such a job.
WITH_CTRL_C = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[1:]
runpy.run_path("manage.py", run_name="__main__")
"""


@pytest.fixture
def own_folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="lu-life-"))
    yield path
    RunFolder(path).delete()


def start(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WITH_CTRL_C, "manage.py", *arguments],
        cwd=CHECKOUT,
        env={**environment, "RUN_FOLDER": str(folder), "COLUMNS": "100", "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def commands_in(folder: Path) -> str:
    """Return the command lines of a run folder's processes; an empty string if there are none."""
    return "\n".join(" ".join(parts) for parts in of_each(psutil.Process.cmdline, processes_in(folder)))


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["Ctrl-C", "SIGTERM", "SIGKILL"]
)
def test_an_ended_rush_leaves_no_process(environment: dict[str, str], own_folder: Path, number: signal.Signals) -> None:
    rush = start(environment, own_folder, "rush", "--stock", "20000", "--clients", "20")
    wait_for(lambda: "locust" in commands_in(own_folder), timeout=60)
    os.kill(rush.pid, number)
    output, _ = rush.communicate(timeout=60)

    wait_for(lambda: commands_in(own_folder) == "", timeout=30)
    if number != signal.SIGKILL:
        assert sockets(RunFolder(own_folder)) == []
        assert rush.returncode == 2
        assert "Traceback" not in output
        assert output.rstrip().endswith("Stopped: there is no verdict.")


def test_the_demo_shows_its_table_and_serves_until_ctrl_c(environment: dict[str, str], own_folder: Path) -> None:
    port = free_port()
    demo = start(environment, own_folder, "demo", "--port", str(port))
    lines: list[str] = []
    assert demo.stdout is not None
    for line in demo.stdout:
        lines.append(line)
        if "another burst" in line:
            break
    running = commands_in(own_folder)
    assert all(part in running for part in ("shop.runtime.web", "worker", "beat", "postgres", "valkey"))
    os.kill(demo.pid, signal.SIGINT)
    demo.communicate(timeout=60)

    table = [line.split() for line in lines if line.strip().endswith(("conserved", "BROKEN"))]
    table = table[-len(PROGRESSION) :]
    flawed = ("compute-and-overwrite", "subtract-in-sql")
    sound = ("redis-lock", "optimistic", "guarded-update", "group-commit", "lua")
    assert {row[0]: row[-1] for row in table} == dict.fromkeys(flawed, "BROKEN") | dict.fromkeys(sound, "conserved")
    assert all(row[1] == "100" and row[3] == "0" for row in table if row[-1] == "conserved")
    output = "".join(lines)
    for part in ("postgres   up, version 18", f"http://127.0.0.1:{port}/admin/", "password", "tables of the lab"):
        assert part in output
    assert demo.returncode == 0
    wait_for(lambda: commands_in(own_folder) == "", timeout=30)
    assert sockets(RunFolder(own_folder)) == []


def test_a_given_server_that_does_not_answer_and_a_busy_port_are_reported(manage: Manage) -> None:
    for command in ("demo", "rush"):
        done = manage(command, REDIS_URL="redis://127.0.0.1:1/0", SECRET_KEY="s" * 50)
        assert done.returncode == 2
        assert "No answer from valkey." in done.stderr
        assert "Traceback" not in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for command in ("demo", "serve"):
            done = manage(command, "--port", str(port))
            assert done.returncode != 0
            assert f"Port {port} is in use." in done.stderr
            assert "--port" in done.stderr
