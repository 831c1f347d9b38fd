"""What a sale offers, read now and then by each process: an order costs no query to learn it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from django.conf import settings
from django.db import DatabaseError

from shop.models import Product, Sale


@dataclass(frozen=True, slots=True)
class Offered:
    """A product in a sale."""

    product: int
    sku: str
    name: str
    price: Decimal
    limit: int | None


@dataclass(frozen=True, slots=True)
class Offer:
    """A sale as an order sees it. The products are known by their id; `rows` has them by sku, for all to share."""

    sale: int
    name: str
    opens_at: datetime
    closes_at: datetime
    strategy: str
    preheated: bool
    products: Mapping[int, Offered]
    rows: Mapping[str, Product] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows = {item.sku: Product(pk=item.product, sku=item.sku, name=item.name) for item in self.products.values()}
        object.__setattr__(self, "rows", rows)

    def is_open(self, now: datetime) -> bool:
        return self.opens_at <= now < self.closes_at


_remembered: dict[int, tuple[float, Offer]] = {}
"""Until when, on the monotonic clock, and what. Not a cache of Django's: those copy what they keep, each time."""

_renewed: dict[int, float] = {}
"""What of the above, by its end, somebody is reading anew already."""

_forgotten: dict[int, object] = {}
"""When each was last to be forgotten: another object each time."""


def get(sale: int) -> Offer | None:
    """The offer of a sale, at most `OFFER_TTL` seconds old; None where there is no such sale.

    When half of that has passed one of those who ask reads it anew, so that not all who ask have to when it is over. If
    he gets no answer nothing is lost yet.
    """
    now, forgotten = time.monotonic(), _forgotten.get(sale)
    until, remembered = _remembered.get(sale, (now, None))
    ahead = now < until
    if ahead:
        if until - now > settings.OFFER_TTL / 2 or _renewed.get(sale) == until:
            return remembered
        _renewed[sale] = until
    try:
        offer = read(sale)
    except DatabaseError:
        if not ahead:
            raise
        return remembered
    if offer is not None:
        _remembered[sale] = (now + settings.OFFER_TTL, offer)
        if _forgotten.get(sale) is not forgotten:  # since this began to read: it may be what was to be forgotten
            _remembered.pop(sale, None)
    return offer


def forget(sale: int) -> None:
    """Read the sale anew the next time, in this process."""
    _forgotten[sale] = object()  # first: who has stored what he has read looks at this afterwards
    _remembered.pop(sale, None)


def read(sale: int) -> Offer | None:
    """The offer of a sale as the tables have it now; None where there is no such sale."""
    row = Sale.objects.filter(pk=sale).prefetch_related("items__product").first()
    return None if row is None else offer_of(row)


def offer_of(sale: Sale) -> Offer:
    """The offer of a sale whose items and products are at hand."""
    items = [
        Offered(item.product_id, item.product.sku, item.product.name, item.price, item.limit)
        for item in sale.items.all()
    ]
    return Offer(
        sale.pk,
        sale.name,
        sale.opens_at,
        sale.closes_at,
        sale.strategy,
        sale.is_loaded,
        {item.product: item for item in items},
    )
