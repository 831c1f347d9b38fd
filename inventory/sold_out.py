"""Remember for a moment what is sold out, so that late requests cost almost nothing.

Each process remembers for itself and only for `SOLD_OUT_TTL` seconds: units that are returned in another process can be
sold again soon. After that time one request probes the stock while the others are still refused. If all of them asked
at once, they would queue at the lock or the row several times a second, for nothing.
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
"""The units that were left when a request was last refused, by sku. An entry whose refresh is due allows one probe."""


@contextmanager
def remembered(request: OrderRequest) -> Iterator[None]:
    """Refuse a request that wants more units than were left a moment ago; otherwise run the block.

    A request that runs after `SOLD_OUT_TTL` seconds is a probe. If it is refused as sold out, that is remembered again.
    If it gets its units, what was remembered is dropped and every request may try. If it fails in another way, the
    next request becomes the probe. A probe without an answer is followed by another one every `SOLD_OUT_TTL` seconds.

    Raises:
        SoldOut: too few units are left, or were left a moment ago.
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
    """Let every request try again, because units have been returned or a sale begins."""
    units_left.clear()


def _begin(request: OrderRequest) -> Mapping[str, CacheEntry[int]]:
    """Return the sold-out entries that the request probes, by sku.

    Raises:
        SoldOut: too few units were left a moment ago. Then the request probes nothing, not even its other items.
    """
    while True:
        now, due = time.monotonic(), {}
        for item in request.items:
            entry = units_left.get(item.sku)
            if entry.value is not None and item.quantity > entry.value:
                if now < entry.refresh_at:
                    observing.observer().refused_from_memory()
                    raise SoldOut(item.sku, wanted=item.quantity, left=entry.value)
                due[item.sku] = entry
        probes = units_left.claim(due, until=now + settings.SOLD_OUT_TTL)
        if probes is not None:
            return probes


def _probe_again(probes: Mapping[str, CacheEntry[int]], *, but: str = "") -> None:
    """Let the next request probe the skus for which this one got no answer."""
    for sku, entry in probes.items():
        if sku != but:
            units_left.replace(sku, entry, replace(entry, refresh_at=-math.inf))
