"""The views of the lab's pages. They read files and replay schedules in sandboxes, and never touch the shop's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from lab.claims.runs import Impossible
from lab.explorer.trace import Choice, Trace
from lab.ladder.catalogue import LADDER, LadderEntry, next_rung
from lab.site.comparison.links import links_to_comparison
from lab.site.page import PageRefused, read_only_lab_page
from lab.site.pages import lessons, source, swimlane
from lab.site.pages.example_run import example_run
from lab.site.pages.play_session import CLIENT_COUNTS, MOST_CHOICES, PlaySession, new_session, parse_session
from lab.site.pages.replays import replay_for_page
from lab.site.pages.rung_results import results_of, rungs_of
from lab.site.pages.texts import ANY_GOAL, GOALS, MEANINGS, TRACKS
from lab.site.provenance import measured_line, outdated_line
from lab.workloads.registry import can_play, faults_of


@read_only_lab_page
def ladder(request: HttpRequest) -> HttpResponse:
    tracks = [(track, title, [results_of(entry) for entry in rungs_of(track)]) for track, title in TRACKS.items()]
    measured = [result for _track, _title, rungs in tracks for results in rungs for result in results.measured]
    context = {
        "tracks": tracks,
        "essays": lessons.ESSAYS,
        "meanings": MEANINGS,
        "measured_line": measured_line(measured),
        "outdated_line": outdated_line(measured),
    }
    return render(request, "lab/ladder.html", context)


@read_only_lab_page
def rung(request: HttpRequest, slug: str) -> HttpResponse:
    entry = _entry_or_404(slug)
    run = example_run(entry)
    following = next_rung(slug)
    context = {
        **_context_of(entry),
        "run": run,
        "comparison_links": list(links_to_comparison(slug)),
        "lane": run and swimlane.draw(run.trace),
        "files": source.source_files(entry, {step.file for step in run.trace.steps if step.file} if run else ()),
        "following": following,
        "difference": source.difference(entry, following) if following else None,
        "lesson": lessons.lesson(slug),
        "new_session": can_play(entry) and new_session(entry),
    }
    return render(request, "lab/rung.html", context)


@read_only_lab_page
def play(request: HttpRequest, slug: str) -> HttpResponse:
    entry = _entry_or_404(slug)
    if not can_play(entry):
        raise PageRefused(404, _("This rung needs servers of its own and cannot be played on a page."))
    asked = parse_session(entry, request.GET)
    trace = _replay(asked)
    # A lenient session leaves choices out, so the trace may have fewer than were asked for.
    session = PlaySession(slug, trace.schedule, trace.clients)
    following = next_rung(slug)
    context = {
        **_context_of(entry),
        "session": session,
        "trace": trace,
        "lane": swimlane.draw(trace),
        "goal": GOALS[entry.breaks] if entry.breaks else ANY_GOAL,
        "choices": _choices(session, trace),
        "most_choices": MOST_CHOICES,
        "left_out": len(asked.schedule) - len(trace.schedule) if not trace.reached else 0,
        "undo": session.first(len(session.schedule) - 1) if session.schedule else None,
        "restart": session.first(0),
        "other_counts": [PlaySession(slug, (), clients) for clients in CLIENT_COUNTS],
        "next_rung": following,
        "next_play": following
        and can_play(following)
        and session.schedule
        and PlaySession(following.slug, session.schedule, session.clients, lenient=True),
    }
    return render(request, "lab/play.html", context)


@read_only_lab_page
def essay(request: HttpRequest, name: str) -> HttpResponse:
    if name not in lessons.ESSAYS:
        raise PageRefused(404, _("There is no essay of this name."))
    return render(request, "lab/essay.html", {"title": lessons.ESSAYS[name], "prose": lessons.essay(name)})


def _entry_or_404(slug: str) -> LadderEntry:
    entry = LADDER.get(slug)
    if entry is None:
        raise PageRefused(404, _("The ladder has no rung of this name."))
    return entry


def _context_of(entry: LadderEntry) -> dict[str, Any]:
    """Return what both pages of a rung show."""
    results = results_of(entry)
    track, place = rungs_of(entry.track), results.number - 1
    return {
        "entry": entry,
        "results": results,
        "track": TRACKS[entry.track],
        "faults": faults_of(entry),
        "meaning": MEANINGS[entry.breaks] if entry.breaks else "",
        "rung_before": track[place - 1] if place else None,
        "rung_after": track[place + 1] if place + 1 < len(track) else None,
        "measured_line": measured_line(results.measured),
        "outdated_line": outdated_line(results.measured),
    }


def _replay(session: PlaySession) -> Trace:
    """Replay a visitor's schedule.

    Raises:
        PageRefused: it cannot be replayed, either now or ever.
    """
    try:
        return replay_for_page(session.slug, session.schedule, session.clients, lenient=session.lenient)
    except Impossible as impossible:
        raise PageRefused(
            400,
            _("Choice %(number)d, “%(choice)s”, is not possible at this point.")
            % {"number": impossible.at + 1, "choice": session.schedule[impossible.at]},
            link=session.first(impossible.at).address,
            label=_("Continue from the choice before it"),
        ) from impossible


def _choices(session: PlaySession, trace: Trace) -> Sequence[tuple[Choice, PlaySession]]:
    """Return each choice of the visitor and the session to which it leads."""
    if trace.reached or len(session.schedule) >= MOST_CHOICES:
        return ()
    return [(choice, session.after(choice.name)) for choice in trace.choices]
