"""The parts of the overview page as HTML. The open page polls them, and each user gets the parts that they may see."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from django.http import HttpRequest
from django.template.loader import render_to_string

from inventory.caching import Cache
from shop import heartbeat
from shop.overview import rooms
from shop.overview.alerts import ORDERS, SALES, STOCK, alerts
from shop.overview.health import Health, look
from shop.overview.requests import Requests, Watch
from shop.overview.rooms import RoomFigures
from shop.overview.selling import OpenSaleFigures, open_sales
from shop.overview.stock_report import StockReport, stock_report

Value = TypeVar("Value")

LEAST = 0.5
"""Minimum seconds between two readings of a figure. With the pause of overview.js, a page is at most 2 s behind."""
SHARE = 4
"""A figure is read at most once in `SHARE` times the time that it takes, so it uses at most a quarter of a core."""


@dataclass(frozen=True)
class OverviewFigures:
    """All figures of the overview at one moment."""

    sales: list[OpenSaleFigures]
    health: Health
    report: StockReport
    requests: Requests | None = None
    rooms: Sequence[RoomFigures] = ()


def read() -> OverviewFigures:
    """Read the figures from Postgres and Redis, without a cache."""
    return OverviewFigures(open_sales(), look(), stock_report(), rooms=rooms.read())


class SharedFigures:
    """Cached figures for all operators whose requests this process handles.

    While one request reads a figure, the others get the previous one.
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
            self._cached("requests", self._watch),
            self._cached("rooms", rooms.read),
        )

    def _look(self) -> Health:
        """Read the health. After Redis has refused writes, give all processes the time to write a heartbeat."""
        found, now = look(), time.monotonic()
        if found.redis_refusal:
            self._refused_at = now
        return replace(found, heartbeats=now - self._refused_at > heartbeat.EXPIRES)

    def _cached(self, name: str, read: Callable[[], Value]) -> Value:
        return cast(Value, self._cache.get_or_load(name, lambda _: read(), ttl=_ttl, stale_while_loading=True))


def _ttl(took: float) -> float:
    """Return the time to live of a figure in seconds. The figure is read again after half of that time."""
    return 2 * max(LEAST, SHARE * took)


shared = SharedFigures()


def parts(request: HttpRequest, figures: OverviewFigures) -> dict[str, str]:
    """Return the HTML of each part of the overview that the user may see, by the name of the part."""

    def can(permission: str) -> bool:
        # As on the other pages of the admin, the permission to change includes the permission to view.
        return request.user.has_perm(permission) or request.user.has_perm(permission.replace(".view_", ".change_"))

    found = alerts(figures.sales, figures.health, figures.report.broken, figures.requests)
    asking = [each for each in found if can(each.permission)]
    shown: dict[str, str] = {"alerts": render_to_string("shop/overview/alerts.html", {"alerts": asking})}
    if can(SALES):
        of_sales = {"sales": figures.sales, "rooms": figures.rooms}
        shown["sales"] = render_to_string("shop/overview/sales.html", of_sales)
    if can(ORDERS) or can(STOCK):
        context = {
            "health": figures.health,
            "requests": figures.requests,
            "orders": can(ORDERS),
            "stock": can(STOCK),
        }
        shown["figures"] = render_to_string("shop/overview/figures.html", context)
    if can(STOCK):
        shown["verdict"] = render_to_string("shop/verdict.html", {"report": figures.report})
    return shown
