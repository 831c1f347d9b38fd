"""A shop whose parts are killed, a process that plays fault rounds on it, and a summary line."""

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

# With a short lock TTL and a rate limit that no customer reaches, a round takes two seconds instead of twenty.
SIZE = {"WEB_PROCESSES": "2", "WEB_THREADS": "8", "STOCK_LOCK_TTL": "1", "ORDER_RATE": "1000"}

Play = Callable[..., dict[str, Any]]
Survives = Callable[[str, str, int], None]


class RoundPlayer:
    """A process with a running shop that plays fault rounds (see `tests.faults.__main__`). The first round starts it.

    A new process gets a new run folder in `folder`, because a failed round may have damaged the old one.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._log = folder / "rounds.log"
        self._process: subprocess.Popen[str] | None = None

    def play(self, **options: str) -> dict[str, Any]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(options) + "\n")
            process.stdin.flush()
        try:
            line = process.stdout.readline()
        except BaseException:  # Otherwise, a late report would be taken for the next round's report.
            process.kill()
            process.wait()
            self._process = None
            raise
        if not line:
            self.stop()
            pytest.fail(f"{options} gave no report:\n{self._log.read_text()}")
        report: dict[str, Any] = json.loads(line)
        return report

    def stop(self) -> None:
        if self._process:
            try:
                self._process.communicate(timeout=60)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()  # This ends its servers, too.
                self._process.wait()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        folder = tempfile.mkdtemp(prefix="run-", dir=self._folder)
        with self._log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults"],
                cwd=CHECKOUT,
                env={**inherited, **SIZE, **self._environment, "LAB_ENABLED": "0", "RUN_FOLDER": folder},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )


@contextmanager
def round_player(**environment: str) -> Iterator[RoundPlayer]:
    folder = Path(tempfile.mkdtemp(prefix="lu-fault-"))
    folder.chmod(0o711)  # If root runs the tests, the servers' user must be able to enter.
    player = RoundPlayer(folder, environment)
    yield player
    player.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def player() -> Iterator[RoundPlayer]:
    with round_player() as running:
        yield running


@pytest.fixture
def play(player: RoundPlayer, request: pytest.FixtureRequest) -> Play:
    """Play one round. Its report includes the command that repeats it."""
    seed = request.config.getoption("randomly_seed")

    def play(strategy: str, fault: str, number: int = 1) -> dict[str, Any]:
        report = player.play(strategy=strategy, fault=fault, seed=f"{seed} {strategy} {fault} {number}")
        again = f"-k '{request.node.name}' --randomly-seed={seed}"
        return {**report, "again": f'make faults ROUNDS={number} ARGS="{again}"'}

    return play


@pytest.fixture
def survives(play: Play, record_property: Callable[[str, object], None]) -> Survives:
    """Play a round in which a sound strategy must lose nothing."""

    def check(strategy: str, fault: str, number: int) -> None:
        report = play(strategy, fault, number)
        record_property("round", report)
        assert report["losses"] == {}, report["again"]
        # Check that the fault happened in the middle of the burst.
        assert report["faults"] > 0
        assert 0 < report["answered_before"] < report["purchases"]

    return check


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(1, metafunc.config.getoption("rounds") + 1))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write one summary line about all rounds."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    rounds = [value for report in reports for name, value in report.user_properties if name == "round"]
    if not rounds:
        return
    sums = {name: sum(report[name] for report in rounds) for name in ("faults", "orders", "retries")}
    failed = len(terminalreporter.stats.get("failed", []))
    verdict = f"{failed} tests failed" if failed else "nothing lost"
    totals = ", ".join(f"{total} {name}" for name, total in sums.items())
    terminalreporter.write_line(f"faults: {len(rounds)} rounds, {totals}: {verdict}")
