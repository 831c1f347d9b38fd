"""The pages of the race: a form to choose the racers, and a page to watch them."""

from __future__ import annotations

import logging
import math
from typing import cast
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from redis import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from lab.ladder.stock import RUNGS
from lab.site.page import PageRefused, lab_page, read_only_lab_page
from lab.site.race.child import BURST_SECONDS
from lab.site.race.form import MOST_RACERS, PRESELECTED, STRATEGIES, RaceForm
from lab.site.race.quota import QuotaUsed
from lab.site.race.standings import standings, title_of
from lab.site.race.start import RaceRunning, start_race
from lab.site.race.state import find_race
from locking import LockUnavailable
from servers import ServerError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 60
"""Seconds after which a visitor who could not start a race may try again."""


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@lab_page
def start(request: HttpRequest) -> HttpResponse:
    """Show the form, or start the race that the visitor has chosen."""
    if request.method != "POST":
        return _form_page(request, RaceForm(initial={"racers": PRESELECTED}))
    form = RaceForm(request.POST)
    if not form.is_valid():
        return _form_page(request, form, status=400)
    chosen = form.cleaned_data
    try:
        visitor = BaseThrottle().get_ident(cast("Request", request))
        race = start_race(chosen["racers"], clients=chosen["clients"], stock=chosen["stock"], visitor=visitor)
    except RaceRunning:
        error = _("Another race is running. Try again in a minute.")
        return _form_page(request, form, status=503, error=error, retry_after=RETRY_SECONDS)
    except QuotaUsed as used:
        error = _("Your races have used half an hour. You can start the next one in %(minutes)d min.")
        error %= {"minutes": math.ceil(used.wait / 60)}
        return _form_page(request, form, status=429, error=error, retry_after=used.wait)
    except (LockUnavailable, RedisError, ServerError):
        logger.exception("A race could not start.")
        error = _("No race can start at the moment. Try again in a minute.")
        return _form_page(request, form, status=503, error=error, retry_after=RETRY_SECONDS)
    return redirect("lab-race", race=race.id)


@never_cache
@read_only_lab_page
def watch(request: HttpRequest, race: UUID) -> HttpResponse:
    """Show a race. Anybody who knows its address may watch it."""
    return _race_page(request, race, "lab/race.html")


@never_cache
@read_only_lab_page
def bars(request: HttpRequest, race: UUID) -> HttpResponse:
    """Return the part of the race page that the page's script replaces every half second."""
    return _race_page(request, race, "lab/race_bars.html")


def _form_page(
    request: HttpRequest, form: RaceForm, *, status: int = 200, error: str = "", retry_after: int | None = None
) -> HttpResponse:
    chosen = form["racers"].value() or []
    groups = [
        (title, [(name, title_of(name), name in chosen) for name in names])
        for title, names in (
            (_("Flawed rungs of the ladder"), RUNGS),
            (_("Strategies that a sale may use"), STRATEGIES),
        )
    ]
    context = {
        "form": form,
        "groups": groups,
        "sizes": [(form["stock"], _("Units in stock")), (form["clients"], _("Customers at the same time"))],
        "error": error,
        "most": MOST_RACERS,
        "seconds": BURST_SECONDS,
    }
    response = render(request, "lab/race_start.html", context, status=status)
    if retry_after is not None:
        response["Retry-After"] = str(retry_after)
    return response


def _race_page(request: HttpRequest, number: UUID, template: str) -> HttpResponse:
    try:
        race = find_race(number)
    except RedisError as error:
        message = _("The state of the race cannot be read at the moment. Try again in a moment.")
        raise PageRefused(503, message, retry_after=5) from error
    if race is None:
        message = _("There is no such race, or it ended more than an hour ago.")
        raise PageRefused(404, message, link=reverse("lab-race-start"), label=_("Start another race"))
    return render(request, template, {"race": race, "standings": standings(race)})
