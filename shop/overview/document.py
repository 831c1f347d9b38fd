"""The parts of the overview page as HTML. The open page polls them, and each user gets the parts that they may see."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

from django.http import HttpRequest
from django.template.loader import render_to_string

from inventory.caching import Cache
from locking.contrib.django.admin import may_see_locks
from shop import heartbeat
from shop.overview import cards, rooms
from shop.overview.alerts import ORDERS, SALES, STOCK, alerts
from shop.overview.cards import Cards
from shop.overview.health import Health, look
from shop.overview.requests import Requests, Watch
from shop.overview.rooms import RoomFigures
from shop.overview.selling import OpenSaleFigures, open_sales
from shop.overview.stock_report import StockReport, stock_report

Value = TypeVar("Value")

LEAST = 0.5
"""Minimum seconds between two readings of a figure.

A cached figure is used for twice this time. The script of the page, overview.js, waits 1 s between a response and the
next request. So the figures on a page are at most about 2 s old. The cards are read less often, see `cards.LEAST`, and
so is a figure that takes long to read, see `SHARE`.
"""
SHARE = 4
"""Multiple of the duration of a reading: a figure that takes t s to read is read at most once in `SHARE` × t s.

So reading a figure uses at most a quarter of a core.
"""

ON_CARDS = {
    "sales": SALES,
    "orders": ORDERS,
    "refunds": "shop.view_refund",
    "unmatched": "shop.view_unmatchedreport",
}
"""The permission that a user needs to see each figure of the cards."""


@dataclass(frozen=True)
class OverviewFigures:
    """All figures of the overview at one moment."""

    sales: list[OpenSaleFigures]
    health: Health
    report: StockReport
    cards: Cards
    requests: Requests | None = None
    rooms: Sequence[RoomFigures] = ()


def read() -> OverviewFigures:
    """Read the figures from Postgres and Redis, without a cache."""
    return OverviewFigures(open_sales(), look(), stock_report(), cards.read(), rooms=rooms.read())


class SharedFigures:
    """Cached figures for all operators whose requests this process handles.

    While one request reads a figure, the other requests get the previous value of the figure.
    """

    def __init__(self) -> None:
        self._cache: Cache[str, Any] = Cache()
        self._watch = Watch()
        self._refused_at = -math.inf

    def __call__(self) -> OverviewFigures:
        return OverviewFigures(
            self._cached("sales", open_sales),
            self._cached("health", self._look),
            self._cached("report", stock_report),
            self._cached("cards", cards.read, cards.LEAST),
            self._cached("requests", self._watch),
            self._cached("rooms", rooms.read),
        )

    def for_a_new_page(self) -> OverviewFigures:
        """Return the figures for a page that opens. Read the cards now: the operator may just have sent a refund."""
        self._cache.reload("cards", lambda _: cards.read(), ttl=_ttl(cards.LEAST))
        return self()

    def _look(self) -> Health:
        """Read the health. For `heartbeat.EXPIRES` seconds after Redis has refused a write, `heartbeats` is False.

        Redis may have refused the heartbeat of a process that is alive. Within these seconds, every process that is
        alive writes a heartbeat again.
        """
        found, now = look(), time.monotonic()
        if found.redis_refusal:
            self._refused_at = now
        return replace(found, heartbeats=now - self._refused_at > heartbeat.EXPIRES)

    def _cached(self, name: str, read: Callable[[], Value], least: float | None = None) -> Value:
        found = self._cache.get_or_load(name, lambda _: read(), ttl=_ttl(least), stale_while_loading=True)
        return cast(Value, found)


def _ttl(least: float | None = None) -> Callable[[float], float]:
    """Return a function that computes the time to live of a figure from the seconds that it takes to read the figure.

    The cache reads a figure again after half of its time to live.
    """
    return lambda took: 2 * max(LEAST if least is None else least, SHARE * took)


shared = SharedFigures()


def parts(request: HttpRequest, figures: OverviewFigures) -> dict[str, str]:
    """Return the HTML of each part of the overview that the user may see, by the name of the part.

    The result is empty if the user may see no figure.
    """

    def can(permission: str) -> bool:
        # As on the other pages of the admin, the permission to change includes the permission to view.
        return request.user.has_perm(permission) or request.user.has_perm(permission.replace(".view_", ".change_"))

    found = alerts(figures.sales, figures.health, figures.report.broken, figures.requests)
    asking = [each for each in found if can(each.permission)]
    shown: dict[str, str] = {}
    if can(SALES):
        refused = figures.requests.by_sale if figures.requests is not None and can(ORDERS) else {}
        of_sales = {
            "sales": [(each, refused.get(each.sale.pk, {})) for each in figures.sales],
            "rooms": figures.rooms,
        }
        shown["sales"] = render_to_string("shop/overview/sales.html", of_sales)
    if can(ORDERS) or can(STOCK):
        context = {
            "health": figures.health,
            "requests": figures.requests,
            "orders": can(ORDERS),
            "stock": can(STOCK),
            "locks_page": may_see_locks(request),
        }
        shown["figures"] = render_to_string("shop/overview/figures.html", context)
    if can(STOCK):
        shown["verdict"] = render_to_string("shop/verdict.html", {"report": figures.report})
    if seen := frozenset(name for name, permission in ON_CARDS.items() if can(permission)):
        shown["cards"] = _of_cards(figures.cards, seen)
    if can(ORDERS):
        letters = {"letters": figures.health.dead_letters, "may_settle": request.user.has_perm("shop.change_order")}
        shown["letters"] = render_to_string("shop/overview/letters.html", letters)
    if shown:
        shown["alerts"] = render_to_string("shop/overview/alerts.html", {"alerts": asking})
    return shown


@lru_cache(maxsize=16)
def _of_cards(cards: Cards, seen: frozenset[str]) -> str:
    """Return the HTML of the cards. The HTML is cached, because the figures stay the same for 5 s."""
    return render_to_string("shop/overview/cards.html", {"cards": cards, "seen": seen})
