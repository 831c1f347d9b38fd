"""Helpers of the server tests: start scripts that run servers, and inspect processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil
import psycopg
import redis

from servers import RunFolder
from servers.folder import CHECKOUT
from servers.postgres import Postgres, connect

Answer = TypeVar("Answer")
PARENT = """
from servers import Servers
with Servers(RunFolder(path)):
    print("running", flush=True)
    signal.pause()
"""
# Simulate a system whose kernel does not tell children that their parent died.
PARENT_WITHOUT_DEATH_SIGNAL = (
    "import servers.process; servers.process._request_death_signal = lambda number: None" + PARENT
)


# The clients of the servers take half a second to import, and few scripts need them. So import only what is used.
# Enable Ctrl-C again, in case the tests run as a background job, for which a shell disables it.
PROLOGUE = """
import importlib, os, signal, sys, types
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
modules = {"Child": "process", "RunFolder": "folder", "ServerError": "errors", "Servers": "servers"}
package = sys.modules["servers"] = types.ModuleType("servers")
package.__path__ = ["servers"]
def find(name):
    if name not in modules:
        raise AttributeError(name)  # so that `from servers import` looks for a module of this name
    return getattr(importlib.import_module(f"servers.{modules[name]}"), name)
package.__getattr__ = find
from servers import RunFolder
path = Path(*sys.argv[1:2])
"""


def run_python(code: str, *args: object) -> "subprocess.Popen[str]":
    """Run a script in a new session, with its output in a pipe. In the script, `path` is the first argument."""
    command = [sys.executable, "-c", PROLOGUE + code, *map(str, args)]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def start_parent(folder: RunFolder, code: str = PARENT) -> "subprocess.Popen[str]":
    """Start a process that runs the servers of the folder. Return once the servers respond."""
    parent = run_python(code, folder.path)
    assert parent.stdout.readline() == "running\n"
    return parent


def server_processes(folder: RunFolder) -> list[psutil.Process]:
    return processes_naming(f"{folder.path}/", Postgres(folder.postgres).cluster)


def processes_naming(*marks: object) -> list[psutil.Process]:
    """Return the live processes that have one of the marks in their command line."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(mark) in part for part in process.cmdline() for mark in marks):
                found.append(process)
    return found


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return the live processes that have the path of a run folder in their command line or environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            named = str(folder) in " ".join(process.cmdline()) or process.environ().get("RUN_FOLDER") == str(folder)
            if named and process.pid != os.getpid() and not gone(process):
                found.append(process)
    return found


def of_each(ask: Callable[[psutil.Process], Answer], processes: Iterable[psutil.Process]) -> list[Answer]:
    """Call `ask` with each process, and skip processes that have ended in the meantime."""
    answers = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            answers.append(ask(process))
    return answers


def kill(processes: Iterable[psutil.Process]) -> None:
    of_each(psutil.Process.kill, processes)


def gone(process: psutil.Process) -> bool:
    """Return whether the process has ended, even if its parent has not reaped it."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def sockets(folder: RunFolder) -> list[Path]:
    return [path for path in folder.path.rglob("*") if path.is_socket()]


def sql(folder: RunFolder, statement: str) -> str:
    """Run a statement and return the first value of its result, as text."""
    with connect(folder.postgres, database="last_unit") as connection:
        cursor: psycopg.Cursor[tuple[object, ...]] = connection.execute(statement)  # type: ignore[arg-type]
        row = cursor.fetchone() if cursor.description else None
        return str(row[0]) if row else ""


def valkey_client(folder: RunFolder) -> "redis.Redis":
    return redis.Redis.from_url(folder.valkey_url, decode_responses=True)


def write_one(folder: RunFolder) -> None:
    sql(folder, "CREATE TABLE kept AS SELECT 7 AS n")
    valkey_client(folder).set("kept", "7")


def read_one(folder: RunFolder) -> tuple[str, str]:
    return sql(folder, "SELECT n FROM kept"), valkey_client(folder).get("kept")
