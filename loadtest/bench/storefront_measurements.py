"""Measurements of the storefront behind nginx: the cost of watchers, and the latency of orders meanwhile."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from inventory.strategies import registry
from loadtest import outcome, preparation
from loadtest.bench import cpu
from loadtest.bench.storefront_clients import STARTED
from loadtest.bench.storefront_page import fetch
from loadtest.burst import Burst
from loadtest.local_proxy import LocalProxy, compose_configuration, replaced
from loadtest.local_shop import CHECKOUT, LocalShop
from shop.models import Product, Sale, SaleItem

LANGUAGES = ("en", "zh-CN")
PICTURE = "/static/shop/products/keyboard.svg"
STOCK = 1_000_000
BUYERS = 50
ORDERS_PER_S = 50
MOST_CONNECTIONS = 200
CONNECTIONS = 100
"""Number of connections of clients without a fixed rate."""
LOG = "passed_on.log"


@dataclass(frozen=True)
class OnSale:
    """An open sale, and the paths that its watchers request.

    Args:
        page: path of the page.
        now: path of the document that the page polls for changes.
    """

    burst: Burst
    page: str
    now: str


def put_on_sale() -> OnSale:
    """Open a sale of one product with a picture and ample stock."""
    burst = preparation.prepare(
        strategy=registry.DEFAULT, units=STOCK, limit=STOCK, customers=preparation.create_customers(BUYERS)
    )
    described = "Hot-swappable, with a knob for the volume. Keys of two colours."
    Product.objects.filter(pk__in=burst.products.values()).update(picture=PICTURE, description=described)
    slug = Sale.objects.get(pk=burst.sale).slug
    return OnSale(burst, reverse("sale", args=[slug]), reverse("sale-now", args=[slug]))


def poll_interval() -> float:
    """Return the seconds between two polls of an open page, on average, as the page's script defines them."""
    script = (CHECKOUT / "shop" / "static" / "shop" / "sale.js").read_text()
    found = re.search(r"^const POLL = (\d+);", script, re.MULTILINE)
    if found is None:
        raise RuntimeError("shop/static/shop/sale.js no longer says POLL: tell this benchmark how often a page asks.")
    return int(found[1]) / 1000


@contextmanager
def proxied(shop: LocalShop, folder: Path, *, cached: bool) -> Iterator[LocalProxy]:
    """Run nginx as docker-compose.yml does, with a log of the requests that it passes on to the shop.

    Args:
        folder: an empty folder for nginx.
        cached: whether nginx caches answers, as it does in docker-compose.yml.
    """
    passed_on = f'log_format path "$uri"; access_log /tmp/{LOG} path if=$upstream_status;'
    configuration = replaced(compose_configuration(), "access_log off;", passed_on)
    if not cached:
        configuration = replaced(configuration, "proxy_cache public;", "")
    with LocalProxy(folder, shop.port, configuration=configuration) as proxy:
        yield proxy


def passed_on(proxy: LocalProxy) -> Counter[str]:
    """Return how many requests nginx has passed on to the shop, by path."""
    return Counter((proxy.folder / LOG).read_text().split())


def measure_watching(
    shop: LocalShop, proxy: LocalProxy, *, path: str, rate: int | None, seconds: float
) -> dict[str, Any]:
    """Let clients request a path. Return their rate and waits, the requests that reach the shop, and CPU time.

    Args:
        rate: requests per second; None for as many as the generator can send.
    """
    # Fill the cache first: while the cache is empty, nginx lets all requests but the first wait for half a second.
    for language in LANGUAGES:
        fetch(f"{proxy.url}{path}", {"Accept-Language": language})
    shop_before, proxy_before, count_before = cpu.seconds(shop), cpu_of(proxy), passed_on(proxy)[path]
    load = finish(start(watching(proxy, path, rate=rate, seconds=seconds)))
    shop_used, proxy_used = cpu.seconds(shop) - shop_before, cpu_of(proxy) - proxy_before
    reached = passed_on(proxy)[path] - count_before
    answers = sum(load["answers"].values())
    good = load["answers"].get("200", 0) + load["answers"].get("304", 0)
    return {
        "rate": rate,
        "per_s": load["per_s"],
        "reached_shop": reached,
        "reached_shop_per_s": reached / load["seconds"],
        "nginx_cpu_ms": proxy_used * 1000 / answers,
        "shop_cpu_ms": shop_used * 1000 / answers,
        "others": answers - good,
        **{name: load[name] for name in ("p50_ms", "p99_ms", "generator_cpu")},
    }


def cpu_of(proxy: LocalProxy) -> float:
    """Return the CPU seconds that nginx has used so far."""
    return cpu._of_tree(proxy.process.pid)


def watching(proxy: LocalProxy, path: str, *, rate: int | None, seconds: float) -> dict[str, Any]:
    """Return the plan of clients that send requests as browsers do: two languages, a session, compressed answers."""
    heads = [
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\nAccept-Language: {language}\r\n"
        f"Accept-Encoding: gzip\r\nCookie: {settings.SESSION_COOKIE_NAME}={uuid.uuid4().hex}\r\n"
        for language in LANGUAGES
    ]
    return {
        "port": proxy.port,
        "requests": [(head, "") for head in heads],
        "rate": rate,
        # Each client polls at the rate of a page. The usual limit of open files allows at most `MOST_CONNECTIONS`
        # clients. If the rate needs more, each client polls faster.
        "connections": min(MOST_CONNECTIONS, max(1, round(rate * poll_interval()))) if rate else CONNECTIONS,
        "seconds": seconds,
        # A page polls with the ETag of the document that it has. A visitor who opens the page has no ETag yet.
        "conditional": path.endswith(".json"),
    }


def measure_orders(
    proxy: LocalProxy, sale: OnSale, *, tokens: Sequence[str], watchers: int | None, seconds: float
) -> dict[str, Any]:
    """Send orders at a fixed rate through nginx, as the page's script does. Return their number and waits.

    Args:
        tokens: access tokens of customers, who order in turn.
        watchers: requests per second of watchers meanwhile; None for no watchers.
    """
    (product,) = sale.burst.products.values()
    price = f"{SaleItem.objects.get(sale=sale.burst.sale).price:.2f}"
    items = [{"product": product, "quantity": 1, "price": price}]
    body = json.dumps({"sale": sale.burst.sale, "items": items})
    heads = (
        f"POST {reverse('api-orders')} HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n"
        f"Authorization: Bearer {tokens[number % len(tokens)]}\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {uuid.uuid4().hex}\r\nContent-Length: {len(body)}\r\n"
        for number in range(max(1, round(ORDERS_PER_S * seconds)))
    )
    plan = {
        "port": proxy.port,
        "requests": [(head, body) for head in heads],
        "conditional": False,
        "rate": ORDERS_PER_S,
        "connections": BUYERS,
        "seconds": seconds,
    }
    # The watchers start before the first order and stop after the last one.
    crowd = start(watching(proxy, sale.now, rate=watchers, seconds=seconds + 2)) if watchers else None
    load = finish(start(plan))
    watched = finish(crowd)["per_s"] if crowd else 0.0
    placed = load["answers"].get("201", 0)
    return {
        "orders": placed,
        "others": sum(load["answers"].values()) - placed,
        "polls_per_s": watched,
        "p50_ms": load["p50_ms"],
        "p99_ms": load["p99_ms"],
    }


def log_in(proxy: LocalProxy, customers: Sequence[int]) -> list[str]:
    """Log customers in, and return their access tokens.

    This function requests a token with the session cookie, as the page's script does.
    """
    tokens = []
    for user in User.objects.filter(pk__in=customers):
        client = Client()
        client.force_login(user)
        session = client.cookies[settings.SESSION_COOKIE_NAME].value
        answer = fetch(
            f"{proxy.url}{reverse('account-token')}", {"Cookie": f"{settings.SESSION_COOKIE_NAME}={session}"}
        )
        tokens.append(str(json.loads(answer)["access"]))
    return tokens


def is_conserved(sale: OnSale, orders: Collection[Mapping[str, Any]]) -> bool:
    """Close the sale, and return whether the tables have every confirmed order, and no more orders than were sent.

    Args:
        orders: results of `measure_orders`. An order that was answered with an error may have been placed.
    """
    placed = sum(each["orders"] for each in orders)
    others = sum(each["others"] for each in orders)
    (figures,) = outcome.stock_figures(sale.burst)
    outcome.close_sale(sale.burst)
    return bool(figures.conserved and placed <= figures.sold <= placed + others)


def start(plan: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a process with clients, and return when all are connected."""
    command = (sys.executable, "-m", "loadtest.bench.storefront_clients")
    # The process runs in a new session, so the terminal does not send Ctrl-C to it. Only the benchmark reports Ctrl-C,
    # and the clients end when the time of their plan is over.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    if process.stdin and process.stdout:
        process.stdin.write(json.dumps(plan))
        process.stdin.close()
        if process.stdout.readline() != f"{STARTED}\n":
            process.kill()
            raise RuntimeError("The process with the clients has ended. Its error is above.")
    return process


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait until a process with clients ends, and return the counts of the clients."""
    with process:
        counted: dict[str, Any] = json.loads(process.stdout.read() if process.stdout else "")
    return counted
