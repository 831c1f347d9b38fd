"""What a sale offers, cached in each process: placing an order needs no query for it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from django.conf import settings
from django.db import DatabaseError
from django.db.models import QuerySet, prefetch_related_objects
from django.db.models.functions import Now

from inventory.batching import Batcher
from inventory.caching import Cache
from shop.clock import Clock
from shop.models import Sale


@dataclass(frozen=True, slots=True)
class OfferItem:
    """A product in a sale."""

    product: int
    sku: str
    name: str
    price: Decimal
    limit: int | None


@dataclass(frozen=True, slots=True)
class Offer:
    """A sale as an order needs it.

    Args:
        products: the items by product id.
        clock: tells whether the sale is open, and when an order was placed.
        product_ids: by sku.
    """

    sale: int
    name: str
    opens_at: datetime
    closes_at: datetime
    strategy: str
    preheated: bool
    products: Mapping[int, OfferItem]
    currency: str
    clock: Clock = field(repr=False, compare=False)
    product_ids: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "product_ids", {item.sku: item.product for item in self.products.values()})

    def is_open(self, now: datetime) -> bool:
        return self.opens_at <= now < self.closes_at


cache: Cache[int, Offer] = Cache()
"""Offers by sale id."""

_readers: Batcher[int, Offer | None] = Batcher()


def get(sale: int) -> Offer | None:
    """Return the offer of a sale, at most `OFFER_TTL` seconds old; None when there is no such sale.

    Raises:
        DatabaseError: Postgres does not answer, and no offer that young is cached.
    """
    return cache.get_or_load(sale, read, ttl=settings.OFFER_TTL, stale_if=DatabaseError)


def get_newest(sale: int) -> Offer | None:
    """Return the offer of a sale as it is now, and cache it. Concurrent callers share one reading.

    Raises:
        DatabaseError: Postgres does not answer.
    """
    return _readers.submit(sale, _read_again)


def _read_again(sales: Sequence[int]) -> list[Offer | None]:
    newest = {sale: cache.reload(sale, read, ttl=settings.OFFER_TTL) for sale in set(sales)}
    return [newest[sale] for sale in sales]


def forget(sale: int) -> None:
    """Make this process read the offer of a sale again."""
    cache.forget(sale)


def read(sale: int) -> Offer | None:
    """Return the offer of a sale from the tables; None when there is no such sale."""
    return next(iter(_read(Sale.objects.filter(pk=sale))), None)


def open_or_coming(most: int = 100) -> list[Offer]:
    """Return the offers of the sales that are not over, sorted by opening time."""
    return _read(Sale.objects.filter(closes_at__gt=Now()).order_by("opens_at", "pk")[:most])


def _read(sales: QuerySet[Sale]) -> list[Offer]:
    rows = list(sales.annotate(read_at=Now()))
    at = time.monotonic()
    prefetch_related_objects(rows, "items__product")
    return [_offer_of(row, Clock(row.read_at, at)) for row in rows]


def _offer_of(sale: Sale, clock: Clock) -> Offer:
    items = [
        OfferItem(item.product_id, item.product.sku, item.product.name, item.price, item.limit)
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
        sale.currency,
        clock,
    )
