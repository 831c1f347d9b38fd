"""A short-lived cache of skus that are sold out, so that late requests cost almost nothing.

Each process has its own cache, and trusts an entry for `SOLD_OUT_TTL` seconds only: units that another process has
returned can be sold soon. After that time one request probes the stock while the others are still refused. Otherwise
all of them would queue at the lock or the row, several times a second, in vain.
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
    """Refuse a request that wants more units than the cache says are left. Otherwise run the block: it takes stock.

    If the cached entry is older than `SOLD_OUT_TTL` seconds, one request runs as a probe. If the block raises
    `SoldOut`, the units left are cached again. If it succeeds, the entry is dropped, and every request may try. If it
    fails otherwise, the next request is the probe. If it hangs, another probe starts every `SOLD_OUT_TTL` seconds.

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
        SoldOut: a fresh entry says that too few units are left. Then the request probes none of its items.
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
    """Let the next request probe these skus, because this one did not learn whether they are sold out. Skip `but`."""
    for sku, entry in probes.items():
        if sku != but:
            units_left.replace(sku, entry, replace(entry, refresh_at=-math.inf))
