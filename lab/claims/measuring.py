"""Runs the benchmarks whose figures the comparison page shows."""

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
"""The options of every run, by part, where it has any."""
SHORT: Mapping[str, tuple[str, ...]] = {
    "strategies": ("--rounds", "1", "--seconds", "1"),
    "locks": ("--rounds", "1", "--pairs", "100", "--handoffs", "20", "--seconds", "0.5", "--idle", "1"),
    "segments": ("--rounds", "1", "--seconds", "1"),
    "contention": ("--rounds", "1", "--seconds", "1"),
    "retry-delay": ("--rounds", "1", "--handoffs", "10", "--idle", "1"),
}
"""The options of a short run, by part."""
STOP_SECONDS = 15.0
"""Seconds within which an interrupted benchmark must stop what it started, before it is killed."""


class BenchmarkFailed(RuntimeError):
    """A benchmark has ended with an error: it was killed, or something was sold twice."""


def measure(part: str, *, short: bool) -> dict[str, Any]:
    """Run one benchmark on servers of its own. It shows its progress on standard error.

    Args:
        part: the part of the comparison.
        short: run for some minutes, for orientation only.

    Returns:
        The report.

    Raises:
        BenchmarkFailed: it has ended with an error.
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
                # Ctrl-C reached the benchmark too: give it time to stop what it has started.
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
    """Return the number of CPUs, the processor and the Python version, to store them with a measurement."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
