"""`python -m loadtest.bench storefront`: cost of a crowd that watches a sale, and size of the page.

A whole shop runs behind nginx with the configuration of docker-compose.yml. Clients request the document that each open
page polls, and the page itself. They do so at the highest rate of the generator, and at 1 % and 10 % of it. nginx's log
tells which requests reach the shop. A negative control runs without nginx's cache. Then orders are placed while clients
watch. Last, the size of the page is measured, and the time until Chromium shows it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.arguments import positive, seconds
from loadtest.bench.bursts import machine
from loadtest.bench.storefront_measurements import (
    ORDERS_PER_S,
    OnSale,
    is_conserved,
    log_in,
    measure_orders,
    measure_watching,
    poll_interval,
    proxied,
    put_on_sale,
)
from loadtest.bench.storefront_page import measure_paint, weigh
from loadtest.local_proxy import LocalProxy, require_nginx
from loadtest.local_shop import LocalShop

DESCRIPTION = (
    "Measure what people who watch a sale cost the shop behind nginx, what an order takes beside them, what the page "
    "of the sale weighs and when Chromium shows it. It needs nginx (Debian: nginx-light); without Chromium the last "
    "part is skipped. Watchers, nginx and shop share this machine, so the rates are lower limits, and the cost of a "
    "request says more than its latency. The exit status is 1 if a figure misses its goal."
)
WATCHERS = 100_000
SHARES = (0.01, 0.1)
"""Lower rates to measure, as shares of the highest rate. The rate that reaches the shop must not grow with the rate of
clients."""
BESIDE_ORDERS = 1000
"""Default requests per second of watchers while orders are measured."""
MOST_TO_SHOP = 2.0
"""Goal: maximum number of requests per second that reach the shop for a sale, with any number of watchers."""
MOST_BYTES = 60_000
"""Goal: maximum number of compressed bytes of the page with all files that it loads."""
MOST_TO_LARGEST_PAINT = 2500
"""Goal: maximum number of milliseconds until `phone on 4G` shows the largest content of the page.

Google calls this good: https://web.dev/articles/lcp
"""
IN_TIME = f"a phone on 4G shows the page within {MOST_TO_LARGEST_PAINT:,} ms"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rates",
        type=positive,
        nargs="+",
        default=[],
        help="requests per second to measure, besides the highest that the generator reaches (default: 1 and 10 %% of "
        "the highest)",
    )
    parser.add_argument("--seconds", type=seconds, default=3.0, help="of each measurement (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    require_nginx()
    interval = poll_interval()
    # One proxy, nginx, is in front of the web server, as in docker-compose.yml.
    with Console(stderr=True).status("The shop starts") as status, LocalShop(environment={"NUM_PROXIES": "1"}) as shop:
        report = {
            "machine": machine(),
            # These figures are computed, not measured.
            "watchers": {"watchers": WATCHERS, "interval_s": interval, "polls_per_s": WATCHERS / interval},
            **measure(shop, options.rates, progress=status.update, seconds=options.seconds),
        }
    if options.json:
        print(json.dumps(report))  # noqa: T201
    else:
        show(report)
    return 0 if all(goals(report).values()) else 1


def measure(shop: LocalShop, rates: list[int], *, progress: Callable[[str], object], seconds: float) -> dict[str, Any]:
    """Run all measurements, and return the report.

    Args:
        rates: requests per second of watchers; if empty, `SHARES` of the highest possible rate. The highest rate is
            always measured in addition.
        progress: called with a description of the current measurement.
        seconds: duration of each measurement; that of orders is twice as long.
    """
    sale = put_on_sale()
    with temporary_proxy(shop, cached=False) as proxy:
        progress("The shop warms up")
        tokens = log_in(proxy, sale.burst.customers)
        measure_watching(shop, proxy, path=sale.page, rate=None, seconds=1)
        warm = measure_orders(proxy, sale, tokens=tokens, watchers=None, seconds=1)
    watching: dict[str, dict[str, list[dict[str, Any]]]] = {}
    orders: dict[str, dict[str, Any]] = {}

    def order(name: str, proxy: LocalProxy, watchers: int | None) -> None:
        progress(f"Orders, {name}")
        orders[name] = measure_orders(proxy, sale, tokens=tokens, watchers=watchers, seconds=2 * seconds)

    for name, cached in (("cached", True), ("not_cached", False)):
        with temporary_proxy(shop, cached=cached) as proxy:
            watching[name] = {}
            for document, path in (("now", sale.now), ("page", sale.page)):

                def watch(rate: int | None, proxy: LocalProxy = proxy, path: str = path) -> dict[str, Any]:
                    progress(f"{path} at {rate or 'the highest'} requests a second")
                    return measure_watching(shop, proxy, path=path, rate=rate, seconds=seconds)

                highest = watch(None)
                lower = rates or [max(1, round(share * highest["per_s"])) for share in SHARES]
                watching[name][document] = [*map(watch, lower), highest]
            if cached:
                order("without watchers", proxy, None)
            order(f"with watchers, {name.replace('_', ' ')}", proxy, max(rates, default=BESIDE_ORDERS))
    with temporary_proxy(shop, cached=True) as proxy:
        progress("The weight of the page, and its paint")
        page = look_at_page(proxy, sale)
    conserved = is_conserved(sale, [warm, *orders.values()])
    return {"watching": watching, "orders": orders, "conserved": conserved, **page}


@contextmanager
def temporary_proxy(shop: LocalShop, *, cached: bool) -> Iterator[LocalProxy]:
    with (
        tempfile.TemporaryDirectory(prefix="lu-proxy-") as folder,
        proxied(shop, Path(folder), cached=cached) as proxy,
    ):
        yield proxy


def look_at_page(proxy: LocalProxy, sale: OnSale) -> dict[str, Any]:
    """Return the bytes of the page and its files, and the time until Chromium shows it."""
    url = f"{proxy.url}{sale.page}"
    files = weigh(url, [sale.now])  # Without a log-in, the page requests no token.
    return {"weight": {"bytes": sum(files.values()), "files": files}, "paint": measure_paint(url)}


def goals(report: Mapping[str, Any]) -> dict[str, bool]:
    """Return each goal of this benchmark, with whether the report meets it."""
    cached = report["watching"]["cached"]
    # The document of a sale and its page in each language are separate entries of the cache: add them up.
    most = sum(max(row["reached_shop_per_s"] for row in rows) for rows in cached.values())
    phone = report["paint"].get("phone on 4G", {})
    in_time = {IN_TIME: max(paint["largest"] for paint in phone.values()) <= MOST_TO_LARGEST_PAINT} if phone else {}
    return {
        f"at most {MOST_TO_SHOP:g} requests a second without a log-in reach the shop": most <= MOST_TO_SHOP,
        f"at most {MOST_BYTES:,} bytes": report["weight"]["bytes"] <= MOST_BYTES,
        "all confirmed orders are in the tables": report["conserved"],
        **in_time,
    }


def show(report: Mapping[str, Any]) -> None:
    console, watchers = Console(), report["watchers"]
    for document, title in (("now", "What each open page polls (now.json)"), ("page", "The page of the sale")):
        table = new_table(title, "cache", "rate", "answers/s", "to shop/s", "nginx ms", "shop ms", "p50 ms", "p99 ms")
        for name, documents in report["watching"].items():
            for row in documents[document]:
                rate = f"{row['rate']:,}" if row["rate"] else "highest"
                cells = [f"{row['per_s']:,.0f}", f"{row['reached_shop_per_s']:,.1f}"]
                costs = [f"{row['nginx_cpu_ms']:.3f}", f"{row['shop_cpu_ms']:.3f}"]
                latencies = [f"{row['p50_ms']:,.1f}", f"{row['p99_ms']:,.1f}"]
                table.add_row("on" if name == "cached" else "off", rate, *cells, *costs, *latencies)
        console.print(table, "")
    console.print(
        f"{compared(report['watching']['cached']['now'])}\n\n"
        f"By arithmetic, {watchers['watchers']:,} people who watch a sale poll {watchers['polls_per_s']:,.0f} times a "
        f"second, because each page polls every {watchers['interval_s']:g} s. This rate was not measured. That no more "
        "requests reach the shop then is a conclusion from the rates above. nginx ms and shop ms: CPU time of one "
        "request; that of the shop includes its other work meanwhile.\n"
    )
    title = f"{ORDERS_PER_S} orders a second through nginx, as the page sends them"
    table = new_table(title, "", "polls/s", "orders", "others", "p50 ms", "p99 ms")
    for name, row in report["orders"].items():
        latencies = [f"{row['p50_ms']:,.1f}", f"{row['p99_ms']:,.1f}"]
        table.add_row(name, f"{row['polls_per_s']:,.0f}", f"{row['orders']:,}", f"{row['others']:,}", *latencies)
    console.print(table, "")
    show_page(console, report)
    for goal, met in goals(report).items():
        console.print(f"{'met' if met else 'MISSED'}: {goal}")


def compared(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence that compares the lowest rate of polls with the highest one."""
    few, many = rows[0], rows[-1]
    return (
        f"With {many['per_s'] / few['per_s']:,.0f} times as many polls, from {few['per_s']:,.0f} to "
        f"{many['per_s']:,.0f} a second, {many['reached_shop_per_s']:.1f} instead of {few['reached_shop_per_s']:.1f} "
        "requests a second reach the shop."
    )


def show_page(console: Console, report: Mapping[str, Any]) -> None:
    weight, paint = report["weight"], report["paint"]
    table = new_table("The page and what it loads", "file", "bytes")
    for address, size in sorted(weight["files"].items(), key=lambda each: -each[1]):
        table.add_row(address, f"{size:,}")
    table.add_row(f"all {len(weight['files'])}, of at most {MOST_BYTES:,}", f"{weight['bytes']:,}")
    console.print(table, "")
    console.print(
        f"A page that is opened for the first time sends {len(weight['files'])} requests, then only polls. nginx keeps "
        "all of these files. After a log-in, the page also requests a token, and that request reaches the shop.\n"
    )
    if "skipped" in paint:
        console.print(f"First paint: skipped. {paint['skipped']}\n")
        return
    titles = {"first": "First contentful paint, 390 pixels", "largest": "Largest contentful paint, 390 pixels"}
    for kind, title in titles.items():
        table = new_table(title, "phone", "with scripts, ms", "without scripts, ms")
        for name, row in paint.items():
            table.add_row(name, f"{row['with_scripts'][kind]:,.0f}", f"{row['without_scripts'][kind]:,.0f}")
        console.print(table, "")


def new_table(title: str, first: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, title=title, title_justify="left")
    table.add_column(first)
    for name in columns:
        table.add_column(name, justify="right")
    return table
