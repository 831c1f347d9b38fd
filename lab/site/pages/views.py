"""The pages themselves. They read files and run schedules on stages, and touch nothing of the shop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from lab.claims import witness
from lab.claims.witness import Witness
from lab.explorer.terms import Invariant
from lab.explorer.trace import Choice, Trace
from lab.ladder.catalogue import LADDER, LadderEntry, Track, after
from lab.site.comparison.pages import links
from lab.site.pages import lessons, runs, session, source, swimlane
from lab.site.pages.page import PageRefused, page
from lab.workloads.registry import can_play, faults_of

TRACKS: dict[Track, str] = {
    "locks": gettext_noop("Track one: the lock"),
    "stock": gettext_noop("Track two: the stock"),
}
GOALS: dict[Invariant, str] = {
    "conserved": gettext_noop("Make the figures disagree: what was sold must not be what is gone."),
    "one holder": gettext_noop("Get two inside at the same time."),
    "progress": gettext_noop("See to it that nobody can ever enter again."),
    "no false refusal": gettext_noop("Have a buyer told “sold out” while a unit is left."),
    "once": gettext_noop("Have one purchase count twice."),
}
ANY_GOAL = gettext_noop("Break it, in whatever way: two inside, figures that disagree, nobody who can enter.")
MEANINGS: dict[Invariant, str] = {
    "conserved": gettext_noop("What was received is what is left and what was sold."),
    "one holder": gettext_noop("At most one is inside."),
    "progress": gettext_noop("Whoever may enter does, in bounded time."),
    "no false refusal": gettext_noop("Nobody is told “sold out” while there is something to sell."),
    "once": gettext_noop("What is asked for once is done once."),
}


@dataclass(frozen=True)
class Standing:
    """A rung, and what is known of it.

    Attributes:
        number: its place on its track, from 1.
        witness: the stored schedule that breaks it.
        verdict: what came of searching it, if it is sound.
        control: how often it broke without a controller.
    """

    number: int
    entry: LadderEntry
    witness: Witness | None
    verdict: Mapping[str, Any] | None
    control: Mapping[str, Any] | None


@page
def ladder(request: HttpRequest) -> HttpResponse:
    tracks = [
        (track, title, [_standing(entry) for entry in LADDER.values() if entry.track == track])
        for track, title in TRACKS.items()
    ]
    return render(request, "lab/ladder.html", {"tracks": tracks, "essays": lessons.ESSAYS, "meanings": MEANINGS})


@page
def rung(request: HttpRequest, slug: str) -> HttpResponse:
    entry = _entry(slug)
    run = runs.shown(entry)
    following = after(slug)
    context = {
        **_of(entry),
        "run": run,
        "searches": _searches(witness.verdict(slug)),
        "measured": list(links(slug)),
        "lane": run and swimlane.draw(run.trace),
        "files": source.files(entry, {step.file for step in run.trace.steps if step.file} if run else ()),
        "following": following,
        "difference": source.difference(entry, following) if following else None,
        "lesson": lessons.lesson(slug),
        "play": can_play(entry) and session.begin(entry),
    }
    return render(request, "lab/rung.html", context)


@page
def play(request: HttpRequest, slug: str) -> HttpResponse:
    entry = _entry(slug)
    if not can_play(entry):
        raise PageRefused(404, _("This rung needs servers of its own, and is not played in a page."))
    asked = session.read(entry, request.GET)
    trace = runs.play(asked)
    now = session.PlaySession(slug, trace.schedule, trace.clients)
    following = after(slug)
    context = {
        **_of(entry),
        "session": now,
        "trace": trace,
        "lane": swimlane.draw(trace),
        "goal": GOALS[entry.breaks] if entry.breaks else ANY_GOAL,
        "choices": _choices(now, trace),
        "longest": session.LONGEST,
        "left_out": len(asked.schedule) - len(trace.schedule) if not trace.broken else 0,
        "undo": now.first(len(now.schedule) - 1) if now.schedule else None,
        "restart": now.first(0),
        "others": [session.PlaySession(slug, (), clients) for clients in session.CLIENTS],
        "next_rung": following,
        "next_play": following
        and can_play(following)
        and now.schedule
        and session.PlaySession(following.slug, now.schedule, now.clients, lenient=True),
    }
    return render(request, "lab/play.html", context)


@page
def essay(request: HttpRequest, name: str) -> HttpResponse:
    if name not in lessons.ESSAYS:
        raise PageRefused(404, _("There is no such essay."))
    return render(request, "lab/essay.html", {"title": lessons.ESSAYS[name], "prose": lessons.essay(name)})


def _entry(slug: str) -> LadderEntry:
    entry = LADDER.get(slug)
    if entry is None:
        raise PageRefused(404, _("The ladder has no rung of this name."))
    return entry


def _of(entry: LadderEntry) -> dict[str, Any]:
    """What both pages of a rung say of it."""
    track = [other for other in LADDER.values() if other.track == entry.track]
    place = track.index(entry)
    return {
        "entry": entry,
        "standing": _standing(entry),
        "track": TRACKS[entry.track],
        "events": faults_of(entry),
        "meaning": MEANINGS[entry.breaks] if entry.breaks else "",
        "rung_before": track[place - 1] if place else None,
        "rung_after": track[place + 1] if place + 1 < len(track) else None,
    }


def _standing(entry: LadderEntry) -> Standing:
    track = [other.slug for other in LADDER.values() if other.track == entry.track]
    slug = entry.slug
    return Standing(track.index(slug) + 1, entry, witness.load(slug), witness.verdict(slug), witness.control(slug))


def _searches(verdict: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """How far a sound rung was searched: each time, and once further."""
    return () if verdict is None else (verdict, *verdict.get("also", ()), *verdict.get("deep", ()))


def _choices(now: session.PlaySession, trace: Trace) -> Sequence[tuple[Choice, session.PlaySession]]:
    """What a visitor may choose, and where each choice leads. At the end of an address there is none."""
    if trace.broken or len(now.schedule) >= session.LONGEST:
        return ()
    return [(choice, now.after(choice.name)) for choice in trace.choices]
