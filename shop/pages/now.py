"""The changing figures of a sale as JSON for the script of its page: state, prices and units left.

Each open page polls this document every two seconds. To keep that cheap, the document is the same for everybody and
cached in the process. It has an ETag, so that an unchanged document gets status 304.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from django.db import DatabaseError
from django.db.models import prefetch_related_objects
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_safe

from inventory import stock
from inventory.batching import Batcher
from inventory.caching import Cache, CacheEntry
from inventory.models import StockItem
from shop.api.exception_handler import handle_exception
from shop.api.serializers import moment
from shop.clock import Clock
from shop.models import Sale, SaleItem

TTL = 2.0
"""Seconds for which the figures of a sale are cached. After half of this time, one request reads them again."""

FEW = 10
"""Number of units up to which a sale with `StockShown.FEW` shows "few left"."""

StockShown = Sale.StockShown


@dataclass(frozen=True, slots=True)
class SaleNow:
    """A sale and its stock, as read from Postgres at one moment.

    Args:
        left: units on hand by sku.
        clock: Postgres's clock at that moment. The clock goes on, so `state` is right while the sale is cached.
    """

    sale: int
    opens_at: datetime
    closes_at: datetime
    paused: bool
    currency: str
    stock_shown: str
    items: Sequence[SaleItem]
    left: dict[str, int]
    clock: Clock
    waiting_room: bool = False

    @property
    def state(self) -> str:
        """The state of the sale now: `coming`, `paused`, `open`, `sold-out` or `over`."""
        now = self.clock.now()
        if now < self.opens_at:
            return "coming"
        if now >= self.closes_at:
            return "over"
        if self.paused:
            return "paused"
        return "open" if not self.items or any(self.units_left(item) for item in self.items) else "sold-out"

    def units_left(self, item: SaleItem) -> int:
        return max(0, self.left.get(item.product.sku, 0))

    def left_shown(self) -> dict[int, int | str | None]:
        """Return the units left as buyers may see them, by product id. See `shown`."""
        return {item.product_id: shown(self.units_left(item), self.stock_shown) for item in self.items}

    def document(self) -> dict[str, Any]:
        """Return the JSON document for the script of the page."""
        left = self.left_shown()
        return {
            "sale": self.sale,
            "state": self.state,
            "paused": self.paused,
            "opens_at": moment(self.opens_at),
            "closes_at": moment(self.closes_at),
            "currency": self.currency,
            "waiting_room": self.waiting_room,
            "items": [
                {
                    "product": item.product_id,
                    "price": f"{item.price:.2f}",
                    "limit": item.limit,
                    "left": left[item.product_id],
                }
                for item in self.items
            ],
        }


def shown(left: int, stock_shown: str) -> int | str | None:
    """Return the units left as buyers may see them: a number, "few", "some", or None. Zero is always shown.

    Args:
        stock_shown: a value of `Sale.StockShown`.
    """
    if left == 0 or stock_shown == StockShown.EXACT:
        return left
    if stock_shown == StockShown.FEW:
        return "few" if left <= FEW else "some"
    return None


@require_safe
def sale_now(request: HttpRequest, slug: str) -> HttpResponse:
    """Respond with the changing figures of a sale, or with 304 if the client already has them."""
    try:
        found = get(slug)
        if found is None:
            raise Http404(f"There is no sale {slug}.")
    except (DatabaseError, Http404) as error:
        problem = handle_exception(error, {"request": request})
        if problem is None:
            raise
        return problem
    body = msgspec.json.encode(found.document())
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"Cache-Control": "public, s-maxage=1", "ETag": etag}
    response = HttpResponse(body, content_type="application/json", headers=headers)
    return get_conditional_response(request, etag=etag, response=response) or response


cache: Cache[str, SaleNow] = Cache()
"""Sales by slug."""

_readers: Batcher[str, SaleNow | None] = Batcher()


def get(slug: str) -> SaleNow | None:
    """Return a sale as it was at most `TTL` seconds ago; None if there is no such sale.

    This process reads a sale at most once in half of `TTL`. While one request reads, the other requests get the old
    figures. If these have expired, or there are none, they wait.
    """
    if time.monotonic() < cache.get(slug).expires_at:
        return _get_or_read(slug)
    return _readers.submit(slug, _get_or_read_each)


def _get_or_read(slug: str) -> SaleNow | None:
    return cache.get_or_load(slug, read, ttl=TTL, stale_if=DatabaseError)


def _get_or_read_each(slugs: Sequence[str]) -> list[SaleNow | None]:
    found = {slug: _get_or_read(slug) for slug in set(slugs)}
    return [found[slug] for slug in slugs]


def get_all(slugs: Iterable[str]) -> dict[str, SaleNow]:
    """Return sales as they were at most `TTL` seconds ago, by slug. Sales that do not exist are left out.

    Sales that are due for a refresh are read together, so a hundred sales cost four queries, or none if all are cached.

    Raises:
        DatabaseError: Postgres does not answer.
    """
    before = {slug: cache.get(slug) for slug in slugs}
    now = time.monotonic()
    due = [slug for slug, entry in before.items() if now >= entry.refresh_at]
    found = _read(due) if due else {}
    for slug, sale in found.items():
        cache.replace(slug, before[slug], CacheEntry(sale, now + TTL / 2, now + TTL))
    cached = {slug: entry.value for slug, entry in before.items() if slug not in due and entry.value is not None}
    return {**cached, **found}


def read(slug: str) -> SaleNow | None:
    """Read a sale from Postgres, without the cache; None if there is no such sale."""
    return _read([slug]).get(slug)


def _read(slugs: Sequence[str]) -> dict[str, SaleNow]:
    sales = list(Sale.objects.filter(slug__in=slugs).annotate(read_at=Now()))
    at = time.monotonic()
    prefetch_related_objects(sales, "items__product")
    skus = {item.product.sku for sale in sales for item in sale.items.all()}
    left = dict(StockItem.objects.filter(sku__in=skus).values_list("sku", stock.all_on_hand()))
    return {
        sale.slug: SaleNow(
            sale.pk,
            sale.opens_at,
            sale.closes_at,
            sale.paused_at is not None,
            sale.currency,
            sale.stock_shown,
            sorted(sale.items.all(), key=lambda item: item.pk),
            left,
            Clock(sale.read_at, at),
            sale.waiting_room,
        )
        for sale in sales
    }
