"""A short-lived cache of sold-out skus, so that a request after the last unit is refused at almost no cost.

Each process has its own cache, and trusts an entry for `SOLD_OUT_TTL` seconds only: another process may return units.
After that time, one request probes the stock while the others are still refused. Otherwise all requests would queue at
the lock or the row, several times a second, and get nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from django.conf import settings

from inventory import observing
from inventory.caching import Cache, CacheEntry
from inventory.errors import SoldOut
from inventory.requests import OrderRequest

units_left: Cache[str, int] = Cache()
"""Units that were left at the last refusal, by sku. If the refresh of an entry is due, one request may probe the
stock."""


@contextmanager
def remembered(request: OrderRequest) -> Iterator[None]:
    """Refuse a request for more units than the cached units left. Otherwise run the block, which takes the stock.

    If the cached entry is older than `SOLD_OUT_TTL` seconds, one request runs as a probe. If the block raises
    `SoldOut`, the units left are cached again. If the block succeeds, the entry is dropped, and every request may try.
    After another error, the next request is the probe. If the block hangs, another probe starts every `SOLD_OUT_TTL`
    seconds.

    Raises:
        SoldOut: too few units are left, according to the block or the cache.
    """
    probes = _begin(request)
    try:
        yield
    except SoldOut as refused:
        _probe_again(probes, but=refused.sku)
        units_left.put(refused.sku, refused.left, refresh_at=time.monotonic() + settings.SOLD_OUT_TTL)
        raise
    except BaseException:
        _probe_again(probes)
        raise
    for sku, entry in probes.items():
        units_left.replace(sku, entry, CacheEntry())


def forget() -> None:
    """Clear the cache, so that every request may try: units have been returned, or a sale begins."""
    units_left.clear()


def _begin(request: OrderRequest) -> Mapping[str, CacheEntry[int]]:
    """Claim the sold-out entries that this request probes, and return them by sku.

    Raises:
        SoldOut: too few units are left, according to an entry that is not due for a probe. Then the request probes
            nothing.
    """
    while True:
        now, due = time.monotonic(), {}
        for item in request.items:
            entry = units_left.get(item.sku)
            if entry.value is not None and item.quantity > entry.value:
                if now < entry.refresh_at:
                    for observer in observing.observers():
                        observer.refused_from_memory()
                    raise SoldOut(item.sku, wanted=item.quantity, left=entry.value)
                due[item.sku] = entry
        probes = units_left.claim(due, until=now + settings.SOLD_OUT_TTL)
        if probes is not None:
            return probes


def _probe_again(probes: Mapping[str, CacheEntry[int]], *, but: str = "") -> None:
    """Let the next request probe these skus, except `but`. This request did not learn whether they are sold out."""
    for sku, entry in probes.items():
        if sku != but:
            units_left.replace(sku, entry, replace(entry, refresh_at=-math.inf))
