"""Offers: what a sale sells and at which prices, cached in each process, so that an order needs no query for it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from django.conf import settings
from django.db import DatabaseError
from django.db.models import QuerySet
from django.db.models.functions import Now

from inventory.batching import Batcher
from inventory.caching import Cache
from inventory.outages import ANSWERING, Breaker, outages
from shop import limits
from shop.clock import Clock
from shop.models import Sale, SaleItem


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
    """The data of a sale that placing an order needs.

    Args:
        products: the items by product id.
        clock: Postgres's clock, for the opening of the sale and the time of an order.
        waiting_room: whether an order needs a ticket of `shop.waiting`.
        admitted_per_second: customers that the waiting room admits per second.
        guest_checkout: whether guests may buy in the sale.
        stock_shown: what customers may see of the units left, a value of `Sale.StockShown`.
        product_ids: product ids by sku.
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
    waiting_room: bool = False
    admitted_per_second: int | None = None
    paused: bool = False
    guest_checkout: bool = False
    stock_shown: str = Sale.StockShown.EXACT
    product_ids: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "product_ids", {item.sku: item.product for item in self.products.values()})

    def is_open(self, now: datetime) -> bool:
        return self.opens_at <= now < self.closes_at


cache: Cache[int, Offer] = Cache()
"""Offers by sale id."""

_readers: Batcher[int, Offer | None] = Batcher()
OUTAGE = 60.0
"""Seconds for which an expired offer is still used while Postgres does not answer."""


outage = Breaker(limits.REQUEST)
"""The circuit breaker that is open while Postgres does not answer.

Of the threads that can use an expired offer, only one at a time waits for Postgres.
"""


def get(sale: int) -> Offer | None:
    """Return the offer of a sale, at most `OFFER_TTL` seconds old; None if there is no such sale.

    While Postgres does not answer, this returns an older offer, so that a strategy that needs only Redis can continue.
    The sale is checked again when the order is saved.

    Raises:
        DatabaseError: Postgres does not answer, and the cached offer is missing or expired over `OUTAGE` seconds ago.
    """
    entry = cache.get(sale)
    if time.monotonic() < entry.refresh_at:
        return entry.value
    old = entry.value if time.monotonic() < entry.expires_at + OUTAGE else None
    if old is not None and outage.is_another_callers():
        return old
    try:
        return cache.get_or_load(sale, _read_noting_outage, ttl=settings.OFFER_TTL, stale_if=DatabaseError)
    except DatabaseError:
        if old is None:
            raise
        return old
    finally:
        outage.end_turn()


def _read_noting_outage(sale: int) -> Offer | None:
    try:
        offer = read(sale)
    except DatabaseError:
        outage.begin()
        raise
    outage.end()
    outages.worked(ANSWERING)
    return offer


def get_newest(sale: int) -> Offer | None:
    """Read the offer of a sale from Postgres, cache it and return it. Concurrent callers share one query.

    Raises:
        DatabaseError: Postgres does not answer.
    """
    return _readers.submit(sale, _read_again)


def _read_again(sales: Sequence[int]) -> list[Offer | None]:
    newest = {sale: cache.reload(sale, _read_noting_outage, ttl=settings.OFFER_TTL) for sale in set(sales)}
    return [newest[sale] for sale in sales]


def forget(sale: int) -> None:
    """Invalidate the cached offer of a sale in this process."""
    cache.forget(sale)


def read(sale: int) -> Offer | None:
    """Read the offer of a sale from Postgres, without the cache; None if there is no such sale."""
    return next(iter(_read(Sale.objects.filter(pk=sale))), None)


def open_or_coming(most: int = 100) -> list[Offer]:
    """Return the offers of up to `most` sales that are not over, sorted by opening time."""
    return _read(Sale.objects.filter(closes_at__gt=Now()).order_by("opens_at", "pk")[:most])


def _read(sales: QuerySet[Sale]) -> list[Offer]:
    rows = list(sales.annotate(read_at=Now()))
    at = time.monotonic()
    # Avoid slow model objects: a sale may have a thousand products, and each process reads it twice a second.
    items: dict[int, list[OfferItem]] = defaultdict(list)
    fields = ("sale", "product", "product__sku", "product__name", "price", "limit")
    for sale, *item in SaleItem.objects.filter(sale__in=rows).order_by("pk").values_list(*fields):
        items[sale].append(OfferItem(*item))
    return [_offer_of(row, items[row.pk], Clock(row.read_at, at)) for row in rows]


def _offer_of(sale: Sale, items: Sequence[OfferItem], clock: Clock) -> Offer:
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
        sale.waiting_room,
        sale.admitted_per_second,
        sale.paused_at is not None,
        sale.guest_checkout,
        sale.stock_shown,
    )
