"""A fault round: open a sale, send a burst with a fault in the middle, compare the answers with the tables."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from inventory import stock
from inventory.models import StockItem
from inventory.strategies import registry
from loadtest.preparation import create_customers
from shop import conservation
from shop.models import Order, Product, Sale, SaleItem
from shop.sales import lifecycle
from shop.sales.preheat import preheat_sale
from shop.sold import saved
from tests.faults.buyers import BUYERS, PRICE, Crowd, Purchase
from tests.faults.faults import CONTROLS, FAULTS
from tests.faults.parts import Parts, wait_until_idle
from tests.waiting import WAIT_TIMEOUT

UNITS = 20  # stock of each sku
SKUS = 3
PURCHASES = 3 * BUYERS  # about twice the orders that the stock can serve
LATEST = PURCHASES // 2  # the fault waits for at most this many answers
SOLD_OUT_CACHED = 2.0  # seconds for which the shop may still say "sold out" after units came back
BUSY = 0.5  # seconds without any answer before a purchase may be postponed
WRITTEN = 3.0  # maximum seconds until a write has reached both Redis and Postgres


def play(parts: Parts, *, strategy: str, fault: str, seed: str) -> dict[str, Any]:
    """Send a burst, cause the fault in the middle of it, and look for losses. A sound shop has none.

    The seed decides the carts, and the moment and details of the fault.
    """
    random = Random(seed)  # noqa: S311 - a repeatable sequence
    moment, pause = random.randint(1, LATEST), random.uniform(0, 0.01)
    *customers, last = create_customers(PURCHASES + 1)
    sale, products = open_sale(strategy)
    purchases = [purchase_of(each, sale, random_cart(list(products.values()), random), random) for each in customers]

    parts.ended.clear()
    # Let buyers postpone: units that a dead process reserved are unavailable until they are reconciled.
    with Crowd(parts.shop.port, purchases, busy=BUSY) as crowd:
        crowd.wait_until(moment)
        time.sleep(pause)  # Wait, so that the fault hits the middle of a call.
        answered_before = crowd.answered
        faults = {**FAULTS, **CONTROLS}[fault](parts, crowd, random)
        parts.restart_until(lambda: crowd.done, "the buyers to be answered")
    retries = sum(purchase.requests for purchase in purchases) - len(purchases)
    parts.recover()
    # Check before reconciling: each unit must have an owner, even if the owner is a dead process.
    ownerless = lasting_drift(products)
    # All orders have ended, so a reservation without an order is abandoned.
    call_command("reconcile", grace=0.0)

    # Repeat every purchase with its key. The shop returns the saved order or tries again.
    repeat(parts, purchases)
    left = {product: units for sku, product in products.items() if (units := stock.on_hand(sku))}
    if left:
        purchases.append(purchase_of(last, sale, sorted(left.items()), random))
        deadline = time.monotonic() + SOLD_OUT_CACHED
        while not purchases[-1].orders and time.monotonic() < deadline:
            repeat(parts, purchases[-1:])
    wait_until_idle()
    losses = {
        **losses_in_answers(purchases),
        **losses_in_tables(sale, products, purchases),
        "reserved": lasting_reservations(products),
        "ownerless": ownerless + lasting_drift(products),
        "unsellable": sum(stock.on_hand(sku) for sku in products),
        # Allow for a bug of Celery, whose worker may end with its connection:
        # https://github.com/celery/kombu/issues/582
        "ended by itself": sorted(set(parts.ended) - {"worker"}),
    }
    lifecycle.close(sale)
    return {
        "faults": faults,
        "purchases": PURCHASES,
        "answered_before": answered_before,
        "orders": sum(bool(purchase.orders) for purchase in purchases),
        "retries": retries,
        "losses": {name: loss for name, loss in losses.items() if loss},
    }


def repeat(parts: Parts, purchases: Sequence[Purchase]) -> None:
    with Crowd(parts.shop.port, purchases) as crowd:
        parts.restart_until(lambda: crowd.done, "the buyers to be answered")


def open_sale(strategy: str) -> tuple[int, dict[str, int]]:
    """Open and preheat a new sale; return the sale's id, and a dict from sku to product id."""
    now = timezone.now()
    products = {}
    with transaction.atomic():
        sale = Sale.objects.create(
            name=f"Round by {strategy}", opens_at=now, closes_at=now + timedelta(hours=1), strategy=strategy
        )
        for number in range(SKUS):
            product = Product.objects.create(sku=f"round-{sale.pk}-{number}", name=f"Part {number}")
            stock.deliver(product.sku, UNITS)
            SaleItem.objects.create(sale=sale, product=product, price=Decimal(PRICE), limit=SKUS * UNITS)
            products[product.sku] = product.pk
    preheat_sale(sale.pk)
    return sale.pk, products


def random_cart(products: Sequence[int], random: Random) -> list[tuple[int, int]]:
    """Return one or several products in random order, with one or two units of each."""
    wanted = random.sample(products, random.choice((1, 1, 2, SKUS)))
    return [(product, random.randint(1, 2)) for product in wanted]


def purchase_of(customer: int, sale: int, cart: Sequence[tuple[int, int]], random: Random) -> Purchase:
    return Purchase(customer, str(UUID(int=random.getrandbits(128))), sale, cart)


def losses_in_answers(purchases: Sequence[Purchase]) -> dict[str, Any]:
    return {
        "unanswered": sum(purchase.gave_up for purchase in purchases),
        "queued for ever": sum(purchase.gave_up and purchase.queued for purchase in purchases),
        "wrong answers": sorted(set().union(*(purchase.refusals for purchase in purchases)) - {"sold-out"}),
        "two answers for one key": sum(len(purchase.orders) > 1 for purchase in purchases),
    }


def losses_in_tables(sale: int, skus: Mapping[str, int], purchases: Sequence[Purchase]) -> dict[str, Any]:
    """Return the losses that a comparison of the tables with the answers finds."""
    rows = Order.objects.filter(sale=sale).values_list("pk", "customer")
    in_tables = {str(order) for order, _ in rows}
    answered = set().union(*(purchase.orders for purchase in purchases))
    return {
        "missing": len(answered - in_tables),
        "untold": len(in_tables - answered),
        "two orders for one key": sum(count > 1 for count in Counter(customer for _, customer in rows).values()),
        "unconserved": [str(figures) for figures in conservation.figures(skus) if not figures.conserved],
    }


def lasting_reservations(skus: Mapping[str, int]) -> int:
    """Return the units still reserved in Redis after workers had time to take over dead workers' entries."""
    deadline = time.monotonic() + WAIT_TIMEOUT
    while (units := units_reserved(skus)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return units


def units_reserved(skus: Mapping[str, int]) -> int:
    reserved = registry.counters().reserved()
    return sum(units for name, units in reserved.items() if sku_of(name) in skus)


def sku_of(counter: str) -> str:
    """Return the sku of a counter. The name of a segment's counter is the sku, a NUL and the number."""
    return counter.partition("\0")[0]


def lasting_drift(skus: Mapping[str, int]) -> int:
    """Return the drift between Redis and Postgres that lasts.

    The two are read one after the other, so a write in between causes a drift that does not last.
    """
    deadline = time.monotonic() + WRITTEN
    while (drift := drift_in_redis(skus)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return drift


def drift_in_redis(skus: Mapping[str, int]) -> int:
    """Return by how many units the counters in Redis differ from the stock in Postgres.

    Units of reservations without a saved order are added to the counters first.
    """
    counters = registry.counters()
    reservations = counters.reservations()
    orders = saved([reservation.order_id for reservation in reservations])
    reserved: Counter[str] = Counter()
    for reservation in reservations:
        if reservation.order_id not in orders:
            for name, units in reservation.items:
                reserved[sku_of(name)] += units
    on_hand = dict(StockItem.objects.filter(sku__in=skus).values_list("sku", stock.all_on_hand()))
    left = {sku: offered for sku, offered in counters.left(list(skus)).items() if offered is not None}
    left.update({sku: units for sku, (units, _) in registry.segment_counters().totals(list(skus)).items()})
    return sum(abs(on_hand[sku] - offered - reserved[sku]) for sku, offered in left.items())
