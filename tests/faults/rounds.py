"""A round: a fresh sale, a burst, a fault in the middle of it, and what the tables say when all is at rest."""

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
from loadtest import burst as bursts
from shop import conservation
from shop.models import Order, Product, Sale, SaleItem
from shop.orders.saving import saved
from shop.sales import lifecycle
from tests.faults.buyers import BUYERS, Burst, Wish
from tests.faults.faults import CONTROLS, FAULTS
from tests.faults.parts import Parts, rest
from tests.waiting import PATIENCE

UNITS = 20  # of each sku
SKUS = 3
WISHES = 3 * BUYERS  # about twice what there is
LATEST = WISHES // 2  # answers before the fault, at most
MOMENT = 2.0  # seconds for which the shop may still say "sold out" of what has come back
BUSY = 0.5  # seconds without an answer for anybody after which who is told to come later does
SETTLED = 3.0  # seconds in which what was being written in Redis and Postgres is written in both


def play(parts: Parts, *, strategy: str, fault: str, seed: str) -> dict[str, Any]:
    """Let a burst come, do the fault in the middle of it, and look at what is left.

    Args:
        seed: decides the carts, and the moment and the kind of the fault.

    Returns:
        `faults`; `wishes`, and how many of them were `answered_before` the first fault; `orders`; `retries`; and in
        `losses` what went wrong, by name: nothing, in a sound shop.
    """
    random = Random(seed)  # noqa: S311 - it is there to be repeated
    moment, later = random.randint(1, LATEST), random.uniform(0, 0.01)
    *customers, last = bursts.make_customers(WISHES + 1)
    sale, products = open_sale(strategy)
    wishes = [wish_of(customer, sale, cart(list(products.values()), random), random) for customer in customers]

    parts.ended.clear()
    # What a process that is dead has reserved keeps those busy who want it, until it is reconciled.
    with Burst(parts.stack.port, wishes, busy=BUSY) as burst:
        burst.wait_until(moment)
        time.sleep(later)  # into the middle of some call
        answered_before = burst.answered
        faults = {**FAULTS, **CONTROLS}[fault](parts, burst, random)
        parts.supervise(lambda: burst.over, "the buyers to be answered")
    retries = sum(wish.requests for wish in wishes) - len(wishes)
    parts.recover()
    # Before it is reconciled: what is reserved may be somebody's who is dead, but every unit is somebody's.
    ownerless = drift_at_rest(products)
    # Nobody is on his way any more: what is reserved and no order is nobody's.
    call_command("reconcile", grace=0.0)

    # Everybody asks once more with the same key: who has an order finds it, and who has none may try.
    ask(parts, wishes)
    left = {product: units for sku, product in products.items() if (units := stock.on_hand(sku))}
    if left:
        wishes.append(wish_of(last, sale, sorted(left.items()), random))
        until = time.monotonic() + MOMENT
        while not wishes[-1].orders and time.monotonic() < until:
            ask(parts, wishes[-1:])
    rest()
    losses = {
        **losses_of(wishes),
        **losses_in_tables(sale, products, wishes),
        "reserved": reserved_for_ever(products),
        "ownerless": ownerless + drift_at_rest(products),
        "unsellable": sum(stock.on_hand(sku) for sku in products),
        # Celery's worker may, with the connection that it loses: https://github.com/celery/kombu/issues/582
        "ended by itself": sorted(set(parts.ended) - {"worker"}),
    }
    lifecycle.close(sale)
    return {
        "faults": faults,
        "wishes": WISHES,
        "answered_before": answered_before,
        "orders": sum(bool(wish.orders) for wish in wishes),
        "retries": retries,
        "losses": {name: loss for name, loss in losses.items() if loss},
    }


def ask(parts: Parts, wishes: Sequence[Wish]) -> None:
    """A burst in which nothing happens."""
    with Burst(parts.stack.port, wishes) as burst:
        parts.supervise(lambda: burst.over, "the buyers to be answered")


def open_sale(strategy: str) -> tuple[int, dict[str, int]]:
    """A sale of its own, open and preheated: its id, and its products by their sku."""
    now = timezone.now()
    products = {}
    with transaction.atomic():
        sale = Sale.objects.create(
            name=f"Round by {strategy}", opens_at=now, closes_at=now + timedelta(hours=1), strategy=strategy
        )
        for number in range(SKUS):
            product = Product.objects.create(sku=f"round-{sale.pk}-{number}", name=f"Part {number}")
            stock.deliver(product.sku, UNITS)
            SaleItem.objects.create(sale=sale, product=product, price=Decimal("9.90"), limit=SKUS * UNITS)
            products[product.sku] = product.pk
    lifecycle.preheat(sale.pk)
    return sale.pk, products


def cart(products: Sequence[int], random: Random) -> list[tuple[int, int]]:
    """One product, or several in a random order; one unit or two of each."""
    wanted = random.sample(products, random.choice((1, 1, 2, SKUS)))
    return [(product, random.randint(1, 2)) for product in wanted]


def wish_of(customer: int, sale: int, wanted: Sequence[tuple[int, int]], random: Random) -> Wish:
    return Wish(customer, str(UUID(int=random.getrandbits(128))), sale, wanted)


def losses_of(wishes: Sequence[Wish]) -> dict[str, Any]:
    """What the buyers saw go wrong."""
    return {
        "unanswered": sum(wish.gave_up for wish in wishes),
        "queued for ever": sum(wish.gave_up and wish.queued for wish in wishes),
        "wrong answers": sorted(set().union(*(wish.refusals for wish in wishes)) - {"sold-out"}),
        "two answers for one key": sum(len(wish.orders) > 1 for wish in wishes),
    }


def losses_in_tables(sale: int, skus: Mapping[str, int], wishes: Sequence[Wish]) -> dict[str, Any]:
    """What the tables hold against what the buyers were told."""
    rows = Order.objects.filter(sale=sale).values_list("pk", "customer")
    there = {str(order) for order, _ in rows}
    told = set().union(*(wish.orders for wish in wishes))
    return {
        "missing": len(told - there),
        "untold": len(there - told),
        "two orders for one key": sum(count > 1 for count in Counter(customer for _, customer in rows).values()),
        "unconserved": [str(figures) for figures in conservation.figures(skus) if not figures.conserved],
    }


def reserved_for_ever(skus: Mapping[str, int]) -> int:
    """Units that stay noted in Redis, for nobody. What a worker has left on a queue is taken over after a while."""
    deadline = time.monotonic() + PATIENCE
    while (units := units_reserved(skus)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return units


def units_reserved(skus: Mapping[str, int]) -> int:
    reserved = registry.counters().reserved()
    return sum(units for name, units in reserved.items() if sku_of(name) in skus)


def sku_of(name: str) -> str:
    """The sku of a counter: its own name, or what that of a segment begins with."""
    return name.partition("\0")[0]


def drift_at_rest(skus: Mapping[str, int]) -> int:
    """The drift that stays: Redis and Postgres are read one after the other, and a worker may be between them."""
    until = time.monotonic() + SETTLED
    while (drift := drift_in_redis(skus)) and time.monotonic() < until:
        time.sleep(0.05)
    return drift


def drift_in_redis(skus: Mapping[str, int]) -> int:
    """Units that Redis keeps from everybody and has reserved for nobody, or admits though they are gone.

    What is noted for a request that has become an order is sold.
    """
    counters = registry.counters()
    notes = counters.notes()
    orders = saved([note.request for note in notes])
    reserved: Counter[str] = Counter()
    for note in notes:
        if note.request not in orders:
            for name, units in note.items:
                reserved[sku_of(name)] += units
    on_hand = dict(StockItem.objects.filter(sku__in=skus).values_list("sku", stock.all_on_hand()))
    left = {sku: admits for sku, admits in counters.left(list(skus)).items() if admits is not None}
    left.update({sku: units for sku, (units, _) in registry.segment_counters().sums(list(skus)).items()})
    return sum(abs(on_hand[sku] - admits - reserved[sku]) for sku, admits in left.items())
