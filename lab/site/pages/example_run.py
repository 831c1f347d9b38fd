"""The run on the page of a rung (a lock or way of selling): a witness that breaks it, or a witness that it survives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from django.utils.translation import gettext as _

from lab.claims import witness
from lab.claims.runs import Impossible
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.site.page import PageRefused
from lab.site.pages.play_session import MOST_CHOICES, PlaySession
from lab.site.pages.replays import replay_for_page
from lab.workloads.registry import can_play

_cache: dict[str, ExampleRun] = {}
"""Example runs by rung. Each process replays a run only once, because it is the same each time."""


@dataclass(frozen=True)
class ExampleRun:
    """A run that a rung's page shows.

    Attributes:
        kind: `witness`: the schedule that breaks the rung; `survived`: the witness of a flawed rung that this rung
            fixes; `alone`: the clients run one after another.
        trace: the recorded run.
        other: the flawed rung whose witness this rung has survived.
    """

    kind: Literal["witness", "survived", "alone"]
    trace: Trace
    other: LadderEntry | None = None

    @property
    def session(self) -> PlaySession | None:
        """The schedule of the run, as a session that a visitor can continue. None if it is too long or not playable."""
        slug, schedule, clients = self.trace.rung, self.trace.schedule, self.trace.clients
        if not can_play(LADDER[slug]) or len(schedule) > MOST_CHOICES:
            return None
        return PlaySession(slug, schedule, clients)


def example_run(entry: LadderEntry) -> ExampleRun | None:
    """Return the run that a rung's page shows. None if the rung needs its own servers and no trace is stored.

    Raises:
        PageRefused: the run cannot be replayed now, or the stored witness does not fit the code.
    """
    if not can_play(entry):
        trace = witness.trace(entry.slug)
        return None if trace is None else ExampleRun("witness" if trace.reached else "alone", trace)
    if entry.slug in _cache:
        return _cache[entry.slug]
    try:
        run = _replay_example(entry.slug)
    except Impossible as impossible:
        raise PageRefused(500, _("The stored schedule no longer fits the code of this rung.")) from impossible
    stored = witness.load(entry.slug)
    # If the witness did not break its rung, something has disturbed the run, such as a slow server. Do not cache such a
    # run.
    if stored is None or run.trace.broken == stored.invariant:
        _cache[entry.slug] = run
    return run


def _replay_example(slug: str) -> ExampleRun:
    stored = witness.load(slug)
    if stored is not None:
        return ExampleRun("witness", replay_for_page(slug, stored.schedule, stored.clients, to_the_end=True))
    for other in LADDER.values():
        theirs = witness.load(other.slug) if other.fixed_by == slug and can_play(other) else None
        if theirs is not None:
            trace = replay_for_page(slug, theirs.schedule, theirs.clients, to_the_end=True, lenient=True)
            return ExampleRun("survived", trace, other)
    return ExampleRun("alone", replay_for_page(slug, (), LADDER[slug].clients, to_the_end=True))
