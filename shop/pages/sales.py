"""The list of sales, and the page of one sale. Both are the same for every visitor, so that a proxy can cache them.

The script of the page gets the changing figures from `shop.pages.now`, and the customer's own data from the API.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from shop import clock
from shop.api.serializers import MAX_QUANTITY
from shop.models import Sale
from shop.pages import now
from shop.pages.page import PageRefused, page
from shop.sales import load_tests

PAGE_CACHE_CONTROL = "public, s-maxage=5"
"""Cache-Control header that lets a proxy cache the page for five seconds."""

MAX_SALES = 100
"""Maximum number of running sales in the list, and maximum number of coming sales."""
MAX_CLOSED_SALES = 5

HALTED = ("paused", "sold-out")
"""States of a running sale in which nobody can buy."""

MODULES = [f"shop/{name}.js" for name in ("asking", "intents", "page", "product", "times", "view", "visit")]
"""The modules that `sale.js` imports. The page lists them, so that a browser loads all of them at once."""


@require_safe
@page
def sales(request: HttpRequest) -> HttpResponse:
    """List the open, paused, sold-out and coming sales, and the last few that are over."""
    time = clock.now()
    found = load_tests.listed(Sale.objects.prefetch_related("items__product"))
    running = list(found.filter(opens_at__lte=time, closes_at__gt=time).order_by("closes_at", "pk")[:MAX_SALES])
    figures = now.get_all([sale.slug for sale in running])
    states = [(sale, running_state(figures.get(sale.slug))) for sale in running]
    kinds = {
        "open": [sale for sale, state in states if state == "open"],
        "halted": [(sale, state) for sale, state in states if state != "open"],
        "coming": found.filter(opens_at__gt=time).order_by("opens_at", "pk")[:MAX_SALES],
        # Leave out the sales that load tests of the lab make: they are over and have no strategy.
        "over": found.filter(closes_at__lte=time).exclude(strategy="").order_by("-closes_at", "-pk")[:MAX_CLOSED_SALES],
    }
    response = render(request, "shop/pages/sales.html", kinds)
    response.headers["Cache-Control"] = PAGE_CACHE_CONTROL
    return response


@require_safe
@page
def sale(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a sale: its products, its opening and closing times, and the buttons to buy."""
    found = sale_or_404(slug)
    time = clock.now()
    started = "paused" if found.paused_at else "open"
    state = "coming" if time < found.opens_at else "over" if time >= found.closes_at else started
    figures = now.get(slug)
    left = figures.left_shown() if figures else {}
    items = sorted(found.items.all(), key=lambda item: item.pk)
    context = {
        "sale": found,
        "rows": [(item, left.get(item.product_id), left_text(left.get(item.product_id))) for item in items],
        "state": state,
        "most": MAX_QUANTITY,
        "script": for_script(found),
        "modules": MODULES,
    }
    response = render(request, "shop/pages/sale.html", context)
    response.headers["Cache-Control"] = PAGE_CACHE_CONTROL
    return response


def sale_or_404(slug: str) -> Sale:
    """Return the sale with this slug.

    Raises:
        PageRefused: there is no such sale.
    """
    found = Sale.objects.filter(slug=slug).prefetch_related("items__product").first()
    if found is None:
        raise PageRefused(404, _("There is no sale at this address."))
    return found


def running_state(figures: now.SaleNow | None) -> str:
    """Return the state of a running sale for a page: `open`, `paused` or `sold-out`.

    Args:
        figures: the cached figures of the sale; None if they are not known.
    """
    return figures.state if figures is not None and figures.state in HALTED else "open"


def minutes_to_pay() -> int:
    """Return the minutes in which an order must be paid, rounded up."""
    return -(-settings.ORDER_TTL // 60)


def estimate_texts() -> dict[str, str]:
    """Return the texts for an estimated wait."""
    return {"soon": _("less than a minute"), "minutes": _("about {minutes} min")}


def left_texts() -> dict[str, str]:
    """Return the text for each result of `now.shown` except None. The text `exact` is for all numbers except 0."""
    return {"0": _("Sold out"), "exact": _("{left} left"), "few": _("Few left"), "some": _("In stock")}


def left_text(left: int | str | None) -> str:
    """Return the text for the units left; empty if the sale hides them.

    Args:
        left: the result of `now.shown`.
    """
    texts = left_texts()
    return "" if left is None else texts.get(str(left), texts["exact"]).replace("{left}", str(left))


def for_script(sale: Sale) -> dict[str, Any]:
    """Return the data for the script of a sale's page: URLs, and texts in the reader's language.

    `labels` are the texts of the button; `notes` are the sentences below it. The script replaces the parts in braces.
    """
    minutes = minutes_to_pay()
    return {
        "sale": sale.pk,
        "now": reverse("sale-now", args=[sale.slug]),
        "token": reverse("account-token"),
        "room": reverse("waiting", args=[sale.slug]),
        "standing": reverse("api-waiting", args=[sale.pk]),
        "login": f"{reverse('account_login')}?next={reverse('sale', args=[sale.slug])}",
        "account": reverse("account_guest"),
        "guests": sale.guest_checkout,
        "api": reverse("api-orders"),
        "orders": reverse("orders"),
        "labels": {
            "coming": _("Opens in {time}"),
            "open": _("Buy"),
            "price": _("Buy for {price}"),
            "again": _("Buy again"),
            "buying": _("Buying…"),
            "offline": _("No connection"),
            "queued": _("In the queue, place {place}"),
            "pending": _("Yours. {time} left to pay"),
            "paid": _("Yours. Paid"),
            "paused": _("Paused"),
            "sold-out": _("Sold out"),
            "over-limit": _("Limit reached"),
            "over": _("The sale is over"),
            "login": _("Log in to buy"),
            "account": _("Make an account"),
            "orders": _("My orders"),
            "order": _("See the order"),
            "room": _("Waiting room"),
            "enter": _("Enter the waiting room"),
            "waiting": _("You are number {place}"),
        },
        "notes": {
            "opened": _("The sale is open."),
            "login": _("Log in before the sale opens, so that you can buy at once."),
            "no-guests": _("This sale is not open to guests. Make an account to buy here: your orders stay with you."),
            "signed-out": _("You are no longer logged in. Log in, and your order goes on where it stopped."),
            "buying": _("The order is on its way. You may reload or close this page: you buy only once."),
            "busy": _("The shop is busy. The same order is sent again by itself; you buy only once."),
            "offline": _("No connection: nothing is lost. The order goes on by itself."),
            "long-ago": _(
                "You pressed Buy long ago, and no answer came. If you still want the product, press Buy again."
            ),
            "queued": _(
                "The order is in the queue. You may close this page; the order is decided when its turn comes."
            ),
            "pending": _("The order is yours. Pay in time to keep it."),
            "paid": _("The order is yours, and paid."),
            "expired": _("The order was not paid in time, and its units are for sale again."),
            "cancelled": _("The order was cancelled, and its units are for sale again."),
            "refunded": _("The order was refunded, and its units are for sale again."),
            "rejected": _(
                "The order was rejected. Nothing was bought, and there is nothing to pay. Its page says why."
            ),
            "sold-out": _(
                "All units are taken. An order that is not paid within {minutes} minutes returns its units. If that "
                "happens, you can press Buy here. If you have ordered already, look at My orders."
            ).replace("{minutes}", str(minutes)),
            "too-few": _("Only {left} left. Choose fewer."),
            "fewer-left": _("Fewer than {wanted} are left. Choose fewer."),
            "limit-reached": _(
                "At most {limit} for each customer in this sale; you have bought {taken}. Nothing was bought now."
            ),
            "over-limit": _(
                "At most {limit} for each customer in this sale; you have bought {taken}. Nothing was bought now. "
                "Choose fewer."
            ),
            "paused": _("The shop has paused the sale. It goes on by itself on this page; you need not reload."),
            "until-resumed": _(
                "The shop has paused the sale. Your order is sent again by itself when it goes on; you buy only once."
            ),
            "price": _("The price is now {price}, not {before}. Nothing was bought. Press again to buy at this price."),
            "sale-not-open": _("The sale did not take the order: it is not open now. Nothing was bought."),
            "key-reused": _("You have bought here already. Look at your orders before you buy again."),
            "refused": _("The shop did not accept the order. Nothing was bought. Reload the page and try again."),
            "room-coming": _("This sale has a waiting room. Enter before the opening to take part in the draw."),
            "draw": _("You are in the draw. Your number comes within half a minute after the opening."),
            "draw-paused": _("You are in the draw. The shop has paused the sale: nobody is admitted until it goes on."),
            "waiting": _("Ahead of you: {ahead}. Estimated wait: {wait}. The button changes when it is your turn."),
            "ended": _("Your turn is over. Enter the waiting room again to get a new place."),
            "admitted": _("It is your turn. Buy before {time}."),
            "waiting-room": _("Your turn in the waiting room has not come, or it has ended. Nothing was bought."),
            "connection": _("No connection. The figures on this page may be old."),
        },
        "left": left_texts(),
        "wait": estimate_texts(),
        "days": _("{days} d {time}"),
    }
