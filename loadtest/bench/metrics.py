"""`python -m loadtest.bench metrics`: CPU time that metrics and traces add to an order.

Two web servers share a Postgres and a Valkey: the first runs without metrics, and the second with metrics. If
OpenTelemetry is installed, a third runs with metrics and traces. They get load in turn, and are idle otherwise. Each
round measures all of them, so that a slow moment of the machine affects all alike. Every second round measures them in
reverse order. A ratio compares two figures of one round.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from statistics import median
from threading import Thread
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from inventory.strategies import registry
from loadtest import outcome, preparation
from loadtest.arguments import positive, seconds
from loadtest.bench import cpu
from loadtest.bench.bursts import STOCK, machine
from loadtest.bench.strategy_measurements import send
from loadtest.local_shop import LocalShop, is_healthy

DESCRIPTION = (
    "Measure the order endpoint with METRICS off and on, and with TRACES besides if OpenTelemetry is installed. CPU is "
    "that of the web processes, in milliseconds an order. The exit status is 1 if metrics cost more than 3 % of it."
)
MOST = 1.03
"""Maximum ratio: CPU time of an order with metrics, divided by the CPU time of an order without metrics."""
CUSTOMERS = 2000
OFF, ON, TRACED = "off", "metrics", "metrics and traces"
FIGURES = ("cpu_ms", "per_s", "p50_ms", "p99_ms", "others")

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strategy", choices=registry.NAMES, default=registry.DEFAULT, help="(default: %(default)s)")
    parser.add_argument("--clients", type=positive, default=32, help="concurrent connections (default: 32)")
    parser.add_argument("--rounds", type=positive, default=10, help="rounds; ratios are medians (default: 10)")
    parser.add_argument("--seconds", type=seconds, default=5.0, help="time of each measurement (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    rounds: list[dict[str, Row]] = []
    with ExitStack() as running, Console(stderr=True).status("The shops start") as status:
        shops = started(running)
        customers = preparation.create_customers(CUSTOMERS)
        for number in range(options.rounds + 1):
            names = list(shops) if number % 2 else [*reversed(shops)]
            row = {}
            for name in names:
                status.update(f"Round {number} of {options.rounds} (0 warms up): {name}")
                row[name] = measure(shops[name], customers, options)
            if number:
                rounds.append(row)
    report = {
        "machine": machine(),
        "strategy": options.strategy,
        "clients": options.clients,
        "rounds": options.rounds,
        "figures": {name: {key: median(row[name][key] for row in rounds) for key in FIGURES} for name in shops},
        "ratios": {name: ratios(rounds, name) for name in shops if name != OFF},
        "conserved": all(each["conserved"] for row in rounds for each in row.values()),
    }
    if options.json:
        print(json.dumps(report))  # noqa: T201
    else:
        show(report)
    return 0 if is_good(report) else 1


def started(running: ExitStack) -> dict[str, LocalShop]:
    """Start a web server for each set of settings, and return the shops by name.

    The first shop starts the databases.
    """
    variants = {OFF: {"METRICS": "0", "TRACES": "0"}, ON: {"METRICS": "1", "TRACES": "0"}}
    if find_spec("opentelemetry") and find_spec("opentelemetry.exporter"):
        collector = running.enter_context(sink())
        variants[TRACED] = {"METRICS": "1", "TRACES": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    shops = {name: LocalShop(environment=variables) for name, variables in variants.items()}
    running.enter_context(shops[OFF])
    for shop in list(shops.values())[1:]:
        running.callback(shop.web.stop)
        shop.web.start()
        shop.web.wait_until(lambda url=shop.url: is_healthy(url), timeout=60)  # type: ignore[misc]
    return shops


@contextmanager
def sink() -> Iterator[str]:
    """Run a collector of traces that discards all spans, and yield its address."""

    class Take(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Suppress the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Take) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def measure(shop: LocalShop, customers: list[int], options: argparse.Namespace) -> Row:
    """Send orders with ample stock, and check the tables afterwards."""
    burst = preparation.prepare(strategy=options.strategy, units=STOCK, limit=STOCK, customers=customers)
    used = cpu._of_tree(shop.web.pid)
    body = json.dumps(burst.body(burst.cart()))
    load = send(burst, shop, [body], clients=options.clients, seconds=options.seconds)
    used = cpu._of_tree(shop.web.pid) - used
    (figures,) = outcome.stock_figures(burst)
    outcome.close_sale(burst)
    placed = load["answers"].get("201", 0)
    return {
        "cpu_ms": used * 1000 / max(1, placed),
        "per_s": placed / load["seconds"],
        "p50_ms": load["p50_ms"],
        "p99_ms": load["p99_ms"],
        "others": sum(load["answers"].values()) - placed,
        "conserved": figures.conserved and figures.sold == placed,
    }


def ratios(rounds: Sequence[Mapping[str, Row]], name: str) -> Row:
    """Return CPU time per order and orders per second, as ratios.

    Each figure is divided by the figure that the web server without metrics reached in the same round.
    """
    cpu_ratios = sorted(row[name]["cpu_ms"] / row[OFF]["cpu_ms"] for row in rounds)
    rates = sorted(row[name]["per_s"] / row[OFF]["per_s"] for row in rounds)
    return {
        "cpu": median(cpu_ratios),
        "cpu_least": cpu_ratios[0],
        "cpu_most": cpu_ratios[-1],
        "orders": median(rates),
        "orders_least": rates[0],
        "orders_most": rates[-1],
    }


def is_good(report: Mapping[str, Any]) -> bool:
    """Return whether metrics are cheap enough, the stock is conserved, and the tables have every confirmed order."""
    return bool(report["conserved"] and report["ratios"][ON]["cpu"] <= MOST)


def show(report: Mapping[str, Any]) -> None:
    table = Table("", "CPU ms", "orders/s", "p50 ms", "p99 ms", "CPU ÷ off", "orders/s ÷ off", box=box.SIMPLE)
    for name, row in report["figures"].items():
        found = report["ratios"].get(name, {})
        spread = [
            f"{found[key]:.3f} ({found[f'{key}_least']:.3f} to {found[f'{key}_most']:.3f})" if found else ""
            for key in ("cpu", "orders")
        ]
        figures = f"{row['cpu_ms']:.2f}", f"{row['per_s']:.0f}", f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}"
        table.add_row(name, *figures, *spread)
    console = Console()
    console.print(table)
    console.print(
        f"{report['strategy']}, {report['clients']} clients, medians of {report['rounds']} rounds. Metrics may cost "
        f"{MOST - 1:.0%} of the CPU time of an order. Other load on this machine changes these figures."
    )
