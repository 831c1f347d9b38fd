"""Starting and stopping whole shops: nothing is left behind, and a busy port is a clear message."""

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

from servers import RunFolder
from tests.loadtest.conftest import CHECKOUT, Manage
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def own_folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="lu-life-"))
    yield path
    RunFolder(path).delete()


# A shell starts what it puts in the background, the tests maybe, with Ctrl-C ignored.
LISTENING = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[1:]
runpy.run_path("manage.py", run_name="__main__")
"""


def start(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LISTENING, "manage.py", *arguments],
        cwd=CHECKOUT,
        env={**environment, "RUN_FOLDER": str(folder), "COLUMNS": "100", "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes_of(folder: Path) -> list[str]:
    """What runs with this run folder, by command line or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            told = " ".join(process.cmdline())
            if (
                process.status() != psutil.STATUS_ZOMBIE
                and process.pid != os.getpid()
                and (str(folder) in told or process.environ().get("RUN_FOLDER") == str(folder))
            ):
                found.append(f"{process.pid} {told}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def sockets_of(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_socket()]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_ending_a_rush_in_the_middle_leaves_no_process_behind(
    environment: dict[str, str], own_folder: Path, sign: signal.Signals
) -> None:
    rush = start(environment, own_folder, "rush", "--stock", "20000", "--clients", "20")
    wait_for(lambda: any("locust" in line for line in processes_of(own_folder)), timeout=60)

    os.kill(rush.pid, sign)
    said, _ = rush.communicate(timeout=60)

    wait_for(lambda: processes_of(own_folder) == [], timeout=30)
    if sign == signal.SIGINT:
        assert sockets_of(own_folder) == []
        assert rush.returncode == 2
        assert "Traceback" not in said
        assert said.rstrip().endswith("Stopped: there is no verdict.")


def test_the_demo_shows_its_table_keeps_serving_and_ctrl_c_ends_everything(
    environment: dict[str, str], own_folder: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    demo = start(environment, own_folder, "demo", "--port", str(port))
    said: list[str] = []
    assert demo.stdout is not None
    for line in demo.stdout:
        said.append(line)
        if "another burst" in line:
            break
    running = " ".join(processes_of(own_folder))
    assert all(part in running for part in ("granian", "worker", "beat", "postgres", "valkey"))

    os.kill(demo.pid, signal.SIGINT)
    demo.communicate(timeout=60)

    table = [line.split() for line in said if line.strip().endswith(("conserved", "BROKEN"))][-6:]
    verdicts = {row[0]: row[-1] for row in table}
    assert verdicts == {
        "compute-and-overwrite": "BROKEN",
        "subtract-in-sql": "BROKEN",
        "redis-lock": "conserved",
        "optimistic": "conserved",
        "guarded-update": "conserved",
        "lua": "conserved",
    }
    assert all(row[1] == "100" and row[3] == "0" for row in table if row[-1] == "conserved")
    assert any(line.startswith("postgres  up, version 18") and "(our own)" in line for line in said)
    assert any(f"http://127.0.0.1:{port}/admin/" in line for line in said)
    assert any("password" in line for line in said)
    assert any(line.startswith("The flawed ones sell from tables of the lab") for line in said)
    assert demo.returncode == 0
    wait_for(lambda: processes_of(own_folder) == [], timeout=30)
    assert sockets_of(own_folder) == []


@pytest.mark.parametrize("command", ["demo", "rush"])
def test_a_given_server_that_does_not_answer_is_named_before_anything_is_started(manage: Manage, command: str) -> None:
    given = {"REDIS_URL": "redis://127.0.0.1:1/0", "SECRET_KEY": "s" * 50}
    done = manage(command, **given)
    assert done.returncode == 2
    assert "No answer from valkey." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["demo", "serve"])
def test_a_busy_port_is_named_with_what_to_do(manage: Manage, command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = manage(command, "--port", str(port))

    assert done.returncode != 0
    assert f"Port {port} is in use." in done.stderr
    assert "choose another with --port" in done.stderr
