"""The simulated buyers of the demo: they order through the API, one every few seconds, and most of them pay."""

from __future__ import annotations

import json
import random
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from django.db import DatabaseError, connections

from loadtest.preparation import create_customers
from loadtest.tokens import access_token
from shop.models import Order
from shop.orders import payments

AT_ONCE = 12
"""Orders with which they begin, one after the other."""
CUSTOMERS = 90
"""Each orders one unit."""
PAUSE = (2.0, 7.0)
"""Seconds between two later orders, from and to."""


class DemoBuyers:
    """Buyers of a sale. As a context manager, they begin when it is entered, and stop when it is left.

    Args:
        url: address of the shop.
        sale: id of the sale.
        products: ids of the products that they buy.
    """

    def __init__(self, url: str, sale: int, products: Sequence[int]) -> None:
        self.url = url
        self.sale = sale
        self.products = products
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-buyers")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for number, customer in enumerate(create_customers(CUSTOMERS)):
                if self._stopped.wait(random.uniform(*PAUSE) if number >= AT_ONCE else 0):  # noqa: S311 - no secret
                    return
                order = self._order(customer)
                if order and number % 5:  # The others' orders expire, and their units come back.
                    pay(order)
        except DatabaseError:
            return  # The servers have ended, and with them the demo.
        finally:
            connections.close_all()

    def _order(self, customer: int) -> str:
        """Order a unit of one of the products. Return the order's id, or an empty text if there is no order."""
        product = random.choice(self.products)  # noqa: S311 - no secret
        request = urllib.request.Request(  # noqa: S310 - the shop is the demo's own
            f"{self.url}/api/orders/",
            data=json.dumps({"sale": self.sale, "items": [{"product": product, "quantity": 1}]}).encode(),
            headers={
                "Authorization": f"Bearer {access_token(customer)}",
                "Content-Type": "application/json",
                "Idempotency-Key": str(uuid.uuid4()),
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                return str(json.load(response)["id"])
        except OSError:  # It is sold out, or the shop is ending. The next buyer tries again.
            return ""


def pay(order: str) -> None:
    """Pay an order in full, as the payment provider reports it."""
    found = Order.objects.get(pk=order)
    payments.receive_payment(f"demo-{order}", order=found.pk, amount=found.total, currency=found.currency)
