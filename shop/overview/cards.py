"""Figures of the cards below the overview: coming sales, orders by state, and money to settle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count
from django.db.models.functions import Now
from redis import RedisError

from inventory.strategies import registry
from shop import clock
from shop.models import Order, Refund, Sale, UnmatchedReport
from shop.orders import unmatched

MOST = 10
"""Maximum number of sales on the card. The sales that open first are shown."""
LEAST = 5.0
"""Minimum seconds between two readings of the figures. A reading counts all orders, so it takes long.

An open page shows the last figures meanwhile. Opening the page reads new figures.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Cards:
    """The figures of the cards at one moment. They are compared by identity, so that their HTML can be cached.

    Args:
        sales: open and coming sales, sorted by opening time.
        orders: number of orders by state.
        refunds: number of refunds that are due.
        unmatched: number of open reports of the payment provider that match no order.
        risks: why Redis may lose queued orders; empty if no sale queues orders, or if Redis does not answer.
    """

    read_at: datetime
    sales: Sequence[Sale]
    orders: Sequence[tuple[str, int]]
    refunds: int
    unmatched: int
    risks: Sequence[str]


def read() -> Cards:
    """Read the figures from Postgres, and the risks from Redis."""
    counted = dict(Order.objects.order_by().values_list("state").annotate(Count("pk")))
    return Cards(
        read_at=clock.now(),
        sales=list(Sale.objects.filter(closes_at__gt=Now()).order_by("opens_at")[:MOST]),
        orders=[(state, counted.get(state, 0)) for state in Order.State.values],
        refunds=Refund.objects.filter(sent_at=None).count(),
        unmatched=unmatched.open_reports(UnmatchedReport.objects.all()).count(),
        risks=_risks(),
    )


def _risks() -> Sequence[str]:
    names = [name for name in registry.NAMES if registry.get(name).queues]
    if not Sale.objects.filter(strategy__in=names, closes_at__gt=Now()).exists():
        return ()
    try:
        return registry.queue().risks()
    except RedisError:
        return ()  # An alert says that Redis does not answer.
