"""The plan of a burst: products on sale, customers, and units per order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Burst:
    """A prepared burst. It has plain values only, so that Locust can send it to its workers.

    Args:
        strategy: the shop's strategy; ignored when `rung` is set.
        rung: a flawed way of selling in the lab (a rung); empty to sell with `strategy`.
        sale: id of the sale.
        products: product ids by sku.
        price: price of one unit of each sku, with two decimals.
        stock: units of each sku.
        quantity: units in each order, if there is one sku. With several skus, each order has 1 to 3 random units.
        customers: user ids; each user places one order.
        seconds: duration after which no order is started or retried; 0 for no limit.
    """

    strategy: str
    rung: str
    sale: int
    products: dict[str, int]
    price: str
    stock: int
    quantity: int
    customers: list[int]
    seconds: float = 0.0
    _next_customers: Iterator[int] | None = field(default=None, repr=False)

    @property
    def path(self) -> str:
        return f"/lab/rungs/{self.rung}/orders/" if self.rung else "/api/orders/"

    def cart(self) -> dict[str, int]:
        """Return the units by sku for the next order: `quantity` of the only sku, or 1 to 3 units of random skus."""
        if len(self.products) == 1:
            return dict.fromkeys(self.products, self.quantity)
        return Counter(random.choices(list(self.products), k=random.randint(1, 3)))  # noqa: S311 - no secret

    def body(self, cart: dict[str, int]) -> dict[str, Any]:
        """Return the request body that orders a cart."""
        items = [{"product": self.products[sku], "quantity": units, "price": self.price} for sku, units in cart.items()]
        return {"sale": self.sale, "items": items}

    def next_customer(self) -> int | None:
        if self._next_customers is None:
            self._next_customers = iter(self.customers)
        return next(self._next_customers, None)

    def as_message(self, worker: int, workers: int) -> dict[str, Any]:
        """Return this burst as plain values for one Locust worker, with that worker's share of the customers."""
        values = asdict(self)
        del values["_next_customers"]
        values["customers"] = self.customers[worker::workers]
        return values
