"""What was found sold out a moment ago, so that those who come too late cost next to nothing.

Each process remembers for itself, and not for long: units that come back in another one are sold again a moment later.
When the moment is over one asks again, and the others are refused meanwhile: if all asked at once they would stand in
item at the lock or the row, several times a second, for nothing. While he has no answer another one asks each time that
a moment is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from inventory.errors import SoldOut
from inventory.requests import OrderRequest

Memory = tuple[float, int]
"""Until when on the monotonic clock, and how many units were left."""

_left: dict[str, Memory] = {}
_mutex = threading.Lock()


@contextmanager
def remembered(request: OrderRequest) -> Iterator[None]:
    """Refuse a request that wants more units than were left a moment ago, before the block runs.

    Who is let in after that moment asks for all others. What he is told is remembered for `SOLD_OUT_TTL` seconds; when
    he is sold his units everybody may ask; and if he is refused for anything else the next one asks.

    Raises:
        SoldOut: fewer units were left, or are.
    """
    asked = _begin(request)
    try:
        yield
    except SoldOut as refused:
        _end({sku: memory for sku, memory in asked.items() if sku != refused.sku}, to_ask=True)
        _left[refused.sku] = (time.monotonic() + settings.SOLD_OUT_TTL, refused.left)
        raise
    except BaseException:
        _end(asked, to_ask=True)
        raise
    _end(asked, to_ask=False)


def forget() -> None:
    """Units have come back, or a sale begins."""
    with _mutex:
        _left.clear()


def _begin(request: OrderRequest) -> dict[str, Memory]:
    """What the request asks for, for all others."""
    now, asked = time.monotonic(), {}
    with _mutex:
        for item in request.items:
            until, left = _left.get(item.sku, (now, item.quantity))
            if item.quantity > left:
                if now < until:
                    raise SoldOut(item.sku, wanted=item.quantity, left=left)
                asked[item.sku] = (now + settings.SOLD_OUT_TTL, left)
        _left.update(asked)  # only now: who is refused for another item asks for nobody
    return asked


def _end(asked: dict[str, Memory], *, to_ask: bool) -> None:
    """Forget what the others were refused by, unless somebody knows better by now.

    Args:
        to_ask: there was no answer, so one of them asks; otherwise all may.
    """
    with _mutex:
        for sku, memory in asked.items():
            if _left.get(sku) is memory:
                if to_ask:
                    _left[sku] = (0.0, memory[1])
                else:
                    del _left[sku]
