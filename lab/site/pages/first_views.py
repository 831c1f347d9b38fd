"""The pages of the path "Your first ten minutes": a list of its stations, and a page on which a station is played."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from lab.explorer.terms import parse_fault
from lab.ladder.catalogue import LADDER
from lab.site.page import PageRefused, read_only_lab_page
from lab.site.pages import source, swimlane
from lab.site.pages.first_path import STATIONS, plain, station_of
from lab.site.pages.game import choices_of, replay_session
from lab.site.pages.play_session import MOST_CHOICES, PlaySession, new_session, parse_session

ROUTE = "lab-station"


@read_only_lab_page
def first(request: HttpRequest) -> HttpResponse:
    stations = [(station, LADDER[station.slug]) for station in STATIONS]
    return render(request, "lab/first.html", {"stations": stations})


@read_only_lab_page
def station(request: HttpRequest, slug: str) -> HttpResponse:
    here = station_of(slug)
    if here is None:
        raise PageRefused(404, _("The path of the first ten minutes does not lead over a rung of this name."))
    entry, place = LADDER[slug], STATIONS.index(here)
    asked = parse_session(entry, request.GET, route=ROUTE)
    trace = replay_session(asked)
    session = PlaySession(slug, trace.schedule, trace.clients, route=ROUTE)
    reached = here.goals_reached(trace)
    current = here.goals[reached] if reached < len(here.goals) else None
    choices = [
        (choice, plain(choice.does), then)
        for choice, then in choices_of(session, trace)
        if current and (not choice.is_fault or parse_fault(choice.name)[0] in here.faults)
    ]
    shown = current and PlaySession(slug, here.schedule[: current.choices], entry.clients, route=ROUTE)
    following = STATIONS[place + 1] if place + 1 < len(STATIONS) else None
    context = {
        "station": here,
        "entry": entry,
        "number": place + 1,
        "count": len(STATIONS),
        "reached": here.goals[:reached],
        "current": current,
        "goal_number": reached + 1,
        "session": session,
        "trace": trace,
        "lane": swimlane.draw(trace),
        "choices": choices,
        "most_choices": MOST_CHOICES,
        "shown": shown,
        "undo": session.first(len(session.schedule) - 1) if session.schedule else None,
        "restart": session.first(0),
        "following": following and LADDER[following.slug],
        "next": following and new_session(LADDER[following.slug], ROUTE),
        "files": source.source_files(entry, trace.steps),
    }
    return render(request, "lab/station.html", context)
