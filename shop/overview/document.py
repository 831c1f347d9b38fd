"""The parts of the overview page as HTML. The open page polls them, and each user gets the parts that they may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest
from django.template.loader import render_to_string

from shop.overview import rooms
from shop.overview.alerts import ORDERS, SALES, STOCK, alerts
from shop.overview.health import Health, look
from shop.overview.remembered import Remembered
from shop.overview.requests import Requests, Watch
from shop.overview.rooms import RoomFigures
from shop.overview.selling import OpenSaleFigures, open_sales
from shop.overview.stock_report import StockReport, stock_report


@dataclass(frozen=True)
class Figures:
    """All figures of the overview at one moment."""

    sales: list[OpenSaleFigures]
    health: Health
    report: StockReport
    requests: Requests | None = None
    rooms: Sequence[RoomFigures] = ()


def read() -> Figures:
    """Read the figures from Postgres and Redis, without a cache."""
    return Figures(open_sales(), look(), stock_report(), rooms=rooms.read())


class Shared:
    """Cached figures for all operators whose requests this process handles."""

    def __init__(self) -> None:
        self._sales, self._health, self._report = Remembered(open_sales), Remembered(look), Remembered(stock_report)
        self._requests, self._rooms = Remembered(Watch()), Remembered(rooms.read)

    def __call__(self) -> Figures:
        return Figures(self._sales(), self._health(), self._report(), self._requests(), self._rooms())


shared = Shared()


def parts(request: HttpRequest, figures: Figures) -> dict[str, str]:
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
