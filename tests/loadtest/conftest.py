"""Whole shops under load, in a run folder of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadtest.local_shop import free_port
from servers import RunFolder, Servers
from tests.waiting import wait_for

CHECKOUT = Path(__file__).resolve().parent.parent.parent
Manage = Callable[..., subprocess.CompletedProcess[str]]
Verdicts = tuple[int, dict[str, dict[str, Any]]]
"""The exit status of `manage.py rush`, and its verdicts by strategy or rung."""


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A run folder. Its servers run for the whole session, because they are slow to start."""
    path = Path(tempfile.mkdtemp(prefix="lu-load-"))
    with Servers(RunFolder(path)):
        yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def environment(folder: Path) -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if name not in {"DJANGO_SETTINGS_MODULE", "LAB_ENABLED"}}
    return {**given, "RUN_FOLDER": str(folder)}


@pytest.fixture(scope="session")
def manage(environment: dict[str, str]) -> Manage:
    """Return a function that runs a management command until it ends."""
    return partial(python, environment, "manage.py")


def python(environment: Mapping[str, str], *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder of the project until it ends."""
    command, given = [sys.executable, *arguments], {**environment, **more}
    return subprocess.run(command, cwd=CHECKOUT, env=given, capture_output=True, text=True, timeout=280)


def bench(environment: Mapping[str, str], *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark until it ends."""
    return python(environment, "-m", "loadtest.bench", *arguments, **more)


def report_of(done: subprocess.CompletedProcess[str], status: int = 0) -> dict[str, Any]:
    """Return the JSON report of a benchmark, its last line. Its exit status must be the given one."""
    assert done.returncode == status, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.fixture(scope="module")
def shop(environment: dict[str, str]) -> Iterator[str]:
    """A shop with the lab and without a worker. Waiting for a lock ends after two TTLs."""
    port = free_port()
    command = [sys.executable, "manage.py", "serve", "--port", str(port)]
    subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], cwd=CHECKOUT, env=environment, check=True)
    with running(command, {**environment, "LAB_ENABLED": "1", "STOCK_LOCK_TTL": "2", "STOCK_LOCK_WAIT": "4"}):
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: status(f"{url}/health/") == 200, timeout=30)
        yield url


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, cwd=CHECKOUT, env=environment, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def status(url: str) -> int:
    """Return the HTTP status of a URL; 0 without a response."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status
    except OSError:
        return 0


def rush_all(manage: Manage, *arguments: str) -> Verdicts:
    """Run one burst per strategy or rung, all in one command: starting a command takes longer than a burst."""
    done = manage("rush", *arguments, "--json")
    assert done.returncode < 2, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert results, done.stderr
    return done.returncode, {result["strategy"]: result for result in results}
