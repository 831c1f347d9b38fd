"""Run the benchmarks whose figures the comparison page shows."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.conf import settings

from lab.sandbox import isolation

OPTIONS: Mapping[str, tuple[str, ...]] = {"strategies": ("--recovery",), "locks": ("--recovery",)}
"""Command-line options of every run of the benchmark, by part of the comparison."""
SHORT: Mapping[str, tuple[str, ...]] = {
    "strategies": ("--rounds", "1", "--seconds", "1"),
    "locks": ("--rounds", "1", "--pairs", "100", "--handoffs", "20", "--seconds", "0.5", "--idle", "1"),
    "segments": ("--rounds", "1", "--seconds", "1"),
    "contention": ("--rounds", "1", "--seconds", "1"),
    "retry-delay": ("--rounds", "1", "--handoffs", "10", "--idle", "1"),
}
"""Additional command-line options of a short run of the benchmark, by part of the comparison."""
STOP_SECONDS = 15.0
"""Seconds for which an interrupted benchmark may stop its servers before it is killed."""


class BenchmarkFailed(RuntimeError):
    """A benchmark has ended with an error. For example, it was killed, or a unit was sold twice."""


def measure(part: str, *, short: bool) -> dict[str, Any]:
    """Run one benchmark on servers of its own. Its progress goes to standard error.

    Args:
        part: the part of the comparison.
        short: whether to run for only some minutes, for orientation.

    Returns:
        The report.

    Raises:
        BenchmarkFailed: the benchmark has ended with an error.
        ServerError: the run folder of its servers cannot be removed.
    """
    run = isolation.folder("compare")
    options = ("--json", *OPTIONS.get(part, ()), *(SHORT[part] if short else ()))
    command = [sys.executable, "-m", "loadtest.bench", part, *options]
    try:
        with subprocess.Popen(
            command, cwd=settings.BASE_DIR, env=isolation.environment(run), stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                output, _ = child.communicate()
            except KeyboardInterrupt:
                # Ctrl-C also reached the benchmark: give it time to stop its servers.
                with suppress(subprocess.TimeoutExpired):
                    child.wait(STOP_SECONDS)
                child.kill()
                raise
    finally:
        isolation.remove(run)
    if child.returncode:
        raise BenchmarkFailed(f"The benchmark of {part} has ended with status {child.returncode}.")
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def machine() -> dict[str, Any]:
    """Return the number of CPUs, the processor and the Python version. They are stored with each measurement."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
