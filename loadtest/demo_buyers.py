"""The simulated buyers of the demo. They order through the API every few seconds, while the demo runs."""

from __future__ import annotations

import http.client
import json
import random
import threading
import urllib.request
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from types import TracebackType
from typing import Any, Self

from django.db import DatabaseError, connections
from django.db.models.functions import Now

from inventory import stock
from loadtest.preparation import create_customers
from loadtest.tokens import access_token
from shop.models import Order, Product, Sale, SaleItem
from shop.orders import payments

AT_ONCE = 12
"""Number of orders at the beginning of each sale, without pauses between them."""
CUSTOMERS = 120
"""Number of simulated buyers, who take turns. Each order is for one unit."""
PAUSE = (3.0, 12.0)
"""Shortest and longest pause between two later orders of a sale, in seconds."""
PAID = 0.5
"""Share of a sale's units that simulated buyers pay for. They cancel later orders, so that a sale never sells out."""
WAITING = 8
"""Maximum number of unpaid orders to keep in a sale. If there are more, the buyers cancel the oldest one."""


@dataclass
class Bought:
    """Orders of the simulated buyers in one sale.

    Args:
        keep: number of orders that the buyers pay for.
        orders: number of orders that were placed.
        paid: number of orders that were paid.
        waiting: (customer, order id) of orders that will be cancelled, the oldest first.
    """

    keep: int
    orders: int = 0
    paid: int = 0
    waiting: deque[tuple[int, str]] = field(default_factory=deque)


class DemoBuyers:
    """A thread of simulated buyers, who buy from some sales. As a context manager, it starts and stops the thread.

    Args:
        url: address of the shop.
        sales: ids of the products to buy, by sale id. The buyers wait until a sale is open.
    """

    def __init__(self, url: str, sales: Mapping[int, Sequence[int]]) -> None:
        self.url = url
        self.sales = sales
        self._bought: dict[int, Bought] = {}
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
            customers = cycle(create_customers(CUSTOMERS))
            while not self._stopped.is_set():
                for sale in self._open():
                    for _ in range(1 if sale in self._bought else AT_ONCE):
                        if self._stopped.is_set():
                            return
                        self._buy(sale, next(customers))
                self._stopped.wait(random.uniform(*PAUSE))  # noqa: S311 - no secret
        except DatabaseError:
            return  # The demo has ended and stopped its servers.
        finally:
            connections.close_all()

    def _open(self) -> list[int]:
        found = Sale.objects.filter(pk__in=self.sales, opens_at__lte=Now(), closes_at__gt=Now(), paused_at=None)
        return list(found.order_by("pk").values_list("pk", flat=True))

    def _buy(self, sale: int, customer: int) -> None:
        """Order one unit. Then pay for it, let the order expire, or cancel it later."""
        if sale not in self._bought:
            self._bought[sale] = Bought(int(PAID * units_of(self.sales[sale])))
        bought = self._bought[sale]
        product = random.choice(self.sales[sale])  # noqa: S311 - no secret
        item = SaleItem.objects.filter(sale=sale, product=product).first()
        if item is None:
            return  # An operator has removed the product from the sale.
        items = [{"product": product, "quantity": 1, "price": f"{item.price:.2f}"}]
        order = self._post("/api/orders/", customer, {"sale": sale, "items": items})
        if "id" not in order:
            return
        bought.orders += 1
        if bought.paid >= bought.keep:
            bought.waiting.append((customer, order["id"]))
            if len(bought.waiting) > WAITING:
                its_customer, oldest = bought.waiting.popleft()
                self._post(f"/api/orders/{oldest}/cancel/", its_customer, {})
        elif bought.orders % 5 != 1:  # One order in five is not paid: it expires, and its unit comes back.
            bought.paid += pay(order["id"])

    def _post(self, path: str, customer: int, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST request of a customer. Return the JSON of the answer; empty if the shop refuses the request."""
        request = urllib.request.Request(  # noqa: S310 - the shop is the demo's own
            f"{self.url}{path}",
            data=json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {access_token(customer)}",
                "Content-Type": "application/json",
                "Idempotency-Key": str(uuid.uuid4()),
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                return dict(json.load(response))
        except (OSError, ValueError, http.client.HTTPException):
            # The product is sold out, or the shop stopped, perhaps in the middle of an answer. The next buyer tries
            # again.
            return {}


def units_of(products: Sequence[int]) -> int:
    """Return the units on hand of these products in total."""
    return sum(map(stock.on_hand, Product.objects.filter(pk__in=products).values_list("sku", flat=True)))


def pay(order: str) -> bool:
    """Record the full payment of an order, as the shop does when the payment provider reports a payment.

    Returns:
        Whether the payment was recorded. An order that is still queued cannot be paid.
    """
    found = Order.objects.filter(pk=order).first()
    if found is None:
        return False
    payments.receive_payment(f"demo-{order}", order=found.pk, amount=found.total, currency=found.currency)
    return True
