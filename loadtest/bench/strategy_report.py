"""The report of the strategy benchmark: as JSON and as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from inventory.strategies import registry
from loadtest.bench import bursts
from loadtest.bench.references import MAX_CLIENTS
from loadtest.bench.strategy_measurements import EMPTY, PATHS, PEER, PLAIN, STOCK

LEGEND = (
    "plain: what the manuals of Django and its packages lead to, without an order. empty: the order endpoint without "
    "an order. peer: redis-py's Lock in the same view. CPU: milliseconds a request, of all processes of the shop and "
    "its servers. Load, shop and servers share this machine: compare ratios only. --json also has the spread."
)

Report = dict[str, dict[str, Any]]


def json_report(report: Report) -> dict[str, Any]:
    def row(name: str, unit: str) -> dict[str, Any]:
        figures = {key: round(value, 2) if isinstance(value, float) else value for key, value in report[name].items()}
        return {unit: figures.pop("per_s"), **figures}

    return {
        PLAIN: row(PLAIN, "requests_per_s"),
        EMPTY: row(EMPTY, "requests_per_s"),
        PEER: row(PEER, "orders_per_s"),
        "strategies": {name: row(name, "orders_per_s") for name in report if name not in PATHS},
    }


def machine(options: argparse.Namespace) -> dict[str, Any]:
    return {
        **bursts.machine(),
        "clients": options.clients,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "stock": STOCK,
    }


def print_report(
    report: Report,
    options: argparse.Namespace,
    *,
    saved: dict[str, float],
    alone: dict[str, float],
    cost: list[dict[str, Any]],
) -> None:
    Console().print(report_table(report, options))
    Console().print(cost_table(cost))
    Console().print(
        f"queued orders saved: {saved['queue_saved_per_s']:,.0f} per s; COPY of the same rows: "
        f"{saved['copy_per_s']:,.0f} (ratio {saved['queue_saved_per_s'] / saved['copy_per_s']:.2f})\n"
        + "\n".join(reference_lines(report, alone, options.clients))
    )


def reference_lines(report: Report, references: dict[str, float], clients: int) -> Iterator[str]:
    """Yield lines that compare orders over HTTP with the reference figures. Strategies that lost orders are skipped."""
    alone, hot = references["redis_lock_alone_per_s"], references["pgbench_hot_row_per_s"]
    sound = {name: float(row["per_s"]) for name, row in report.items() if name not in PATHS and row["conserved"]}
    yield f"redis-lock, one client alone, without HTTP: {alone:,.0f} orders per s"
    if "redis-lock" in sound:
        yield f"    all clients, over HTTP: {sound['redis-lock'] / alone:.2f} of that"
    clients = min(clients, MAX_CLIENTS)
    yield f"pgbench, {clients} clients on one hot row, three statements each: {hot:,.0f} transactions per s"
    if durable := [name for name in sound if not registry.get(name).queues]:
        best = max(durable, key=lambda name: sound[name])
        yield f"    {best}, over HTTP: {sound[best] / hot:.2f} of that"


def cost_table(cost: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.title = f"CPU ms an order of {registry.DEFAULT}"
    for heading in ("skus", "clients", "CPU ms", "/ best", "per s"):
        table.add_column(heading, justify="right")
    best = min(row["cpu_ms"] for row in cost)
    for row in cost:
        table.add_row(
            f"{row['skus']:,}",
            f"{row['clients']:,}",
            f"{row['cpu_ms']:.2f}",
            f"{row['cpu_ms'] / best:.2f}",
            f"{row['orders_per_s']:,.0f}",
        )
    return table


def report_table(report: Report, options: argparse.Namespace) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption_justify="left", caption=LEGEND)
    table.title = f"{options.clients} clients, {options.seconds:g} s each, medians of {options.rounds} rounds"
    table.add_column("", no_wrap=True)
    for heading in ("per s", "/ plain", "/ peer", "CPU", "refused / plain", "CPU", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    table.add_column("verdict", no_wrap=True)
    for name, row in report.items():
        table.add_row(
            name,
            f"{row['per_s']:,.0f}",
            f"{row['per_s'] / report[PLAIN]['per_s']:.2f}",
            f"{row['per_s'] / report[PEER]['per_s']:.2f}",
            f"{row['cpu_ms']:.2f}",
            f"{row['refusals_per_s'] / report[PLAIN]['per_s']:.2f}" if row["refusals_per_s"] else "",
            f"{row['refusal_cpu_ms']:.2f}" if row["refusals_per_s"] else "",
            f"{row['p50_ms']:.1f}",
            f"{row['p99_ms']:.1f}",
            "conserved" if row["conserved"] else "[red]BROKEN[/]",
        )
    return table
