"""The pages of a rung (a lock or way of selling), and the essays. They do not touch the shop's data."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from lab.ladder.catalogue import LadderEntry, next_rung
from lab.site.comparison.links import links_to_comparison
from lab.site.page import PageRefused, read_only_lab_page
from lab.site.pages import lessons, source, swimlane
from lab.site.pages.example_run import example_run
from lab.site.pages.game import choices_of, entry_or_404, replay_session
from lab.site.pages.play_session import CLIENT_COUNTS, MOST_CHOICES, PlaySession, new_session, parse_session
from lab.site.pages.rung_results import results_of, rungs_of
from lab.site.pages.texts import ANY_GOAL, GOALS, MEANINGS, TRACKS
from lab.site.provenance import measured_line, outdated_line
from lab.workloads.registry import can_play, faults_of


@read_only_lab_page
def rung(request: HttpRequest, slug: str) -> HttpResponse:
    entry = entry_or_404(slug)
    run = example_run(entry)
    fix = next_rung(slug) if entry.flaw else None
    difference = source.difference(entry, fix) if fix else None
    context = {
        **_context_of(entry),
        "story": lessons.story(entry),
        "run": run,
        "comparison_links": list(links_to_comparison(slug)),
        "lane": run and swimlane.draw(run.trace),
        "files": source.source_files(entry, run.trace.steps if run else ()),
        "whole_file": source.whole_file(entry),
        "fix": fix,
        "difference": difference,
        "code_of_fix": source.short_code(fix) if fix and difference is None else None,
        "lesson": lessons.lesson(slug),
        "new_session": can_play(entry) and new_session(entry),
    }
    return render(request, "lab/rung.html", context)


@read_only_lab_page
def play(request: HttpRequest, slug: str) -> HttpResponse:
    entry = entry_or_404(slug)
    if not can_play(entry):
        raise PageRefused(404, _("This rung needs servers of its own and cannot be played on a page."))
    asked = parse_session(entry, request.GET)
    trace = replay_session(asked)
    # A lenient session skips choices, so the trace may have fewer choices than the address.
    session = PlaySession(slug, trace.schedule, trace.clients)
    following = next_rung(slug)
    context = {
        **_context_of(entry),
        "session": session,
        "trace": trace,
        "lane": swimlane.draw(trace),
        "choices": choices_of(session, trace),
        "most_choices": MOST_CHOICES,
        "left_out": len(asked.schedule) - len(trace.schedule) if not trace.reached else 0,
        "replay_broke_nothing": asked.lenient and session.schedule and not trace.reached and not trace.ended,
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


def _context_of(entry: LadderEntry) -> dict[str, Any]:
    """Return the template context that both pages of a rung share."""
    results = results_of(entry)
    track, place = rungs_of(entry.track), results.number - 1
    return {
        "entry": entry,
        "results": results,
        "track": TRACKS[entry.track],
        "goal": GOALS[entry.breaks] if entry.breaks else ANY_GOAL,
        "faults": faults_of(entry),
        "meaning": MEANINGS[entry.breaks] if entry.breaks else "",
        "rung_before": track[place - 1] if place else None,
        "rung_after": track[place + 1] if place + 1 < len(track) else None,
        "measured_line": measured_line(results.measured),
        "outdated_line": outdated_line(results.measured),
    }
