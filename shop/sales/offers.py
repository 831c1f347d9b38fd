"""What a sale offers, cached in each process: placing an order needs no query for it."""

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
    """A sale as an order needs it.

    Args:
        products: the items by product id.
        clock: tells whether the sale is open, and when an order was placed.
        waiting_room: whether an order needs a ticket of `shop.waiting`.
        admitted_per_second: customers whom the waiting room admits.
        guest_checkout: whether guests may buy.
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
    waiting_room: bool = False
    admitted_per_second: int | None = None
    paused: bool = False
    guest_checkout: bool = False
    product_ids: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "product_ids", {item.sku: item.product for item in self.products.values()})

    def is_open(self, now: datetime) -> bool:
        return self.opens_at <= now < self.closes_at


cache: Cache[int, Offer] = Cache()
"""Offers by sale id."""

_readers: Batcher[int, Offer | None] = Batcher()
OUTAGE = 60.0
"""Seconds for which an offer is used after its time to live, while Postgres does not answer."""


outage = Breaker(limits.REQUEST)
"""Whether Postgres answered this process when it was last asked. Each caller waits until a connection gives up."""


def get(sale: int) -> Offer | None:
    """Return the offer of a sale, at most `OFFER_TTL` seconds old; None when there is no such sale.

    While Postgres does not answer, an older offer is used, so that a strategy that needs only Redis goes on. Whoever
    saves the order checks it again.

    Raises:
        DatabaseError: Postgres does not answer, and no offer is cached that was current `OUTAGE` seconds ago.
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
    """Return the offer of a sale as it is now, and cache it. Concurrent callers share one reading.

    Raises:
        DatabaseError: Postgres does not answer.
    """
    return _readers.submit(sale, _read_again)


def _read_again(sales: Sequence[int]) -> list[Offer | None]:
    newest = {sale: cache.reload(sale, _read_noting_outage, ttl=settings.OFFER_TTL) for sale in set(sales)}
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
    # Rows without model objects: a sale may have a thousand products, and every process reads it twice a second.
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
    )
