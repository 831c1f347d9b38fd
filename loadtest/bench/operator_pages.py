"""`python -m loadtest.bench operator`: what the pages of an operator cost in a shop with many orders.

The overview is polled as its script polls: a second passes between an answer and the next request. Meanwhile, orders
are placed, and the time until an answer contains them is measured. Then the list of orders is opened and exported, and
the preflight check runs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from rich.console import Console

from inventory.strategies import registry
from loadtest import outcome, preparation
from loadtest.arguments import positive
from loadtest.bench import cpu
from loadtest.bench.bursts import machine
from loadtest.bench.buying import buy_one
from loadtest.local_shop import LocalShop

DESCRIPTION = (
    "Measure the overview, the list of orders, the export and the preflight check in a shop with many orders. The exit "
    "status is 1 if the overview takes more than 2 s to show a new order, or if the web process grows by more than "
    "8 MB during the export."
)
LATEST = 2.0
"""Goal: maximum seconds from an order to the answer with which an open overview shows it."""
MOST_GROWTH_MB = 8.0
"""Goal: maximum growth of the web process during an export, in megabytes."""
PAUSE = 1.0
"""Seconds between a response and the next request of an open overview. `PAUSE` in overview.js is the same."""
PLACED = 10
"""Orders that are placed while the overview is open."""
EXTRA_UNITS = 1000
"""Units on hand when all orders of the shop have been placed."""
INSERT = """
    WITH placed AS (
        INSERT INTO shop_order (id, customer_id, sale_id, currency, state, reason, key, body_hash, created_at,
                                payable_from)
        SELECT uuidv7(), %(customer)s, %(sale)s, 'EUR', 'paid', '', 'key-' || gen_random_uuid(), '', now(), now()
          FROM generate_series(1, %(orders)s)
        RETURNING id
    ), items AS (
        INSERT INTO shop_orderitem (order_id, sku, quantity, price, name)
        SELECT id, %(sku)s, 1, 9.90, %(sku)s FROM placed
    )
    UPDATE inventory_stockitem SET on_hand = on_hand - %(orders)s WHERE sku = %(sku)s
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--orders", type=positive, default=100_000, help="orders in the shop (default: 100000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with Console(stderr=True).status("The shop starts") as status, LocalShop() as shop:
        status.update(f"{options.orders:,} orders are inserted")
        customers = preparation.create_customers(2)
        burst = preparation.prepare(
            strategy=registry.DEFAULT, units=options.orders + EXTRA_UNITS, limit=EXTRA_UNITS, customers=customers
        )
        (sku,) = burst.products
        with connection.cursor() as cursor:
            inserted = {"customer": customers[0], "sale": burst.sale, "sku": sku, "orders": options.orders}
            cursor.execute(INSERT, inserted)
            cursor.execute("ANALYZE shop_order, shop_orderitem")
        operator = Operator(shop)
        status.update("An open overview")
        overview = measure_overview(operator, burst.sale, burst.products[sku], customers[1])
        status.update("The list of orders, and its export")
        orders = measure_orders(operator, burst.sale)
        status.update("Preflight")
        preflight = measure_preflight(burst.sale)
        (figures,) = outcome.stock_figures(burst)
        outcome.close_sale(burst)
        operator.user.delete()
    report = {
        "machine": machine(),
        "orders": options.orders,
        "overview": overview,
        "list": orders,
        "preflight": preflight,
        "conserved": figures.conserved,
    }
    if options.json:
        print(json.dumps(report))  # noqa: T201
    else:
        show(report)
    return 0 if all(goals(report).values()) else 1


def goals(report: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether each goal was reached."""
    return {
        f"an open overview shows an order within {LATEST:.0f} s": report["overview"]["latest_s"] <= LATEST,
        f"an export makes the web process grow by at most {MOST_GROWTH_MB:.0f} MB": (
            report["list"]["growth_mb"] <= MOST_GROWTH_MB
        ),
        "the stock is conserved": report["conserved"],
    }


class Operator:
    """An operator who is logged in, with all permissions.

    Args:
        shop: the shop whose pages the operator opens.
    """

    def __init__(self, shop: LocalShop) -> None:
        self.shop = shop
        User.objects.filter(username="bench-operator").delete()
        self.user = User.objects.create_superuser("bench-operator")
        client = Client()
        client.force_login(self.user)
        self.cookie = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"

    def get(self, path: str) -> tuple[float, float, bytes]:
        """Return the seconds to the first byte of the body, the seconds to its end, and the body.

        Raises:
            RuntimeError: the status is not 200.
        """
        client = http.client.HTTPConnection("127.0.0.1", self.shop.port, timeout=120)
        began = time.monotonic()
        client.request("GET", path, headers={"Cookie": self.cookie})
        response = client.getresponse()
        body = response.read(1)
        first = time.monotonic() - began
        body += response.read()
        client.close()
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}")
        return first, time.monotonic() - began, body


def measure_overview(operator: Operator, sale: int, product: int, customer: int) -> dict[str, float]:
    """Return the seconds in which the overview opens, refreshes, and shows a new order.

    `cpu_share` is the CPU time of the whole shop per second, not only that of the overview.
    """
    _, opened, page = operator.get("/admin/")
    sold = sold_of(page.decode(), sale)
    refreshes, ages = list[float](), list[float]()
    cpu_before, began = cpu.seconds(operator.shop), time.monotonic()
    for number in range(1, PLACED + 1):
        # Place each order at another moment between two requests of the page.
        time.sleep(PAUSE * number / PLACED)
        buy_one(sale=sale, product=product, customer=customer)
        placed_at = time.monotonic()
        time.sleep(PAUSE * (1 - number / PLACED))
        while True:
            _, took, answer = operator.get("/admin/live/")
            refreshes.append(took)
            if sold_of(json.loads(answer)["parts"]["sales"], sale) >= sold + number:
                break
            time.sleep(PAUSE)
        ages.append(time.monotonic() - placed_at)
    cpu_share = (cpu.seconds(operator.shop) - cpu_before) / (time.monotonic() - began)
    return {
        "opens_s": opened,
        "refresh_s": median(refreshes),
        "latest_s": max(ages),
        "median_age_s": median(ages),
        "cpu_share": cpu_share,
    }


def sold_of(html: str, sale: int) -> int:
    """Return the units sold that the chart of a sale shows."""
    found = re.search(rf'id="curve-{sale}"[^>]*aria-label="(\d+) units sold', html)
    if found is None:
        raise RuntimeError(f"the overview does not show sale {sale}")
    return int(found[1])


def measure_orders(operator: Operator, sale: int) -> dict[str, float]:
    """Return the seconds in which the list of orders opens and is exported, and the size and memory of the export."""
    path = f"/admin/shop/order/?sale__id__exact={sale}"
    _, opened, _ = operator.get(path)
    processes = psutil.Process(operator.shop.web.pid).children()
    operator.get(f"/admin/shop/order/export/?sale__id__exact={sale}&state__exact=rejected")  # fills the caches
    before = [used(each, "VmRSS") for each in processes]
    for each in processes:
        Path(f"/proc/{each.pid}/clear_refs").write_text("5")  # Reset VmHWM, the peak.
    first, took, body = operator.get(f"/admin/shop/order/export/?sale__id__exact={sale}")
    growth = max(used(each, "VmHWM") - least for each, least in zip(processes, before, strict=True))
    return {
        "opens_s": opened,
        "export_first_byte_s": first,
        "export_s": took,
        "export_mb": len(body) / 1_000_000,
        "growth_mb": max(0.0, growth / 1_000_000),
    }


def used(process: psutil.Process, name: str) -> int:
    """Return the bytes of memory that a process uses now (`VmRSS`), or the most that it has used (`VmHWM`)."""
    found = re.search(rf"^{name}:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def measure_preflight(sale: int) -> float:
    """Return the seconds of a preflight check of the shop and the sale."""
    began = time.monotonic()
    with suppress(SystemExit):  # The check fails in a shop without a worker.
        call_command("preflight", str(sale), "--json", stdout=StringIO())
    return time.monotonic() - began


def show(report: Mapping[str, Any]) -> None:
    console, overview, orders = Console(), report["overview"], report["list"]
    console.print(f"A shop with {report['orders']:,} orders:")
    console.print(
        f"The overview opens in {overview['opens_s']:.2f} s, and refreshes in {overview['refresh_s']:.2f} s (median). "
        f"An open page shows an order after {overview['median_age_s']:.1f} s (median), at most "
        f"{overview['latest_s']:.1f} s, and takes {overview['cpu_share']:.0%} of a core, with Postgres and Redis."
    )
    console.print(
        f"The list of orders opens in {orders['opens_s']:.2f} s. Its export of {orders['export_mb']:.0f} MB begins "
        f"after {orders['export_first_byte_s']:.2f} s and takes {orders['export_s']:.1f} s; the web process grows by "
        f"{orders['growth_mb']:.1f} MB."
    )
    console.print(f"A preflight check takes {report['preflight']:.2f} s.")
    for goal, reached in goals(report).items():
        console.print(f"{'yes' if reached else '[red]NO[/red]'}: {goal}")
