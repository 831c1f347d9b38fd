"""`python -m loadtest.bench contention`: cost of optimistic and pessimistic orders, by the number of clients.

All clients order one product. The strategy `optimistic` reads the row, and writes it only if its version is unchanged;
otherwise it tries again. Its failed updates are counted. The strategy `row-lock` locks the row first, so its orders
wait and no update fails.
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

from django.db import connection
from rich import box
from rich.console import Console
from rich.table import Table

from inventory.strategies.optimistic import Optimistic
from inventory.strategies.row_lock import RowLockStrategy
from loadtest import preparation
from loadtest.arguments import positive, seconds
from loadtest.bench.bursts import Run, machine, measure
from loadtest.bench.client_processes import ClientProcesses
from loadtest.bench.clients import ClientResults
from loadtest.local_shop import LocalShop
from servers import ServerError

CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STRATEGIES = (Optimistic.name, RowLockStrategy.name)
OTHER_CONNECTIONS = 20
"""Number of connections to leave for the shop, for this process and for the superuser."""
EPILOG = """\
The claim under test: with many clients of one row, most updates of an optimistic lock fail. Each failed update has cost
a transaction. A pessimistic lock wastes none, but its clients wait in line. Where the two curves cross is where one
becomes the better choice. Compare ratios within one run. Orders are counted from the tables; a run that lost one has no
figures.

  python -m loadtest.bench contention                       the table, in about three minutes
  python -m loadtest.bench contention --clients 1 16        without and with contention
  python -m loadtest.bench contention --json                one JSON object as the last line
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--clients",
        type=positive,
        nargs="+",
        default=CLIENTS,
        metavar="N",
        help="numbers of clients, each with a connection to Postgres (default: 1 to 256)",
    )
    parser.add_argument("--rounds", type=positive, default=3, help="rounds; the figures are medians (default: 3)")
    parser.add_argument("--seconds", type=seconds, default=2.0, help="time of each measurement (default: 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with LocalShop(), ClientProcesses(os.cpu_count() or 1) as processes, Console(stderr=True).status("") as status:
        require_connections(max(options.clients))
        customers = preparation.create_customers(max(options.clients))
        rows = measure_rounds(processes.run, customers, options, status.update)
    if options.json:
        sizes = {"attempts": Optimistic().attempts, "rounds": options.rounds, "seconds": options.seconds}
        print(json.dumps({"machine": {**machine(), **sizes}, "clients": rows}))  # noqa: T201
    else:
        Console().print(report_table(rows))
    return 0


def require_connections(clients: int) -> None:
    """Check that Postgres accepts a connection for each client.

    Raises:
        ServerError: Postgres accepts fewer connections.
    """
    with connection.cursor() as cursor:
        cursor.execute("SHOW max_connections")
        (most,) = cursor.fetchone()
    if clients + OTHER_CONNECTIONS > int(most):
        raise ServerError(
            f"Postgres accepts {most} connections. {clients} clients need {clients + OTHER_CONNECTIONS}: raise its "
            "max_connections, or measure fewer with --clients."
        )


def measure_rounds(
    run: Run, customers: Sequence[int], options: argparse.Namespace, show: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Measure every number of clients once per round, so that a slow moment of the machine affects all of them.

    Args:
        run: runs the clients.
        customers: user ids, at least as many as the largest number of clients.
        options: `clients`, `rounds` and `seconds` of the command line.
        show: shows the progress.

    Returns:
        A row for each number of clients, with the figures of each strategy.

    Raises:
        RuntimeError: orders were lost.
    """
    cells = list(product(options.clients, STRATEGIES))
    measured: defaultdict[tuple[int, str], list[ClientResults]] = defaultdict(list)
    show("Warming up")
    for strategy in STRATEGIES:
        measure(run, strategy, customers[: options.clients[0]], seconds=options.seconds)
    for number in range(1, options.rounds + 1):
        for clients, strategy in cells:
            show(f"Round {number} of {options.rounds}: {clients} clients, {strategy}")
            measured[clients, strategy].append(measure(run, strategy, customers[:clients], seconds=options.seconds))
    return [
        {
            "clients": clients,
            **{strategy: figures(measured[clients, strategy], options.seconds) for strategy in STRATEGIES},
        }
        for clients in options.clients
    ]


def figures(rounds: Sequence[ClientResults], seconds: float) -> dict[str, float]:
    """Return the figures of one strategy with one number of clients: medians of all rounds.

    `failed_per_order`: failed updates per order placed. `try_again`: share of the answers that told a client to try
    again, because all attempts had failed.
    """
    per_s = [results.placed / seconds for results in rounds]
    waits = [sorted(results.waits_ms) for results in rounds]
    return {
        "orders_per_s": round(median(per_s), 2),
        "least": round(min(per_s), 2),
        "most": round(max(per_s), 2),
        "p50_ms": round(median(each[len(each) // 2] for each in waits), 2),
        "p95_ms": round(median(each[len(each) * 95 // 100] for each in waits), 2),
        "failed_per_order": round(median(each.failed_updates / max(1, each.placed) for each in rounds), 2),
        "try_again": round(median(each.gave_up / max(1, each.placed + each.gave_up) for each in rounds), 3),
    }


def report_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption_justify="left")
    table.title = "All clients order one product"
    table.caption = (
        f"failed: failed updates of {Optimistic.name} per order. try again: answers that said so, after "
        f"{Optimistic().attempts} attempts. wait: median time from a request until its order is placed. Compare ratios "
        "only. --json also has the spread."
    )
    table.add_column("clients", justify="right")
    for heading in ("failed", "try again"):
        table.add_column(heading, justify="right")
    for unit in ("per s", "wait ms"):
        for strategy in STRATEGIES:
            table.add_column(f"{strategy}\n{unit}", justify="right")
    for row in rows:
        ours, theirs = (row[strategy] for strategy in STRATEGIES)
        pairs = [f"{each[name]:,.0f}" for name in ("orders_per_s", "p50_ms") for each in (ours, theirs)]
        table.add_row(str(row["clients"]), f"{ours['failed_per_order']:.2f}", f"{ours['try_again']:.0%}", *pairs)
    return table
