"""Prepare a burst: products, stock, an open sale and customers."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.contrib.auth.models import User
from django.utils import timezone

from inventory import stock
from inventory.strategies import registry
from loadtest.burst import Burst
from loadtest.lab_api import LabError, call_lab
from shop.models import Product, Sale, SaleItem
from shop.sales import load_tests
from shop.sales.preheat import preheat_sale


class ShopNotFound(Exception):
    """No shop answers at the target address."""


LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
NO_STRATEGY = ""
"""The strategy of a sale of a rung. Neither the admin nor the storefront lists a sale without a strategy."""
PRICE = "9.90"
"""Price of one unit in a burst."""

BURST_TITLE = "Burst: "
"""Prefix of the name of each sale that is made for a burst."""


def require_shop(host: str | None) -> None:
    """Check that a web server answers at `host`. An error is accepted as an answer, because buyers retry.

    Raises:
        ShopNotFound: nothing answers, so no buyer could order.
    """
    if not host:
        raise ShopNotFound("name the shop with --host: http://127.0.0.1:8000 is the address of `make demo`")
    try:
        urllib.request.urlopen(host, timeout=10).close()  # noqa: S310 - the host is the load test's own target
    except urllib.error.HTTPError:
        return
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ShopNotFound(
            f"no shop answers at {host} ({reason}); start one with `make demo` or `manage.py serve`"
        ) from error


def create_customers(count: int) -> list[int]:
    """Return the ids of `count` customers, the same customers for every burst. They have no usable password."""
    names = [f"buyer-{number:06}" for number in range(1, count + 1)]
    users = (User(username=name, password=UNUSABLE_PASSWORD_PREFIX) for name in names)
    User.objects.bulk_create(users, ignore_conflicts=True, batch_size=10_000)
    ids: list[int] = []
    for first in range(0, count, 10_000):  # A statement has at most 65,535 parameters.
        users_in_batch = User.objects.filter(username__in=names[first : first + 10_000])
        ids.extend(users_in_batch.order_by("username").values_list("pk", flat=True))
    return ids


def prepare(
    *,
    strategy: str,
    units: int,
    customers: list[int],
    limit: int,
    host: str = "",
    rung: str = "",
    skus: int = 1,
    quantity: int = 1,
    seconds: float = 0.0,
) -> Burst:
    """Create products, their stock and an open sale, and preheat it.

    Args:
        strategy: the shop's strategy; ignored when `rung` is set.
        units: stock of each product.
        customers: ids of the users who order; see `create_customers`.
        limit: maximum units per customer and product.
        host: address of the shop; needed for a rung, whose stock is created over HTTP.
        rung: a flawed way of selling in the lab (a rung); empty to sell with `strategy`.
        skus: number of products.
        quantity: units in each order, if there is one product.
        seconds: duration after which no order is started or retried; 0 for no limit.

    Raises:
        UnknownStrategy: there is no such strategy.
        LabError: the lab has no such rung, or does not answer.
        CannotPreheat: the strategy queues orders, and Redis may lose them.
        RedisError: Redis does not answer, and the strategy needs it.
    """
    if rung:
        rungs = call_lab(host, "GET", "/lab/rungs/", customers[0])["rungs"]
        if rung not in rungs:
            raise LabError(f"the lab has no rung {rung}; it has {', '.join(rungs)}")
    else:
        registry.get(strategy)
    name = f"burst-{uuid.uuid4().hex[:10]}"
    title = BURST_TITLE + (f"{rung}, on the lab's own tables" if rung else strategy)
    names = [name] if skus == 1 else [f"{name}-{number}" for number in range(1, skus + 1)]
    products = {sku: Product.objects.create(sku=sku, name=title) for sku in names}
    # The sale of a rung only stores the products and their prices. It closed long ago and has no strategy, so no list
    # shows it as a sale of the shop. `outcome.close_sale` deletes it.
    opens_at = LONG_AGO if rung else timezone.now()
    sale = Sale.objects.create(
        name=title,
        slug=load_tests.SLUG_PREFIX + name.removeprefix("burst-"),
        opens_at=opens_at,
        closes_at=opens_at + timedelta(hours=1),
        strategy=NO_STRATEGY if rung else strategy,
    )
    for sku, product in products.items():
        SaleItem.objects.create(sale=sale, product=product, price=Decimal(PRICE), limit=limit)
        if rung:
            call_lab(host, "PUT", f"/lab/stock/{sku}/", customers[0], {"received": units})
        else:
            stock.deliver(sku, units)
    if not rung:
        preheat_sale(sale.pk)
    return Burst(
        strategy=strategy,
        rung=rung,
        sale=sale.pk,
        products={sku: product.pk for sku, product in products.items()},
        price=PRICE,
        stock=units,
        quantity=quantity,
        customers=customers,
        seconds=seconds,
    )
