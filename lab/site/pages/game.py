"""Shared code of the pages on which the visitor is the scheduler: replay choices, and list the next choices."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext as _

from lab.claims.runs import Impossible
from lab.explorer.trace import Choice, Trace
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.site.page import PageRefused
from lab.site.pages.play_session import MOST_CHOICES, PlaySession
from lab.site.pages.replays import replay_for_page


def entry_or_404(slug: str) -> LadderEntry:
    """Return a rung.

    Raises:
        PageRefused: there is no such rung (404).
    """
    entry = LADDER.get(slug)
    if entry is None:
        raise PageRefused(404, _("The ladder has no rung of this name."))
    return entry


def replay_session(session: PlaySession) -> Trace:
    """Replay a visitor's schedule.

    Raises:
        PageRefused: the schedule cannot be replayed now, or contains an impossible choice.
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


def choices_of(session: PlaySession, trace: Trace) -> Sequence[tuple[Choice, PlaySession]]:
    """Return each choice that the visitor has now, and the session to which it leads."""
    if trace.reached or len(session.schedule) >= MOST_CHOICES:
        return ()
    return [(choice, session.after(choice.name)) for choice in trace.choices]
