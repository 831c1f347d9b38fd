"""The page of a waiting room, which shows the visitor's place. Its script polls at the interval that the shop sets."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, cast

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from shop.api.serializers import moment
from shop.api.throttles import LookRate
from shop.models import Sale
from shop.pages import now
from shop.pages.guests import for_customers, is_guest, no_guests
from shop.pages.page import PageRefused, page
from shop.pages.sales import estimate_texts
from shop.sales import offers
from shop.sales.offers import Offer
from shop.waiting import room
from shop.waiting.errors import RoomFull, RoomUnavailable
from shop.waiting.room import Standing

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.views import APIView

ENTERED = "entered"
"""Query parameter in the URL of the page after the visitor has entered."""
RETRY = 5
"""Seconds after which the client may retry if Redis has not answered."""
SLOWEST_RELOAD = 60
"""Maximum seconds between reloads of a page without JavaScript. A reload shows a changed opening time."""


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@page
@for_customers
def waiting(request: HttpRequest, sale: Sale) -> HttpResponse:
    """Show the visitor's place. A POST gives them a place if they have none."""
    offer = offers.get(sale.pk)
    if offer is None or not offer.waiting_room or offer.clock.now() >= offer.closes_at:
        return redirect("sale", sale.slug)
    guest = is_guest(request)
    if guest and not sale.guest_checkout:
        raise no_guests()
    if request.method == "POST":
        standing_of(request, offer, enters=True)
        return redirect(f"{request.path}?{ENTERED}")
    standing = standing_of(request, offer)
    if standing.state == "admitted":
        return redirect("sale", sale.slug)
    context = context_of(sale, offer, standing, entered=ENTERED in request.GET)
    figures = now.get(sale.slug)
    sold_out = figures is not None and figures.state == "sold-out"
    return render(request, "shop/pages/waiting.html", {**context, "sold_out": sold_out, "guest": guest})


def standing_of(request: HttpRequest, offer: Offer, *, enters: bool = False) -> Standing:
    """Return the visitor's standing in the waiting room of a sale.

    Raises:
        PageRefused: this visitor sends too many requests, Redis does not answer, or Redis has no memory for a place.
    """
    customer = int(cast(int, request.user.pk))
    if not LookRate().allow_request(cast("Request", request), cast("APIView", None)):
        message = _("You ask too often. Your place is kept. Open the page again in a moment.")
        raise PageRefused(429, message, retry_after=1)
    try:
        return room.enter(offer, customer) if enters else room.look(offer, customer)
    except RoomFull as error:
        message = _("The waiting room can give no place now, so you have none yet. Enter again in a moment.")
        again = _("To the waiting room")
        raise PageRefused(503, message, retry_after=RETRY, link=request.path, label=again) from error
    except RoomUnavailable as error:
        message = (
            _("The waiting room does not answer. Enter again in a moment: you get one place, however often you enter.")
            if enters
            else _("The waiting room does not answer. Your place is kept. Open the page again in a moment.")
        )
        raise PageRefused(503, message, retry_after=RETRY) from error


def context_of(sale: Sale, offer: Offer, standing: Standing, *, entered: bool) -> dict[str, Any]:
    """Return the template context of the page.

    The script of the page gets the same texts, and replaces the parts in braces.

    Args:
        entered: whether the URL says that the visitor has entered. If they are `outside` now, their place was lost.
    """
    texts = state_texts()
    state = "lost" if entered and standing.state == "outside" else standing.state
    wait = estimate_texts()
    values = {
        "place": standing.place,
        "ahead": standing.ahead,
        "entered": standing.entered,
        "wait": wait["soon"]
        if (standing.estimate or 0) < 60
        else wait["minutes"].replace("{minutes}", str(ceil((standing.estimate or 0) / 60))),
    }
    return {
        "sale": sale,
        "standing": standing,
        "state": state,
        "headline": texts[state]["headline"].replace("{place}", str(standing.place)),
        "note": texts[state]["note"],
        "title": texts[state].get("title", "").replace("{ahead}", str(standing.ahead)),
        "values": values,
        "turn": room.TURN.seconds // 60,
        "paused": offer.paused,
        "reload_after": min(standing.poll_after, SLOWEST_RELOAD),
        "script": {
            "api": reverse("api-waiting", args=[sale.pk]),
            "token": reverse("account-token"),
            "sale": reverse("sale", args=[sale.slug]),
            "texts": texts,
            "title": f"{_('Waiting room')}: {sale.shown_name} · Last Unit",
            "wait": wait,
            "state": state,
            "now": reverse("sale-now", args=[sale.slug]),
            "pollAfter": standing.poll_after,
            "estimate": standing.estimate,
            "entered": standing.entered,
            "opensAt": moment(offer.opens_at),
            "connection": _("No connection. Your place is kept; this page goes on by itself."),
        },
    }


def state_texts() -> dict[str, dict[str, str]]:
    """Return the headline, the note and, if there is one, the prefix of the page title for each state of a visitor."""
    return {
        "outside": {
            "headline": _("You are not in the waiting room yet"),
            "note": _("Enter to get a place. You may close the page afterwards: your place is kept."),
        },
        "lost": {
            "headline": _("Your place was lost"),
            "note": _("The waiting room has lost its places, and we are sorry. Enter again. The sale goes on."),
        },
        "draw": {
            "headline": _("You are in the draw"),
            "note": _(
                "When the sale opens, all who have entered before get a number in random order. Neither coming early "
                "nor reloading makes a difference."
            ),
        },
        "waiting": {
            "title": _("{ahead} ahead"),
            "headline": _("You are number {place}"),
            "note": _(
                "This page moves on by itself when it is your turn. No unit is kept for you: the sale may be sold out "
                "before your turn."
            ),
        },
        "admitted": {
            "title": _("It is your turn"),
            "headline": _("It is your turn"),
            "note": _("You are led to the sale. Press Buy there."),
        },
        "ended": {
            "headline": _("Your turn is over"),
            "note": _("The time to buy has passed. Enter again, and you get a new place at the end of the line."),
        },
    }
