"""What was found sold out a moment ago, so that those who come too late cost next to nothing.

Each process remembers for itself, and not for long: units that come back in another one are sold again a moment later.
"""

from __future__ import annotations

import time

from django.conf import settings

from inventory.draft import Draft
from inventory.errors import SoldOut

_left: dict[str, tuple[float, int]] = {}
"""Until when on the monotonic clock, and how many units were left, by sku."""


def check(draft: Draft) -> None:
    """Refuse a draft that wants more of a sku than was left a moment ago.

    Raises:
        SoldOut: that is so.
    """
    for line in draft.lines:
        until, left = _left.get(line.sku, (0.0, 0))
        if line.quantity > left and time.monotonic() < until:
            raise SoldOut(line.sku, wanted=line.quantity, left=left)


def remember(refused: SoldOut) -> None:
    """Refuse others for `SOLD_OUT_TTL` seconds without asking again."""
    _left[refused.sku] = (time.monotonic() + settings.SOLD_OUT_TTL, refused.left)


def forget() -> None:
    """Units have come back, or a sale begins."""
    _left.clear()
