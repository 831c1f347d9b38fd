"""The first page of the lab: a map of all rungs (locks and ways of selling) by track and level, with a filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render

from lab.ladder.catalogue import LadderEntry, Track
from lab.site.page import read_only_lab_page
from lab.site.pages import lessons
from lab.site.pages.first_path import STATIONS
from lab.site.pages.levels import LEVELS, Level, levels_of
from lab.site.pages.rung_results import RungResults, results_of
from lab.site.pages.texts import MEANINGS, TRACKS
from lab.site.provenance import measured_line, outdated_line
from lab.site.wording import translated


@dataclass(frozen=True)
class LadderFilter:
    """The rungs that a visitor wants to see. An empty value admits every rung.

    Attributes:
        track, claim, level: the value that a rung must have.
        text: words, in lower case, that must all be in the rung's names or its flaw.
    """

    track: str
    claim: str
    level: str
    text: str

    def admits(self, entry: LadderEntry, level: Level) -> bool:
        """Return whether a rung passes the filter."""
        wanted = ((self.track, entry.track), (self.claim, entry.claim), (self.level, level.name))
        words = searched_text(entry)
        return all(not asked or asked == has for asked, has in wanted) and all(
            word in words for word in self.text.split()
        )


@dataclass(frozen=True)
class LadderRow:
    """A rung on the map. `text` is the text that a search looks through."""

    results: RungResults
    text: str
    shown: bool


@dataclass(frozen=True)
class LadderLevel:
    """A level of the map with its rows."""

    level: Level
    rows: list[LadderRow]

    @property
    def shown(self) -> bool:
        return any(row.shown for row in self.rows)


@dataclass(frozen=True)
class LadderTrack:
    """A track of the map with its levels."""

    name: Track
    title: str
    levels: list[LadderLevel]

    @property
    def shown(self) -> bool:
        return any(level.shown for level in self.levels)


def parse_filter(query: QueryDict) -> LadderFilter:
    """Return the filter in an address. An unknown track, claim or level is treated as empty."""
    track, claim, level = query.get("track", ""), query.get("claim", ""), query.get("level", "")
    return LadderFilter(
        track if track in TRACKS else "",
        claim if claim in ("flawed", "sound") else "",
        level if level in {each.name for each in LEVELS} else "",
        query.get("text", "").lower(),
    )


def searched_text(entry: LadderEntry) -> str:
    """Return the names and the flaw of a rung, in English and in the reader's language, in lower case."""
    texts = (entry.title, entry.flaw or "")
    return " ".join((entry.slug, *texts, *map(translated, texts))).lower()


@read_only_lab_page
def ladder(request: HttpRequest) -> HttpResponse:
    asked = parse_filter(request.GET)
    tracks = [LadderTrack(name, title, list(_levels(name, asked))) for name, title in TRACKS.items()]
    rows = [row for track in tracks for level in track.levels for row in level.rows]
    measured = [result for row in rows for result in row.results.measured]
    context = {
        "tracks": tracks,
        "asked": asked,
        "shown": sum(row.shown for row in rows),
        "count": len(rows),
        "stations": len(STATIONS),
        "essays": lessons.ESSAYS,
        "meanings": MEANINGS,
        "measured_line": measured_line(measured),
        "outdated_line": outdated_line(measured),
    }
    return render(request, "lab/ladder.html", context)


def _levels(track: Track, asked: LadderFilter) -> Iterator[LadderLevel]:
    for level, rungs in levels_of(track):
        rows = [LadderRow(results_of(rung), searched_text(rung), asked.admits(rung, level)) for rung in rungs]
        yield LadderLevel(level, rows)
