"""What the tests of the servers share: waiting, looking at processes, and parents to kill."""

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
from servers.postgres import Postgres, connect

Answer = TypeVar("Answer")
CHECKOUT = Path(__file__).resolve().parents[2]
# Runs the servers of a folder, says which processes they are, and waits for a signal.
PARENT = """
import signal, sys
from pathlib import Path
from servers import RunFolder, Servers
with Servers(RunFolder(Path(sys.argv[1]))) as servers:
    print("running", flush=True)
    signal.pause()
"""
# The same where the kernel does not tell children that their parent died.
PARENT_WITHOUT_DEATH_SIGNAL = "import servers.process; servers.process._end_with_parent = lambda number: None" + PARENT


def run_python(code: str, *args: object) -> "subprocess.Popen[str]":
    """Run a script that may import the project; its output is a pipe, and it leads a session of its own."""
    # A shell starts what it puts in the background, the tests maybe, with Ctrl-C ignored.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", listening + code, *map(str, args)]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def start_parent(folder: RunFolder, code: str = PARENT) -> "subprocess.Popen[str]":
    """Start a process that runs the servers of the folder, and return once they answer."""
    parent = run_python(code, folder.path)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "running\n"
    return parent


def server_processes(folder: RunFolder) -> list[psutil.Process]:
    """Every process of the folder's Postgres and Valkey."""
    return processes_naming(f"{folder.path}/", Postgres(folder.postgres).cluster)


def processes_naming(*marks: object) -> list[psutil.Process]:
    """The live processes that have one of the marks in their command line."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(mark) in part for part in process.cmdline() for mark in marks):
                found.append(process)
    return found


def of_each(ask: Callable[[psutil.Process], Answer], processes: Iterable[psutil.Process]) -> list[Answer]:
    """What those say that have not ended since they were listed: a backend comes and goes with its client."""
    answers = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            answers.append(ask(process))
    return answers


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill those that have not ended since they were listed."""
    of_each(psutil.Process.kill, processes)


def gone(process: psutil.Process) -> bool:
    """Whether it ended, be it that nobody has reaped it yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def sockets(folder: RunFolder) -> list[Path]:
    """The sockets that are left in the folder."""
    return [path for path in folder.path.rglob("*") if path.is_socket()]


def sql(folder: RunFolder, statement: str) -> str:
    """The first value that a statement returns from our database, as text."""
    with connect(folder.postgres, database="last_unit") as connection:
        cursor: psycopg.Cursor[tuple[object, ...]] = connection.execute(statement)  # type: ignore[arg-type]
        row = cursor.fetchone() if cursor.description else None
        return str(row[0]) if row else ""


def valkey_client(folder: RunFolder) -> "redis.Redis":
    return redis.Redis.from_url(folder.valkey_url, decode_responses=True)
