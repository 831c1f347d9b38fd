"""`python -m loadtest.bench retry-delay`: gain and cost of a shorter pause between two attempts of a Redlock.

A `Redlock` does not notify its waiters. A waiter tries all nodes again after a pause, the retry delay. For comparison,
the run also measures two locks that notify their waiters.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.arguments import positive, seconds
from loadtest.bench.addresses import VALKEYS, Addresses, running_servers
from loadtest.bench.lock_measurements import MAX_HOLD, handoffs, idle_commands
from loadtest.bench.lock_sessions import TTL

REDLOCK = "redlock"
OTHERS = ("redis", "zookeeper")
DELAYS_MS = (5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0)
LONGEST_HOLD = 1.2
"""Longest time for which the lock is held, as a multiple of the retry delay. So a release may come at any point of a
waiter's average pause."""
EPILOG = """\
The claim under test: other locks hand over many times sooner than a Redlock. How many depends on its retry delay. The
table shows at which one Redlock is as fast, and how many commands its idle waiters then send. Compare ratios within one
run.

  python -m loadtest.bench retry-delay                      the table, in less than two minutes
  python -m loadtest.bench retry-delay --delays 10 100      two delays only
  python -m loadtest.bench retry-delay --json               one JSON object as the last line
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--delays",
        type=milliseconds,
        nargs="+",
        default=DELAYS_MS,
        metavar="MS",
        help="retry delays in milliseconds (default: 5 to 400)",
    )
    parser.add_argument("--rounds", type=positive, default=2, help="rounds (default: 2)")
    parser.add_argument("--handoffs", type=positive, default=20, help="hand-overs in a round (default: 20)")
    parser.add_argument(
        "--idle", type=seconds, default=2.0, help="time to count an idle waiter's commands (default: 2)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def milliseconds(text: str) -> float:
    """Parse a retry delay in milliseconds: more than 0, at most 1000."""
    number = float(text)
    if not 0 < number <= 1000:
        raise ValueError
    return number


def run(options: argparse.Namespace) -> int:
    if options.idle > TTL - 1:
        raise SystemExit(f"--idle: at most {TTL - 1:g} seconds, since the TTL is {TTL:g}.")
    with running_servers((REDLOCK, *OTHERS)) as at, Console(stderr=True).status("") as status:
        rows = measure_rounds(at, options, status.update)
    if options.json:
        sizes = {"nodes": VALKEYS, "rounds": options.rounds, "handoffs": options.handoffs, "seconds": options.idle}
        print(json.dumps({"machine": {"cpus": os.cpu_count(), **sizes}, "locks": rows}))  # noqa: T201
    else:
        Console().print(report_table(rows))
    return 0


def measure_rounds(at: Addresses, options: argparse.Namespace, show: Callable[[str], object]) -> list[dict[str, Any]]:
    """Measure hand-overs with every retry delay and lock once per round, and idle waiters once.

    In this way, a slow moment of the machine affects all hand-overs alike.

    Args:
        at: the running servers.
        options: `delays`, `rounds`, `handoffs` and `idle` of the command line.
        show: shows the progress.

    Returns:
        A row for each retry delay, from the shortest to the longest, and one for each of the other locks. The
        percentiles are those of all rounds together.
    """
    contenders: list[tuple[str, float | None]] = [(REDLOCK, delay) for delay in sorted(set(options.delays))]
    contenders += [(name, None) for name in OTHERS]
    waits: defaultdict[tuple[str, float | None], list[float]] = defaultdict(list)
    for number in range(1, options.rounds + 1):
        for name, delay in contenders:
            show(f"Round {number} of {options.rounds}: {_title(name, delay)}")
            longest = max(MAX_HOLD, LONGEST_HOLD * (delay or 0) / 1000)
            lock = f"{_title(name, delay)} {number}"
            waits[name, delay] += handoffs(name, lock, at, options.handoffs, longest=longest, **_arguments(delay))
    rows: list[dict[str, Any]] = []
    for name, delay in contenders:
        show(f"Idle waiter: {_title(name, delay)}")
        measured = figures(waits[name, delay])
        measured["idle_commands_per_s"] = idle_commands(name, at, options.idle, **_arguments(delay)) or 0.0
        rows.append({"lock": name, "retry_delay_ms": delay, **measured})
    return rows


def figures(waits: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds for hand-over times in seconds."""
    p99 = quantiles(waits, n=100, method="inclusive")[98] if len(waits) > 1 else waits[0]
    return {"handoff_p50_ms": round(median(waits) * 1000, 3), "handoff_p99_ms": round(p99 * 1000, 3)}


def _title(name: str, delay: float | None) -> str:
    return name if delay is None else f"{name} {delay:g} ms"


def _arguments(delay: float | None) -> dict[str, float]:
    return {} if delay is None else {"retry_delay": delay / 1000}


def report_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption_justify="left")
    table.title = f"Redlock on {VALKEYS} nodes by its retry delay, and two locks whose waiters are told"
    table.caption = (
        "hand-over: from just before a release until a waiter in another process holds the lock. idle: commands of a "
        "waiter, to all nodes together. Compare ratios only."
    )
    table.add_column("", no_wrap=True)
    for heading in ("hand-over p50 ms", "p99 ms", "idle commands/s"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = (row["handoff_p50_ms"], row["handoff_p99_ms"], row["idle_commands_per_s"])
        table.add_row(_title(row["lock"], row["retry_delay_ms"]), *(f"{figure:,.5g}" for figure in cells))
    return table
