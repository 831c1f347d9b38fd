"""`python -m loadtest.bench segments`: orders per second by number of segments and by work in the critical section.

A segment is a part of the stock with a lock of its own. An order holds this lock while it subtracts, does its work, is
saved and commits. The work is a pause that simulates a call to another service. A second measurement sells out a small
stock. It counts the orders that had to hold all locks, because no single segment had enough units left.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from inventory.strategies.segmented_lock import SegmentedLock
from loadtest import preparation
from loadtest.arguments import positive, seconds
from loadtest.bench.bursts import Run, machine, measure
from loadtest.bench.client_processes import ClientProcesses
from loadtest.bench.clients import ClientResults
from loadtest.local_shop import LocalShop

COUNTS = (1, 2, 5, 10, 20)
WORK_MS = (0.0, 1.0, 5.0, 20.0)
CLIENTS = 64
"""Number of clients: several per segment, even with the largest number of segments."""
SMALL_STOCK = 100
SMALL_QUANTITY = 3
"""Units per order in the measurement that sells `SMALL_STOCK` out. Article 002, the source of the claim about five
segments, uses such a small stock."""
SELL_OUT_SECONDS = 60.0
"""Maximum number of seconds to sell out the small stock. The usual time is far shorter."""
EPILOG = """\
The claim under test: a stock in five segments, each with a lock, sells five times as many orders as with one lock. A
lock lets one critical section run at a time, so the gain needs work to wait for, processors that have time, and units
in every segment. Compare ratios within one run. Orders are counted from the tables; a run that lost one has no figures.

  python -m loadtest.bench segments                               the table, in about three minutes
  python -m loadtest.bench segments --segments 1 5 --work 5       the claim alone
  python -m loadtest.bench segments --json                        one JSON object as the last line
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--segments",
        type=positive,
        nargs="+",
        default=COUNTS,
        metavar="N",
        help="numbers of segments (default: 1 to 20)",
    )
    parser.add_argument(
        "--work",
        type=milliseconds,
        nargs="+",
        default=WORK_MS,
        metavar="MS",
        help="milliseconds of work of each order while it holds its lock (default: 0 1 5 20)",
    )
    parser.add_argument("--clients", type=positive, default=CLIENTS, help=f"ordering clients (default: {CLIENTS})")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds; the figures are medians (default: 3)")
    parser.add_argument("--seconds", type=seconds, default=2.0, help="time of each measurement (default: 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def milliseconds(text: str) -> float:
    """Parse a duration in milliseconds, from 0 to 1000."""
    number = float(text)
    if not 0 <= number <= 1000:
        raise ValueError
    return number


def run(options: argparse.Namespace) -> int:
    with LocalShop(), ClientProcesses(os.cpu_count() or 1) as processes, Console(stderr=True).status("") as status:
        customers = preparation.create_customers(options.clients)
        rows = measure_rounds(processes.run, customers, options, status.update)
    if options.json:
        sizes = {"clients": options.clients, "rounds": options.rounds, "seconds": options.seconds}
        sold_out = {"stock": SMALL_STOCK, "quantity": SMALL_QUANTITY}
        print(json.dumps({"machine": {**machine(), **sizes, **sold_out}, "segments": rows}))  # noqa: T201
    else:
        Console().print(report_table(rows))
    return 0


def measure_rounds(
    run: Run, customers: Sequence[int], options: argparse.Namespace, show: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Measure every number of segments once per round, so that a slow moment of the machine affects all of them.

    Args:
        run: runs the clients.
        customers: user ids; each user is one client.
        options: `segments`, `work`, `rounds` and `seconds` of the command line.
        show: shows the progress.

    Returns:
        A row for each number of segments: `work` has the figures for each amount of work. `held_all` is the number of
        orders that held the locks of all segments while the small stock was sold.

    Raises:
        RuntimeError: orders were lost.
    """

    def sell(segments: int, seconds: float, **plan: Any) -> ClientResults:
        return measure(run, SegmentedLock.name, customers, seconds=seconds, segments=segments, **plan)

    cells = list(product(options.work, options.segments))
    measured: defaultdict[tuple[float, int], list[ClientResults]] = defaultdict(list)
    sold_out: defaultdict[int, list[int]] = defaultdict(list)
    show("Warming up")
    sell(max(options.segments), options.seconds)
    for number in range(1, options.rounds + 1):
        of = f"Round {number} of {options.rounds}:"
        for work_ms, segments in cells:
            show(f"{of} {segments} segments, {work_ms:g} ms of work")
            measured[work_ms, segments].append(sell(segments, options.seconds, work=work_ms / 1000))
        for segments in options.segments:
            show(f"{of} {segments} segments, until they are sold out")
            results = sell(segments, SELL_OUT_SECONDS, units=SMALL_STOCK, quantity=SMALL_QUANTITY)
            sold_out[segments].append(results.held_all)
    return [
        {
            "segments": segments,
            "held_all": median(sold_out[segments]),
            "work": [
                {"work_ms": work_ms, **figures(measured[work_ms, segments], options.seconds)}
                for work_ms in options.work
            ],
        }
        for segments in options.segments
    ]


def figures(rounds: Sequence[ClientResults], seconds: float) -> dict[str, float]:
    """Return figures of one number of segments with one amount of work. `cpu` is the busy share of the processors."""
    per_s = [results.placed / seconds for results in rounds]
    return {
        "orders_per_s": round(median(per_s), 2),
        "least": round(min(per_s), 2),
        "most": round(max(per_s), 2),
        "cpu": round(median(results.cpu for results in rounds), 2),
    }


def report_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a line for each number of segments: orders per second, and their ratio to the first line."""
    orders = SMALL_STOCK // SMALL_QUANTITY
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption_justify="left")
    table.title = "Orders per second by work under the lock"
    table.caption = (
        f"x: times those of the first line. all locks: orders that had to hold all of them while {SMALL_STOCK} units "
        f"were sold in orders of {SMALL_QUANTITY}. Compare ratios only. --json also has the spread and the load of the "
        "processors."
    )
    table.add_column("segments", justify="right")
    for cell in rows[0]["work"]:
        table.add_column(f"{cell['work_ms']:g} ms", justify="right")
    table.add_column("all locks", justify="right")
    for row in rows:
        pairs = [
            (cell["orders_per_s"], first["orders_per_s"])
            for cell, first in zip(row["work"], rows[0]["work"], strict=True)
        ]
        cells = [f"{per_s:,.0f} {per_s / first if first else 0:5.1f} x" for per_s, first in pairs]
        table.add_row(str(row["segments"]), *cells, f"{row['held_all']:g} of {orders}")
    return table
