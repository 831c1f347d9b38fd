"""What a burst is about: products, their stock, and the customers who come for them."""

from __future__ import annotations

import json
import logging
import random
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.contrib.auth.models import User
from django.utils import timezone
from redis import RedisError
from rest_framework_simplejwt.tokens import AccessToken

from inventory import stock
from inventory.audit import Figures
from inventory.strategies import registry
from shop import conservation
from shop.models import Order, Product, Sale, SaleItem
from shop.sales import lifecycle

logger = logging.getLogger(__name__)


@dataclass
class Burst:
    """A burst that is ready to come. Plain values, so that Locust can send it to its workers.

    Args:
        rung: the flawed rung of the lab that sells; empty for a strategy of the shop.
        products: their ids by sku.
        stock: units of each sku.
        quantity: units that each customer wants of a single sku. Of several skus they want 1 to 3 units, by chance.
        customers: ids of the users who come, one an attempt.
        seconds: after which nobody comes or asks again; 0 for never.
    """

    strategy: str
    rung: str
    sale: int
    products: dict[str, int]
    stock: int
    quantity: int
    customers: list[int]
    seconds: float = 0.0
    _coming: Iterator[int] | None = field(default=None, repr=False)

    @property
    def path(self) -> str:
        return f"/lab/rungs/{self.rung}/orders/" if self.rung else "/api/orders/"

    def cart(self) -> dict[str, int]:
        """What the next customer wants: units by sku, in no particular order."""
        if len(self.products) == 1:
            return dict.fromkeys(self.products, self.quantity)
        return Counter(random.choices(list(self.products), k=random.randint(1, 3)))  # noqa: S311 - no secret

    def body(self, cart: dict[str, int]) -> dict[str, Any]:
        """The order of a cart, as the API wants it."""
        items = [{"product": self.products[sku], "quantity": units} for sku, units in cart.items()]
        return {"sale": self.sale, "items": items}

    def next_customer(self) -> int | None:
        if self._coming is None:
            self._coming = iter(self.customers)
        return next(self._coming, None)

    def token(self, customer: int) -> str:
        return token(customer)

    def as_message(self, worker: int, workers: int) -> dict[str, Any]:
        values = asdict(self)
        del values["_coming"]
        values["customers"] = self.customers[worker::workers]
        return values


def token(customer: int, *, staff: bool = False) -> str:
    """A real access token of a user, signed as the shop signs them."""
    made = AccessToken()
    made["user_id"] = str(customer)
    if staff:
        made["is_staff"] = True
    return str(made)


def prepare(
    *,
    host: str,
    strategy: str,
    rung: str,
    units: int,
    skus: int,
    quantity: int,
    limit: int,
    customers: list[int],
    seconds: float = 0.0,
) -> Burst:
    """Make products, their stock and an open sale; preheat.

    Args:
        host: where the shop is; only the lab's stock is made over HTTP.
        units: the stock of each product.
        skus: how many products.
        quantity: units that each customer wants, where there is one product.
        limit: units that a customer may have of each.
        customers: ids of the users who come; see `make_customers`.
        seconds: after which nobody comes or asks again; 0 for never.

    Raises:
        UnknownStrategy: there is no such strategy.
        LabError: the lab has no such rung, or is not there.
    """
    if not rung:
        registry.get(strategy)
    if rung:
        rungs = ask_lab(host, "GET", "/lab/rungs/", customers[0])["rungs"]
        if rung not in rungs:
            raise LabError(f"the lab has no rung {rung}; it has {', '.join(rungs)}")
    name = f"burst-{uuid.uuid4().hex[:10]}"
    title = f"Burst: {rung}, on the lab's own tables" if rung else f"Burst: {strategy}"
    names = [name] if skus == 1 else [f"{name}-{number}" for number in range(1, skus + 1)]
    products = {sku: Product.objects.create(sku=sku, name=title) for sku in names}
    now = timezone.now()
    sale = Sale.objects.create(
        name=title,
        opens_at=now,
        closes_at=now + timedelta(hours=1),
        strategy=registry.NAMES[0] if rung else strategy,
    )
    for sku, product in products.items():
        SaleItem.objects.create(sale=sale, product=product, price=Decimal("9.90"), limit=limit)
        if rung:
            ask_lab(host, "PUT", f"/lab/stock/{sku}/", customers[0], {"received": units})
        else:
            stock.deliver(sku, units)
    if not rung:
        lifecycle.preheat(sale.pk)
    return Burst(
        strategy,
        rung,
        sale.pk,
        {sku: product.pk for sku, product in products.items()},
        units,
        quantity,
        customers,
        seconds,
    )


class NobodyThere(Exception):
    """There is no shop to let the burst loose on."""


def look_for_the_shop(host: str | None) -> None:
    """Return when something answers at an address, be it an error: buyers ask a shop that is in trouble again.

    Raises:
        NobodyThere: nothing does, and every buyer would ask in vain until he gives up.
    """
    if not host:
        raise NobodyThere("name the shop with --host: http://127.0.0.1:8000, where `make demo` serves one")
    try:
        urllib.request.urlopen(host, timeout=10).close()  # noqa: S310 - the host is the load test's own target
    except urllib.error.HTTPError:
        return
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise NobodyThere(f"no shop answers at {host} ({why}); `make demo` or `manage.py serve` starts one") from error


def make_customers(count: int) -> list[int]:
    """The ids of so many customers; those of earlier bursts come again. They have no password to log in with."""
    names = [f"buyer-{number:06}" for number in range(1, count + 1)]
    users = (User(username=name, password=UNUSABLE_PASSWORD_PREFIX) for name in names)
    User.objects.bulk_create(users, ignore_conflicts=True, batch_size=10_000)
    made: list[int] = []
    for first in range(0, count, 10_000):  # a statement has 65,535 parameters at most
        some = User.objects.filter(username__in=names[first : first + 10_000])
        made.extend(some.order_by("username").values_list("pk", flat=True))
    return made


def finish(burst: Burst) -> None:
    """End the burst's sale, so that nobody finds it open."""
    try:
        lifecycle.close(burst.sale)
    except RedisError as error:
        logger.warning("The counters of the burst stay in Redis: %s", error)


def figures(burst: Burst, *, host: str) -> list[Figures]:
    """What the tables say after the burst, sku by sku: the shop's, or the lab's for a rung."""
    if burst.rung:
        rows = [ask_lab(host, "GET", f"/lab/stock/{sku}/", burst.customers[0]) for sku in burst.products]
        return [Figures(row["sku"], row["received"], row["on_hand"], row["sold"]) for row in rows]
    return conservation.figures(burst.products)


def wait_for_the_queue(burst: Burst, *, patience: float = 60.0) -> None:
    """Return when nothing is queued any more, or after so many seconds."""
    if burst.rung or not registry.get(burst.strategy).queues:
        return
    until = time.monotonic() + patience
    while len(registry.queue()) and time.monotonic() < until:
        time.sleep(0.05)


def missing(burst: Burst, orders: list[str]) -> int:
    """How many orders that were answered with 201 or 202 are not in the shop's tables."""
    return 0 if burst.rung else len(orders) - Order.objects.filter(pk__in=orders).count()


def rejected(burst: Burst) -> list[dict[str, int]]:
    """The carts, units by sku, of the orders that were queued and then sold nothing."""
    if burst.rung:
        return []
    orders = Order.objects.filter(sale=burst.sale, state=Order.State.REJECTED).prefetch_related("items")
    return [{item.product_id: item.quantity for item in order.items.all()} for order in orders]


class LabError(Exception):
    """The lab did not do what it was asked."""


def ask_lab(host: str, method: str, path: str, customer: int, body: Any = None) -> Any:
    """A request to the lab, as a member of the staff.

    Raises:
        LabError: it did not answer, or not with success.
    """
    request = urllib.request.Request(  # noqa: S310 - the host is the load test's own target
        host.rstrip("/") + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token(customer, staff=True)}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            return json.load(response)
    except urllib.error.HTTPError as error:
        hint = " Is LAB_ENABLED set where the shop runs?" if error.code == 404 else ""
        raise LabError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:200]}{hint}") from error
    except OSError as error:
        raise LabError(f"{host} does not answer: {error}") from error
