"""`python -m loadtest.bench waiting-room`: cost and gain of a waiting room.

First, a million customers enter the waiting room of one sale, in a Valkey that nothing else uses. The run measures
arrivals and polls per second, and checks that the memory is within a limit. Then a crowd arrives at three times the
rate that the shop can serve: without a waiting room, with one, and with one that has web servers of its own. The run
measures the latency of the order endpoint, and the share of requests that it answers as busy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis
from rich import box
from rich.console import Console
from rich.table import Table

from loadtest import outcome, preparation
from loadtest.arguments import positive, seconds
from loadtest.bench.bursts import machine
from loadtest.bench.strategy_measurements import STOCK, measure_burst
from loadtest.local_shop import LocalShop
from loadtest.tokens import access_token
from servers import valkey
from shop.clock import Clock
from shop.models import Sale
from shop.sales.offers import Offer
from shop.waiting import room

STRATEGY = "guarded-update"
TIMES = 3
"""Buyers who arrive per second, as a multiple of the shop's capacity in orders per second."""
SHARE = 0.3
"""Buyers admitted by the waiting room per second, as a share of the shop's capacity in orders per second."""
MOST_BUSY = 0.01
"""Goal: maximum share of order requests that are answered 429 or 503, with a waiting room."""
MOST_OF_P99 = 0.5
"""Goal: maximum p99 of order requests with a waiting room, as a share of the p99 without a waiting room.

A room with web servers of its own has no stricter goal: on one machine, they still take time from the other processes.
"""
WITHOUT, SHARED, SEPARATE = "none", "same web servers", "separate web servers"
"""Names of the three crowds, by the waiting room of the sale."""
NICENESS = 10
"""Niceness of the room's own web servers. On one machine, the room's requests then wait for the requests to order."""
CLIENTS = 32
BATCH = 1000
LOOKS = 20_000
FIRST = 1_000_000
"""Id of the first customer. It has as many digits as customer ids in a large shop."""
RATE = 100
"""Customers that the large room admits per second."""
AT_ONCE = RATE * room.BURST
"""Maximum number of turns that begin at the same time in the large room."""
EMPTY_ROOM = 200_000
"""Maximum bytes of Redis for a room in addition to its places: its keys, and the script."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--entrants", type=positive, default=1_000_000, help="customers in the large room (default: 1000000)"
    )
    parser.add_argument("--seconds", type=seconds, default=15.0, help="for which the crowd arrives (default: 15)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with Console(stderr=True).status("") as status:
        status.update(f"{options.entrants:,} customers enter a room")
        large = measure_large_room(options.entrants)
        with LocalShop() as shop:
            status.update("Capacity of the shop")
            capacity = measure_capacity(shop)
            rate, bursts = max(1, int(SHARE * capacity)), {}

            def measure(name: str, room_url: str | None) -> None:
                status.update(f"A crowd at {TIMES} times the capacity. Waiting room: {name}")
                bursts[name] = measure_crowd(shop.url, capacity, room_url, rate, seconds=options.seconds)

            measure(WITHOUT, None)
            measure(SHARED, shop.url)
            with LocalShop(niceness=NICENESS) as room_servers:
                measure(SEPARATE, room_servers.url)
    report = {"machine": machine(), "large_room": large, "capacity_per_s": capacity, "crowd": bursts}
    if options.json:
        print(json.dumps(report))  # noqa: T201
    else:
        show(report)
    return 0 if all(goals(report).values()) else 1


def goals(report: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether each goal was reached."""
    large, bursts = report["large_room"], report["crowd"].values()
    without, shared, separate = (report["crowd"][name]["order"] for name in (WITHOUT, SHARED, SEPARATE))
    return {
        f"{large['entrants']:,} customers in one Valkey within {large['memory_bound_mb']:,} MB": (
            large["memory_mb"] <= large["memory_bound_mb"]
        ),
        f"a turn within {large['turn_bound']} bytes": large["turn_bytes_each"] <= large["turn_bound"],
        "all buyers get their order, and the stock is conserved": all(
            burst["conserved"] and burst["bought"] == burst["buyers"] for burst in bursts
        ),
        f"with a room, at most {MOST_BUSY:.0%} of the order requests are answered 429 or 503": (
            max(shared["busy_share"], separate["busy_share"]) <= MOST_BUSY
        ),
        f"with a room, the p99 of the order requests is at most {MOST_OF_P99:.0%} of that without": (
            max(shared["p99_ms"], separate["p99_ms"]) <= MOST_OF_P99 * without["p99_ms"]
        ),
    }


def measure_large_room(entrants: int) -> dict[str, float]:
    """Return the figures of customers who enter before the sale opens, and poll later. Nothing else uses the server.

    The commands are sent in batches, so that round trips to the server add little to the figures.
    """
    opens_at = datetime.now(tz=UTC) + timedelta(hours=1)
    clock = Clock(opens_at - timedelta(hours=1), time.monotonic())
    offer = Offer(
        *(1, "", opens_at, opens_at + timedelta(hours=2), STRATEGY, True, {}, "EUR", clock),
        waiting_room=True,
        admitted_per_second=RATE,
    )
    with valkey.temporary() as server, Redis.from_url(server.url) as client:
        before = client.info("memory")["used_memory"]
        took = send(client, offer, range(FIRST, FIRST + entrants), opens_at - timedelta(seconds=1), enters=True)
        memory = client.info("memory")["used_memory"] - before
        step = max(1, entrants // LOOKS)
        sample = range(FIRST, FIRST + entrants, step)
        looked = send(client, offer, sample, opens_at + timedelta(seconds=1), enters=False)
        late = range(FIRST + entrants, FIRST + entrants + len(sample))
        came = send(client, offer, late, opens_at + timedelta(seconds=1), enters=True)
        waiting = client.info("memory")["used_memory"]
        # All customers are admitted by this time. Turns begin at a limited rate, so each batch polls `BURST` seconds
        # after the previous one: then the rate allows a turn for each of its customers.
        everybody_admitted = opens_at + timedelta(seconds=entrants)
        for number, first in enumerate(range(0, len(sample), AT_ONCE)):
            moment = everybody_admitted + number * timedelta(seconds=room.BURST)
            send(client, offer, sample[first : first + AT_ONCE], moment, enters=False)
        turns = client.info("memory")["used_memory"] - waiting
    return {
        "entrants": entrants,
        "memory_mb": round(memory / 1_000_000, 1),
        "memory_bound_mb": round((EMPTY_ROOM + entrants * room.PLACE_BYTES) / 1_000_000, 1),
        "bytes_each": round(memory / entrants, 1),
        "draws_per_s": round(entrants / took),
        "turn_bytes_each": round(turns / len(sample), 1),
        "turn_bound": room.TURN_BYTES,
        "looks_per_s": round(len(sample) / looked),
        "arrivals_per_s": round(len(late) / came),
    }


def send(client: Redis, offer: Offer, customers: Sequence[int], now: datetime, *, enters: bool) -> float:
    """Run the waiting room's script for each customer. Return the seconds that this took."""
    sha = client.script_load(room.SCRIPT)
    names, took = room.keys(offer.sale), 0.0
    for first in range(0, len(customers), BATCH):
        pipeline = client.pipeline(transaction=False)
        for customer in customers[first : first + BATCH]:
            pipeline.evalsha(sha, len(names), *names, *room.arguments(offer, customer, now, enters=enters))
        began = time.monotonic()
        pipeline.execute()
        took += time.monotonic() - began
    return took


def measure_capacity(shop: LocalShop) -> float:
    """Return the orders per second that the shop takes from a fixed number of clients."""
    customers = preparation.create_customers(CLIENTS * 10)
    # a first burst, not counted, to fill caches and pools
    measure_burst(STRATEGY, shop, customers, clients=CLIENTS, seconds=2.0, units=STOCK, quantity=1)
    measured = measure_burst(STRATEGY, shop, customers, clients=CLIENTS, seconds=5.0, units=STOCK, quantity=1)
    return round(float(measured["per_s"]), 1)


def measure_crowd(url: str, capacity: float, room_url: str | None, rate: int, *, seconds: float) -> dict[str, Any]:
    """Let a crowd of buyers arrive at `TIMES` the capacity of the shop, and return its figures.

    Args:
        url: the shop, which takes the orders.
        room_url: the shop that answers the requests of the waiting room; None for a sale without a waiting room.
        rate: customers whom the waiting room admits per second.
    """
    per_second = TIMES * capacity
    customers = preparation.create_customers(max(1, int(per_second * seconds)))
    burst = preparation.prepare(strategy=STRATEGY, units=STOCK, limit=STOCK, customers=customers)
    if room_url is not None:
        Sale.objects.filter(pk=burst.sale).update(waiting_room=True, admitted_per_second=rate)
    plan = {
        "url": url,
        "sale": burst.sale,
        "body": json.dumps(burst.body(burst.cart())),
        "tokens": [access_token(customer) for customer in customers],
        "per_second": per_second,
        "room_url": room_url,
        # Enough time for all buyers: the time of the arrivals, a minute, and 1.5 times the time in which the waiting
        # room admits all of them or, without a waiting room, the shop takes all orders.
        "seconds": seconds + 60 + 1.5 * len(customers) / (rate if room_url else capacity),
    }
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.bench.waiting_crowd"],
        input=json.dumps(plan),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    (figures,) = outcome.stock_figures(burst)
    outcome.close_sale(burst)
    return {
        **measured,
        "admitted_per_s": rate if room_url else None,
        "conserved": figures.conserved and figures.sold == measured["bought"],
    }


def show(report: Mapping[str, Any]) -> None:
    console, large = Console(), report["large_room"]
    console.print(
        f"{large['entrants']:,} customers in the room of one sale: {large['memory_mb']:,} MB of at most "
        f"{large['memory_bound_mb']:,} MB, {large['bytes_each']} bytes each, and {large['turn_bytes_each']} more of at "
        f"most {large['turn_bound']} after admission. In a second: "
        f"{large['draws_per_s']:,} enter before the opening, {large['arrivals_per_s']:,} after it, "
        f"{large['looks_per_s']:,} look.\n"
    )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption_justify="left")
    table.title = f"{TIMES} times the capacity of {report['capacity_per_s']:,.0f} orders/s"
    table.caption = "busy: share of the requests that were answered 429 or 503."
    for name in ("waiting room", "buyers", "bought", "in s", "p50 ms", "p99 ms", "busy", "room p99 ms", "room busy"):
        table.add_column(name, justify="right")
    for name, burst in report["crowd"].items():
        order, looks = burst["order"], burst["room"]
        own = [f"{looks['p99_ms']:,.0f}", f"{looks['busy_share']:.1%}"] if looks["requests"] else ["", ""]
        cells = [f"{burst['buyers']:,}", f"{burst['bought']:,}", f"{burst['seconds']:.0f}", f"{order['p50_ms']:,.0f}"]
        table.add_row(name, *cells, f"{order['p99_ms']:,.0f}", f"{order['busy_share']:.1%}", *own)
    console.print(table)
    for goal, reached in goals(report).items():
        console.print(f"{'yes' if reached else '[red]NO[/red]'}: {goal}")
