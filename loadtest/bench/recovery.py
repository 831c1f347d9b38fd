"""Measure how long a sale is blocked when a process is killed in the middle of an order.

The killed process is `python -m loadtest.bench.recovery SALE PRODUCT CUSTOMER`. It takes stock, and reports that it has
taken the stock: just before it saves its order, or once the order is queued.
"""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")

if __name__ == "__main__":
    import django

    django.setup()

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median
from unittest import mock
from uuid import UUID

from inventory.errors import Refusal, TryAgain
from inventory.requests import OrderRequest
from loadtest import outcome, preparation
from loadtest.bench.buying import buy_one
from shop.orders import place
from shop.orders.queued import save_queued

STOCK = 100
GIVE_UP_AFTER = 30.0
"""Seconds after which the measurement fails because no customer can buy."""


def measure(strategy: str, customers: Sequence[int], rounds: int) -> float:
    """Return the median seconds from the death of a process until another process has placed an order.

    Args:
        customers: two user ids or more.

    Raises:
        RuntimeError: no customer can buy within `GIVE_UP_AFTER` seconds, or the process ended before it was killed.
    """
    return median(measure_once(strategy, customers) for _ in range(rounds))


def measure_once(strategy: str, customers: Sequence[int]) -> float:
    """Kill one process while it orders a new product. Return the seconds until another process has placed an order."""
    burst = preparation.prepare(strategy=strategy, units=STOCK, limit=STOCK, customers=list(customers))
    (product,) = burst.products.values()
    command = [sys.executable, "-m", "loadtest.bench.recovery", *map(str, (burst.sale, product, customers[0]))]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as seller:
            reported = seller.stdout.readline() if seller.stdout else ""
            seller.kill()
            died = time.monotonic()
            if not reported:
                raise RuntimeError(f"{strategy}: the selling process ended before it was killed")
        while True:
            try:
                buy_one(sale=burst.sale, product=product, customer=customers[1])
            except TryAgain:
                if time.monotonic() - died > GIVE_UP_AFTER:
                    raise RuntimeError(f"{strategy}: nobody could buy within {GIVE_UP_AFTER:.0f} s") from None
            else:
                return time.monotonic() - died
    finally:
        save_queued()
        outcome.close_sale(burst)


def sell_until_killed(sale: int, product: int, customer: int) -> None:
    """Place an order that is queued or never saved, then wait to be killed."""

    def report_and_wait(requests: Sequence[OrderRequest] = ()) -> Mapping[UUID, Refusal]:
        sys.stdout.write("taken\n")
        sys.stdout.flush()
        while True:
            time.sleep(60)

    with mock.patch.object(place, "save", report_and_wait):
        buy_one(sale=sale, product=product, customer=customer)
    report_and_wait()


if __name__ == "__main__":
    sell_until_killed(*map(int, sys.argv[1:]))
