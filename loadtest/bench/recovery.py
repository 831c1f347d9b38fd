"""How long a sale stands still when whoever is selling is killed in the middle of an order.

The one that dies is a process of its own, `python -m loadtest.bench.recovery SALE PRODUCT CUSTOMER`: it takes stock,
and says so where its order would be saved, or once it is queued.
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
import uuid
from collections.abc import Mapping, Sequence
from statistics import median
from unittest import mock
from uuid import UUID

from inventory.errors import Refusal, TryAgain
from inventory.requests import OrderRequest
from loadtest import burst as bursts
from shop.orders import place
from shop.orders.place import place_order
from shop.orders.queued import save_queued

STOCK = 100
PATIENCE = 30.0
"""Seconds after which a sale is not waited for any more."""


def measure(strategy: str, customers: Sequence[int], rounds: int) -> float:
    """Seconds from the death of a seller until another process has placed an order: the median of so many rounds.

    Args:
        customers: ids of users: two are enough.

    Raises:
        RuntimeError: nobody can buy any more.
    """
    return median(once(strategy, customers) for _ in range(rounds))


def once(strategy: str, customers: Sequence[int]) -> float:
    """One death, on a product of its own."""
    burst = bursts.prepare(
        host="",
        strategy=strategy,
        rung="",
        units=STOCK,
        skus=1,
        quantity=1,
        limit=STOCK,
        customers=list(customers),
    )
    (product,) = burst.products.values()
    command = [sys.executable, "-m", "loadtest.bench.recovery", *map(str, (burst.sale, product, customers[0]))]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as seller:
            said = seller.stdout.readline() if seller.stdout else ""
            seller.kill()
            died = time.monotonic()
            if not said:
                raise RuntimeError(f"{strategy}: the seller has ended before it was killed")
        while True:
            try:
                place_order(customer=customers[1], sale=burst.sale, quantities={product: 1}, key=uuid.uuid4().hex)
            except TryAgain:
                if time.monotonic() - died > PATIENCE:
                    raise RuntimeError(f"{strategy}: nobody could buy within {PATIENCE:.0f} s") from None
            else:
                return time.monotonic() - died
    finally:
        save_queued()
        bursts.finish(burst)


def sell_until_killed(sale: int, product: int, customer: int) -> None:
    """Place an order that is never saved, or one that is queued, and stand still."""

    def stand_still(requests: Sequence[OrderRequest] = ()) -> Mapping[UUID, Refusal]:
        sys.stdout.write("taken\n")
        sys.stdout.flush()
        while True:
            time.sleep(60)

    with mock.patch.object(place, "save", stand_still):
        place_order(customer=customer, sale=sale, quantities={product: 1}, key=uuid.uuid4().hex)
    stand_still()


if __name__ == "__main__":
    sell_until_killed(*map(int, sys.argv[1:]))
