"""`python -m loadtest.bench strategies`: orders per second of each strategy over HTTP.

For comparison, the benchmark also measures the order endpoint with redis-py's lock, and two endpoints that place no
order. The plain endpoint follows the manuals of Django and its packages. The empty endpoint is the order endpoint, but
places no order.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console

from inventory.strategies import registry
from loadtest import preparation
from loadtest.arguments import positive, seconds
from loadtest.bench import growth, recovery, references, saving
from loadtest.bench.cpu import HostSteal
from loadtest.bench.strategy_measurements import PATHS, commands_per_order, measure, summarize_rounds
from loadtest.bench.strategy_report import json_report, machine, print_report
from loadtest.local_shop import LocalShop

CUSTOMERS = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=positive, default=32, help="concurrent connections (default: 32)")
    parser.add_argument("--rounds", type=positive, default=5, help="rounds; the table shows medians (default: 5)")
    parser.add_argument("--seconds", type=seconds, default=3.0, help="time of each measurement (default: 3)")
    parser.add_argument("--only", nargs="+", choices=registry.NAMES, help="strategies to measure (default: all)")
    parser.add_argument(
        "--recovery",
        action="store_true",
        help="add to the JSON how long a sale is blocked after a process was killed in the middle of an order",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure every strategy and both references once per round.

    In this way, a slow moment of the machine, or of its disk, affects all these figures alike.
    """
    console = Console(stderr=True)
    steal = HostSteal()
    names = (*PATHS, *(options.only or registry.NAMES))
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    alone: list[dict[str, float]] = []
    with (
        LocalShop(application="loadtest.bench.wsgi:application", background=True) as shop,
        console.status("") as status,
    ):
        customers = preparation.create_customers(CUSTOMERS)
        for number in range(options.rounds + 1):
            for name in names:
                status.update(f"Round {number} of {options.rounds} (0 warms up): {name}")
                measured = measure(name, shop, customers, clients=options.clients, seconds=options.seconds)
                if number:
                    rounds[name].append(measured)
            status.update(f"Round {number} of {options.rounds}: one client alone, and pgbench on one hot row")
            reference = references.measure(customers=customers, clients=options.clients, seconds=options.seconds)
            if number:
                alone.append(reference)
        cost = growth.measure(
            shop, customers, rounds=options.rounds, seconds=options.seconds, say=lambda text: status.update(text)
        )
    # These measurements save queued orders themselves, so they need a shop without worker and beat.
    with LocalShop(), console.status("Statements and Redis commands per order") as status:
        costs = {name: commands_per_order(name, customers) for name in names if name in registry.NAMES}
        if options.recovery:
            for name, row in costs.items():
                status.update(f"Killed process: {name}")
                row["recovery_s"] = recovery.measure(name, customers[:2], options.rounds)
        status.update("Saving queued orders, and COPY of the same rows")
        saved = saving.measure(customers=customers, rounds=options.rounds)
    report = {name: {**summarize_rounds(measured), **costs.get(name, {})} for name, measured in rounds.items()}
    compared = references.summarize_rounds(alone)
    if options.json:
        whole = {
            "machine": {**machine(options), "steal": round(steal.share(), 3)},
            **json_report(report),
            **saved,
            **compared,
            "cost_growth": cost,
        }
        print(json.dumps(whole))  # noqa: T201
    else:
        print_report(report, options, saved=saved, alone=compared, cost=cost)
    return 0 if all(row["conserved"] for row in report.values()) else 1
