"""The pages of the race: choose who races, and watch."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from redis import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from lab.ladder.catalogue import LADDER
from lab.ladder.stock import RUNGS
from lab.site.pages.page import PageRefused, page, shown
from lab.site.race import run
from lab.site.race.run import EnoughRaced, Race, Racer, RaceRunning
from locking import LockUnavailable
from servers import ServerError

logger = logging.getLogger(__name__)

CHOSEN = ("compute-and-overwrite", "subtract-in-sql", "redis-lock", "guarded-update")
AGAIN = 60
"""Seconds after which a visitor who could not start a race may ask again."""
LEAST_SCALE_MS = 100.0
"""Milliseconds that the bars of waiting span at least, so that quick answers look quick."""


class Choice(forms.Form):
    """Who races, for how much."""

    racers = forms.MultipleChoiceField(
        choices=[(name, name) for name in (*RUNGS, *run.STRATEGIES)],
        error_messages={"required": gettext_lazy("Choose at least one to race.")},
    )
    clients = forms.IntegerField(min_value=run.CLIENTS[0], max_value=run.CLIENTS[1], initial=50)
    stock = forms.IntegerField(min_value=run.STOCK[0], max_value=run.STOCK[1], initial=100)

    def clean_racers(self) -> list[str]:
        chosen: list[str] = self.cleaned_data["racers"]
        if len(chosen) > run.MOST_RACERS:
            most = run.MOST_RACERS
            raise forms.ValidationError(_("Choose %(most)d at most.") % {"most": most})
        return chosen


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@shown
def start(request: HttpRequest) -> HttpResponse:
    """Choose, and let the race begin."""
    if request.method != "POST":
        return _chooser(request, Choice(initial={"racers": CHOSEN}))
    form = Choice(request.POST)
    if not form.is_valid():
        return _chooser(request, form, status=400)
    chosen = form.cleaned_data
    # In the order of the page, whatever order the browser sent them in.
    names = [name for name in (*RUNGS, *run.STRATEGIES) if name in chosen["racers"]]
    try:
        visitor = BaseThrottle().get_ident(cast("Request", request))
        race = run.start(names, clients=chosen["clients"], stock=chosen["stock"], visitor=visitor)
    except RaceRunning:
        said = _("Another race is running. Try again in a minute.")
        return _chooser(request, form, status=503, trouble=said, again=AGAIN)
    except EnoughRaced as enough:
        minutes = math.ceil(enough.wait / 60)
        said = _("Your races have taken half an hour, and others may want to race. Your next one: in %(minutes)d min.")
        return _chooser(request, form, status=429, trouble=said % {"minutes": minutes}, again=enough.wait)
    except (LockUnavailable, RedisError, ServerError):
        logger.exception("A race cannot begin.")
        said = _("No race can begin right now. Try again in a minute.")
        return _chooser(request, form, status=503, trouble=said, again=AGAIN)
    return redirect("lab-race", race=race.id)


@never_cache
@page
def watch(request: HttpRequest, race: UUID) -> HttpResponse:
    """The race of whoever has its address."""
    return _view(request, race, "lab/race.html")


@never_cache
@page
def bars(request: HttpRequest, race: UUID) -> HttpResponse:
    """How it stands now: what the page of the race replaces every half second."""
    return _view(request, race, "lab/race_bars.html")


def _chooser(
    request: HttpRequest, form: Choice, *, status: int = 200, trouble: str = "", again: int = 0
) -> HttpResponse:
    chosen = form["racers"].value() or []
    groups = [
        (title, [(name, title_of(name), name in chosen) for name in names])
        for title, names in (
            (_("Flawed rungs of the ladder"), RUNGS),
            (_("Strategies that a sale may use"), run.STRATEGIES),
        )
    ]
    sizes = [(form["stock"], _("Units in stock")), (form["clients"], _("Buyers at the same time"))]
    answer = render(
        request,
        "lab/race_start.html",
        {
            "form": form,
            "groups": groups,
            "sizes": sizes,
            "trouble": trouble,
            "most": run.MOST_RACERS,
            "seconds": run.BURST_SECONDS,
        },
        status=status,
    )
    if again:
        answer["Retry-After"] = str(again)
    return answer


def _view(request: HttpRequest, number: UUID, template: str) -> HttpResponse:
    try:
        race = run.find(number)
    except RedisError as error:
        said = _("How the race stands cannot be read right now. Try again in a moment.")
        raise PageRefused(503, said, retry_after=5) from error
    if race is None:
        said = _("There is no such race, or it was more than an hour ago.")
        raise PageRefused(404, said, link=reverse("lab-race-start"), label=_("Another race"))
    return render(request, template, {"race": race, **standing(race)})


@dataclass(frozen=True)
class Row:
    """A racer as the page shows it. Positions and widths are of a bar that is 100 long."""

    racer: Racer
    title: str
    sold: int
    oversold: bool
    sold_width: str
    over_width: str
    p50_width: str
    p99_width: str
    p50: int
    p99: int
    rate: int
    tone: str
    verdict: str


def standing(race: Race) -> dict[str, Any]:
    """Every row on common scales, and the race in a sentence."""
    units = max([race.stock * 1.25, *(sold(racer) for racer in race.racers)])
    slowest = max([LEAST_SCALE_MS, *(waits(racer)[1] for racer in race.racers)])
    rows = []
    for racer in race.racers:
        units_sold = sold(racer)
        p50, p99 = waits(racer)
        rows.append(
            Row(
                racer=racer,
                title=title_of(racer.name),
                sold=units_sold,
                oversold=units_sold > race.stock,
                sold_width=f"{100 * min(units_sold, race.stock) / units:.2f}",
                over_width=f"{100 * max(0, units_sold - race.stock) / units:.2f}",
                p50_width=f"{100 * p50 / slowest:.2f}",
                p99_width=f"{100 * p99 / slowest:.2f}",
                p50=round(p50),
                p99=round(p99),
                rate=round(racer.result["orders_per_s"]) if racer.result else 0,
                **dict(zip(("tone", "verdict"), verdict(racer, race), strict=True)),
            )
        )
    return {
        "rows": rows,
        "stock_at": f"{100 * race.stock / units:.2f}",
        "running": not race.over and not race.lost,
        "said": sentence(race),
    }


def title_of(name: str) -> str:
    """What people call it; empty for a strategy that is no rung of the ladder."""
    return _(LADDER[name].title) if name in LADDER else ""


def sold(racer: Racer) -> int:
    """Units that the tables say were sold; before the verdict, what buyers were told."""
    return int(racer.result["sold"]) if racer.result else racer.answered


def waits(racer: Racer) -> tuple[float, float]:
    """p50 and p99 in milliseconds: of all buyers after the verdict, before it of those who were answered last."""
    if racer.result:
        return float(racer.result["p50_ms"]), float(racer.result["p99_ms"])
    return racer.p50_ms, racer.p99_ms


def verdict(racer: Racer, race: Race) -> tuple[str, str]:
    """The tone of the verdict (`good`, `bad` or `none`) and the verdict in words."""
    if racer.result and racer.holds:
        left = racer.result["errors"]
        late = _("; buyers without an answer in time: %(count)d") % {"count": left} if left else ""
        return "good", _("conserved: every unit sold at most once") + late
    if racer.result:
        return "bad", _("broken: %(reasons)s") % {"reasons": _(", ").join(reasons(racer.result))}
    if racer.error:
        return "bad", _("no verdict: too few buyers were ever answered")
    if race.over or race.lost:
        return "none", _("no verdict: the time was up") if race.cut else _("no verdict: the race ended early")
    if not racer.wanted:
        return "none", _("waiting")
    return "none", _("selling: %(done)d of %(wanted)d buyers answered") % {
        "done": racer.answered + racer.refused,
        "wanted": racer.wanted,
    }


def reasons(result: dict[str, Any]) -> Iterator[str]:
    """What is broken, each in a few words."""
    if result["oversold"]:
        yield _("%(units)d sold that never existed") % {"units": result["oversold"]}
    if result["on_hand"] < 0:
        yield _("%(units)d on hand") % {"units": result["on_hand"]}
    if result["missing"]:
        yield _("%(orders)d promised orders missing") % {"orders": result["missing"]}
    if result["unserved"]:
        yield _("%(buyers)d refused with units left for them") % {"buyers": result["unserved"]}
    drift = result["stock"] - result["on_hand"] - result["sold"]
    if drift and not result["oversold"]:
        yield _("%(units)d units unaccounted for") % {"units": drift}


def sentence(race: Race) -> str:
    """What a screen reader says of the race; it changes once a racer."""
    if race.over or race.lost:
        broken = sum(1 for racer in race.racers if racer.ended and not racer.holds)
        held = sum(1 for racer in race.racers if racer.holds)
        return _("The race is over: %(held)d held, %(broken)d did not.") % {"held": held, "broken": broken}
    if not any(racer.wanted for racer in race.racers):
        return _("A shop is being started for this race alone.")
    selling = next((racer.name for racer in race.racers if racer.wanted and not racer.ended), "")
    return _("%(name)s is selling.") % {"name": selling} if selling else _("The next one gets ready.")
