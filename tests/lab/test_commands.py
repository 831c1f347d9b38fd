"""The lab's commands as processes: how they end when they are interrupted or killed, and what they refuse to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from lab.claims import comparisons, servers, witness
from lab.management.commands import compare
from lab.sandbox.sandbox import Sandbox
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

STOP_TIMEOUT = 15.0
"""Seconds that a busy machine may need to end an interrupted command."""


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command as the leader of a process group, as in a terminal."""
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
    there = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings"}
    # Enable Ctrl-C again, in case the tests run as a background job, for which a shell disables it.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command, env=there, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    finally:
        signal.signal(signal.SIGINT, handler)
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def workers(process: psutil.Process) -> list[psutil.Process]:
    """Return the command's worker processes, in which it checks rungs."""
    return [child for child in process.children() if "spawn_main" in " ".join(child.cmdline())]


def at_work(process: psutil.Process) -> bool:
    """Return whether both workers run schedules. A worker that is still importing has no connections."""
    return sum(len(worker.net_connections("unix")) > 2 for worker in workers(process)) == 2


def started_by(process: subprocess.Popen[str], works: Callable[[psutil.Process], object]) -> list[psutil.Process]:
    """Wait until a command works, and return all processes that it has started."""
    command = psutil.Process(process.pid)
    wait_for(lambda: process.poll() is not None or works(command), "the command to work", timeout=60)
    assert process.poll() is None, process.communicate()
    return command.children(recursive=True)


WORKS: dict[str, tuple[tuple[str, ...], Callable[[psutil.Process], object]]] = {
    "processes that start": (("ladder", "--deep", "renewal"), workers),
    "two rungs": (("ladder", "--deep", "renewal", "re-entrant", "fence"), at_work),
    "servers of a worker's own": (
        ("ladder", "--deep", "redlock", "renewal"),
        lambda process: any(worker.children() for worker in workers(process)),
    ),
    "one rung": (("explore", "fence", "--preemptions", "9"), lambda process: process.num_threads() > 3),
    "a benchmark": (("compare", "strategies"), lambda process: len(process.children(recursive=True)) > 4),
}


@pytest.mark.parametrize(("arguments", "works"), WORKS.values(), ids=WORKS)
def test_an_interrupted_command_ends_with_all_that_it_started(
    sandbox: Sandbox, arguments: tuple[str, ...], works: Callable[[psutil.Process], object]
) -> None:
    with running(*arguments) as process:
        started = started_by(process, works)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < STOP_TIMEOUT
    assert (process.returncode, output) == (130, "")
    assert errors.splitlines()[-1] == "Stopped. The results that were stored so far are kept."
    assert "Traceback" not in errors
    wait_for(lambda: not any(map(psutil.Process.is_running, started)), "all that it started to be gone", timeout=5)


DELETES = """
import atexit, signal, sys, time
from lab.claims import interrupts

class Deleted:
    def __del__(self, signal=signal, sleep=time.sleep):
        {deleted}

signal.signal(signal.SIGTERM, lambda *came: sys.exit(7))
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored when the tests run in the background
if {insists}:
    interrupts.insist(signal.{signal}, {error})
"""
"""A program that gets a signal while it deletes an object. {deleted} is the body of `__del__`."""

MEANWHILE = """
interrupts.REPEAT_DELAY = 1.0  # a busy machine needs time for the next lines
Deleted()
print("goes on", flush=True)
time.sleep({rest})
"""

AT_ITS_END = """
sys.kept = Deleted()
atexit.register(signal.raise_signal, signal.{signal})
sys.exit(3)
"""


def deleting(program: str, **blanks: Any) -> subprocess.CompletedProcess[str]:
    program = (DELETES + program).format(**blanks)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("number", "error", "status"), [("SIGTERM", "SystemExit", 7), ("SIGINT", "KeyboardInterrupt", -signal.SIGINT)]
)
@pytest.mark.parametrize("insists", [True, False])
def test_a_signal_during_a_deletion_is_not_lost(number: str, error: str, status: int, *, insists: bool) -> None:
    deleted = f"signal.raise_signal(signal.{number})"
    rest = 60 if insists else 0.1
    done = deleting(MEANWHILE, deleted=deleted, signal=number, error=error, insists=insists, rest=rest)
    assert (done.returncode, done.stdout) == (status if insists else 0, "goes on\n")
    assert ("Exception ignored" in done.stderr) is not insists
    # While a process ends, a signal changes nothing.
    done = deleting(AT_ITS_END, deleted="sleep(0.3)", signal=number, error=error, insists=True)
    assert (done.returncode, done.stderr) == (3, "")


def test_a_killed_command_leaves_no_process(sandbox: Sandbox) -> None:
    with running("ladder", "--deep", "renewal", "re-entrant", "fence") as process:
        started = started_by(process, at_work)
        process.kill()
    wait_for(lambda: not any(map(psutil.Process.is_running, started)), "all that it started to be gone")


STARTS = """
import signal, socket, threading
from lab.claims import interrupts

signal.signal(signal.SIGINT, signal.default_int_handler)
arrived, tells = socket.socketpair()
tells.setblocking(False)
signal.set_wakeup_fd(tells.fileno())
another = threading.Thread(target=threading.Event().wait, daemon=True)
another.start()
try:
    with interrupts.not_interrupted():
        signal.pthread_kill(another.ident, signal.SIGINT)
        arrived.recv(1)
        print("goes on")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_waits_until_all_processes_are_started() -> None:
    done = subprocess.run([sys.executable, "-c", STARTS], cwd=settings.BASE_DIR, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"goes on\ninterrupted\n", b"")


def test_nothing_is_measured_that_could_not_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Use a file as the folder: not even root can create a file in it.
    nowhere = tmp_path / "nowhere"
    nowhere.touch()
    monkeypatch.setattr(servers, "running", lambda: pytest.fail("It begins."))
    monkeypatch.setattr(compare, "compare", lambda *arguments, **options: pytest.fail("It begins."))
    for place, path in (("STRESS", nowhere / "stress.json"), ("FOLDER", nowhere)):
        with monkeypatch.context() as patch:
            patch.setattr(witness, place, path)
            for job in ("--search", "--deep", "--stress"):
                refuses("ladder", job, "renewal")
    call_command("ladder", "renewal")
    assert "renewal" in capsys.readouterr().out
    monkeypatch.setattr(comparisons, "FILE", nowhere / "comparison.json")
    refuses("compare", "locks")


def refuses(*command: str) -> None:
    with pytest.raises(CommandError, match="Give this user write access first") as refused:
        call_command(*command)
    assert refused.value.returncode == 2
