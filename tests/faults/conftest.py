"""The shop whose parts are killed, the rounds that are played on it, and the line that sums them up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.loadtest.conftest import CHECKOUT

# What a dead process has left behind ends sooner than in a shop of a normal size, and nobody is told to slow down: a
# round lasts two seconds, not twenty.
SIZE = {"WEB_PROCESSES": "2", "WEB_THREADS": "8", "STOCK_LOCK_TTL": "1", "ORDER_RATE": "1000"}

Play = Callable[..., dict[str, Any]]
Survives = Callable[[str, str, int], None]


class Shop:
    """A running shop, which plays the rounds that it is told to; see `tests.faults.__main__`.

    Args:
        folder: where its run folders are, one after the other: a round that fails may leave it unfit for another.
        environment: further settings.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._log = folder / "rounds.log"
        self._process: subprocess.Popen[str] | None = None

    def play(self, **what: str) -> dict[str, Any]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(what) + "\n")
            process.stdin.flush()
        try:
            answer = process.stdout.readline()
        except BaseException:  # out of time: the answer that comes later would be taken for that of the next round
            process.kill()
            process.wait()
            self._process = None
            raise
        if not answer:
            self.stop()
            pytest.fail(f"{what} came to no verdict:\n{self._log.read_text()}")
        seen: dict[str, Any] = json.loads(answer)
        return seen

    def stop(self) -> None:
        if self._process:
            try:
                self._process.communicate(timeout=60)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()  # its servers end with it
                self._process.wait()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        folder = tempfile.mkdtemp(prefix="run-", dir=self._folder)
        with self._log.open("w") as complaints:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults"],
                cwd=CHECKOUT,
                env={**inherited, **SIZE, **self._environment, "LAB_ENABLED": "0", "RUN_FOLDER": folder},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )


@contextmanager
def running_shop(**environment: str) -> Iterator[Shop]:
    """Starts with the first round, and serves all; each has a sale of its own."""
    folder = Path(tempfile.mkdtemp(prefix="lu-fault-"))
    folder.chmod(0o711)  # as root the servers run as somebody else, who has to pass through
    running = Shop(folder, environment)
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with running_shop() as running:
        yield running


@pytest.fixture
def play(shop: Shop, request: pytest.FixtureRequest) -> Play:
    """Play a round by a strategy, a fault and a number; what was seen also says how to play it again."""
    seed = request.config.getoption("randomly_seed")

    def play(strategy: str, fault: str, number: int = 1) -> dict[str, Any]:
        seen = shop.play(strategy=strategy, fault=fault, seed=f"{seed} {strategy} {fault} {number}")
        again = f"-k '{request.node.name}' --randomly-seed={seed}"
        return {**seen, "again": f'make faults ROUNDS={number} ARGS="{again}"'}

    return play


@pytest.fixture
def survives(play: Play, record_property: Callable[[str, object], None]) -> Survives:
    """Play a round in which a sound strategy loses nothing."""

    def check(strategy: str, fault: str, number: int) -> None:
        seen = play(strategy, fault, number)
        record_property("round", seen)
        assert seen["losses"] == {}, seen["again"]
        # The fault came, and in the middle of the burst.
        assert seen["faults"] > 0
        assert 0 < seen["answered_before"] < seen["wishes"]

    return check


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(1, metafunc.config.getoption("rounds") + 1))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What all rounds together have shown, in a line."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    rounds = [value for report in reports for name, value in report.user_properties if name == "round"]
    if not rounds:
        return
    sums = {name: sum(seen[name] for seen in rounds) for name in ("faults", "orders", "retries")}
    failed = len(terminalreporter.stats.get("failed", []))
    verdict = f"{failed} tests failed" if failed else "nothing lost"
    said = ", ".join(f"{total} {name}" for name, total in sums.items())
    terminalreporter.write_line(f"faults: {len(rounds)} rounds, {said}: {verdict}")
