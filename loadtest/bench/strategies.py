"""Orders per second through REST: every strategy, redis-py's lock, and an endpoint that does nothing, interleaved."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator
from statistics import median
from typing import Any
from unittest import mock

from django.db import connection
from django.test.utils import CaptureQueriesContext
from redis.connection import AbstractConnection
from rich import box
from rich.console import Console
from rich.table import Table

from inventory.strategies import registry
from loadtest import burst as bursts
from loadtest.arguments import positive, seconds
from loadtest.bench import recovery, references, saving, segments
from loadtest.stack import Stack
from shop.orders.place import place_order
from shop.orders.queued import save_queued

PEER = "peer:redis-py-lock"
EMPTY = "empty"
PATHS = {EMPTY: "/bench/empty/", PEER: "/bench/redis-py-lock/"}
STOCK = 1_000_000
CUSTOMERS = 2000
LEGEND = (
    "empty: the same endpoint without the order. peer: redis-py's Lock in the same view. Load, shop and servers share "
    "this machine, so only the ratios count; --json has the spread too."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=positive, default=32, help="connections that ask at the same time (32)")
    parser.add_argument("--rounds", type=positive, default=5, help="rounds; medians are reported (5)")
    parser.add_argument("--seconds", type=seconds, default=3.0, help="of each measurement (3)")
    parser.add_argument("--only", nargs="+", choices=registry.NAMES, help="only these strategies (all)")
    parser.add_argument(
        "--recovery", action="store_true", help="also how long a sale stands still when a seller is killed, in the JSON"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure in turn, round by round, so that a slow moment of the machine meets all alike."""
    console = Console(stderr=True)
    names = (EMPTY, PEER, *(options.only or registry.NAMES))
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with Stack(application="loadtest.bench.wsgi:application", background=True) as stack, console.status("") as status:
        customers = bursts.make_customers(CUSTOMERS)
        for number in range(options.rounds + 1):
            for name in names:
                status.update(f"Round {number} of {options.rounds} (0 warms up): {name}")
                measured = measure(name, stack.url, customers, options)
                if number:
                    rounds[name].append(measured)
    # With no worker and no beat, who would save a part of what is measured here.
    with Stack(), console.status("Statements and round trips of an order") as status:
        costs: dict[str, dict[str, float]] = {name: cost(name, customers) for name in names if name in registry.NAMES}
        if options.recovery:
            for name, row in costs.items():
                status.update(f"The death of a seller: {name}")
                row["recovery_s"] = recovery.measure(name, customers[:2], options.rounds)
        status.update("Segments, with work in the critical section")
        split = segments.measure(customers=customers, rounds=options.rounds, seconds=options.seconds)
        status.update("What workers save, and what COPY would")
        saved = saving.measure(customers=customers, rounds=options.rounds)
        status.update("One client alone, and Postgres at one hot row")
        alone = references.measure(
            customers=customers, clients=options.clients, rounds=options.rounds, seconds=options.seconds
        )
    report = {name: {**summary(measured), **costs.get(name, {})} for name, measured in rounds.items()}
    conserved = all(row["conserved"] for row in report.values())
    if options.json:
        print(json.dumps({"machine": machine(options), **shaped(report), "segments": split, **saved, **alone}))  # noqa: T201
    else:
        Console().print(table(report, options))
        Console().print(
            f"segments with {segments.WORK * 1000:g} ms of work in them: {split['5']:.0f} orders per s by 5, "
            f"{split['1']:.0f} by 1 ({split['5'] / split['1']:.1f} x)\n"
            f"queued orders saved: {saved['queue_saved_per_s']:,.0f} per s, the same rows by COPY: "
            f"{saved['copy_per_s']:,.0f} ({saved['queue_saved_per_s'] / saved['copy_per_s']:.2f})\n"
            + "\n".join(beside(report, alone, options.clients))
        )
    return 0 if conserved else 1


def beside(report: dict[str, dict[str, Any]], by_itself: dict[str, float], clients: int) -> Iterator[str]:
    """What was measured through the web, held against what its parts do without."""
    alone, hot = by_itself["redis_lock_alone_per_s"], by_itself["pgbench_hot_row_per_s"]
    sound = {name: float(row["per_s"]) for name, row in report.items() if name not in PATHS and row["conserved"]}
    yield f"redis-lock, one client alone, without the web: {alone:,.0f} orders per s"
    if "redis-lock" in sound:
        yield f"    all clients, through the web: {sound['redis-lock'] / alone:.2f} of it"
    at_once = min(clients, references.CLIENTS)
    yield f"pgbench, {at_once} clients at one hot row, three statements each: {hot:,.0f} transactions per s"
    if durable := [name for name in sound if not registry.get(name).queues]:
        best = max(durable, key=lambda name: sound[name])
        yield f"    {best}, through the web: {sound[best] / hot:.2f} of it"


def measure(name: str, url: str, customers: list[int], options: argparse.Namespace) -> dict[str, Any]:
    """One burst with more stock than it can sell, and for a strategy one more with nothing left for anybody."""
    selling = ask(name, url, customers, options, units=STOCK, quantity=1)
    if name in PATHS:
        return {**selling, "refusals_per_s": 0.0}
    refusing = ask(name, url, customers, options, units=1, quantity=2)
    return {
        **selling,
        "refusals_per_s": refusing["refused_per_s"],
        "conserved": selling["conserved"] and refusing["conserved"],
    }


def ask(
    name: str, url: str, customers: list[int], options: argparse.Namespace, *, units: int, quantity: int
) -> dict[str, Any]:
    """One burst, its figures and its audit."""
    burst = bursts.prepare(
        host=url,
        strategy=name if name in registry.NAMES else "guarded-update",
        rung="",
        units=units,
        skus=1,
        quantity=quantity,
        limit=STOCK,
        customers=customers,
    )
    plan = {
        "url": url,
        "path": PATHS.get(name, burst.path),
        "body": json.dumps(burst.body(burst.cart())),
        "tokens": [burst.token(customer) for customer in customers],
        "clients": options.clients,
        "seconds": options.seconds,
    }
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.bench.load"],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    bursts.wait_for_the_queue(burst)
    (figures,) = bursts.figures(burst, host=url)
    bursts.finish(burst)
    placed = said["answers"].get("201", 0) + said["answers"].get("202", 0)
    refused = said["answers"].get("409", 0)
    return {
        "per_s": placed / said["seconds"],
        "refused_per_s": refused / said["seconds"],
        "others": sum(said["answers"].values()) - placed - refused,
        **{name: said[name] for name in ("p50_ms", "p95_ms", "p99_ms", "client_min", "client_max", "generator_cpu")},
        # A run that oversold, or lost an order that it had promised, has no throughput.
        "conserved": figures.conserved and (name == EMPTY or figures.sold == placed),
    }


def cost(name: str, customers: list[int]) -> dict[str, float]:
    """SQL statements and round trips to Redis of one order, once everything that is remembered is known."""
    burst = bursts.prepare(
        host="", strategy=name, rung="", units=STOCK, skus=1, quantity=1, limit=STOCK, customers=customers
    )
    sent: list[int] = []
    send = AbstractConnection.send_packed_command

    def count(self: AbstractConnection, *rest: Any, **more: Any) -> Any:
        sent.append(1)
        return send(self, *rest, **more)

    def buy(customer: int) -> None:
        place_order(customer=customer, sale=burst.sale, quantities={product: 1}, key=uuid.uuid4().hex)

    (product,) = burst.products.values()
    for customer in customers[:2]:
        buy(customer)
    with mock.patch.object(AbstractConnection, "send_packed_command", count), CaptureQueriesContext(connection) as sql:
        buy(customers[2])
    save_queued()
    bursts.finish(burst)
    return {"sql_per_order": len(sql), "redis_per_order": len(sent)}


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, and the spread of what counts."""
    waits, clients = ("p50_ms", "p95_ms", "p99_ms"), ("client_min", "client_max")
    names = ("per_s", "refusals_per_s", *waits, *clients, "generator_cpu")
    return {
        **{name: median(row[name] for row in rounds) for name in names},
        "least": min(row["per_s"] for row in rounds),
        "most": max(row["per_s"] for row in rounds),
        "others": sum(row["others"] for row in rounds),
        "conserved": all(row["conserved"] for row in rounds),
    }


def shaped(report: dict[str, dict[str, Any]]) -> dict[str, Any]:
    def row(name: str, unit: str) -> dict[str, Any]:
        figures = {key: round(value, 2) if isinstance(value, float) else value for key, value in report[name].items()}
        return {unit: figures.pop("per_s"), **figures}

    return {
        EMPTY: row(EMPTY, "requests_per_s"),
        PEER: row(PEER, "orders_per_s"),
        "strategies": {name: row(name, "orders_per_s") for name in report if name not in PATHS},
    }


def machine(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "clients": options.clients,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "stock": STOCK,
    }


def table(report: dict[str, dict[str, Any]], options: argparse.Namespace) -> Table:
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption_justify="left", caption=LEGEND)
    made.title = f"{options.clients} clients, {options.seconds:g} s each, medians of {options.rounds}"
    made.add_column("", no_wrap=True)
    for heading in ("per s", "/ empty", "/ peer", "refused / empty", "p50 ms", "p99 ms"):
        made.add_column(heading, justify="right")
    made.add_column("verdict", no_wrap=True)
    for name, row in report.items():
        made.add_row(
            name,
            f"{row['per_s']:,.0f}",
            f"{row['per_s'] / report[EMPTY]['per_s']:.2f}",
            f"{row['per_s'] / report[PEER]['per_s']:.2f}",
            f"{row['refusals_per_s'] / report[EMPTY]['per_s']:.2f}" if row["refusals_per_s"] else "",
            f"{row['p50_ms']:.1f}",
            f"{row['p99_ms']:.1f}",
            "conserved" if row["conserved"] else "[red]BROKEN[/]",
        )
    return made
