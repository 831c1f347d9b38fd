"""A visitor's session as the scheduler of a lock or way of selling. Only the page's address stores it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args
from urllib.parse import urlencode

from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _

from lab.explorer.terms import FAULTS_OF_AN_ACTOR, Fault, watchdog_of
from lab.ladder.catalogue import LadderEntry
from lab.site.page import PageRefused
from lab.workloads.registry import actors

MOST_CHOICES = 60
"""Maximum number of choices in an address."""
CLIENT_COUNTS = (2, 3, 4)


@dataclass(frozen=True)
class PlaySession:
    """The choices of a visitor so far.

    Attributes:
        slug: slug of the rung.
        schedule: the choices in order: an actor that took a step, or a fault.
        clients: number of clients.
        lenient: whether to skip choices that this rung does not offer. They come from a schedule of another rung.
        route: name of the URL pattern of the session's page.
    """

    slug: str
    schedule: tuple[str, ...]
    clients: int
    lenient: bool = False
    route: str = "lab-play"

    @property
    def address(self) -> str:
        """The address of the session's page."""
        query = {"schedule": ",".join(self.schedule), "clients": self.clients}
        if self.lenient:
            query["lenient"] = 1
        return f"{reverse(self.route, args=[self.slug])}?{urlencode(query, safe=',')}"

    def first(self, choices: int) -> PlaySession:
        """Return the session with only this many of its first choices."""
        return replace(self, schedule=self.schedule[:choices], lenient=False)

    def after(self, choice: str) -> PlaySession:
        """Return the session with one more choice."""
        return replace(self, schedule=(*self.schedule, choice), lenient=False)


def new_session(entry: LadderEntry, route: str = "lab-play") -> PlaySession:
    """Return a session in which no choice was made yet."""
    return PlaySession(entry.slug, (), entry.clients, route=route)


def parse_session(entry: LadderEntry, query: QueryDict, *, route: str = "lab-play") -> PlaySession:
    """Return the session in an address.

    Raises:
        PageRefused: the address contains no valid session.
    """
    start = new_session(entry, route)
    clients = query.get("clients", str(start.clients))
    if clients not in map(str, CLIENT_COUNTS):
        raise _refused(start, _("The number of clients must be two, three or four."))
    session = replace(start, clients=int(clients), lenient=query.get("lenient") == "1")
    listed = query.get("schedule", "")
    # Count the commas before splitting: a very long address must not use much memory.
    if listed.count(",") >= MOST_CHOICES:
        raise _refused(session, _("A schedule has at most %(most)d choices.") % {"most": MOST_CHOICES})
    schedule = tuple(choice.strip() for choice in listed.split(",")) if listed else ()
    allowed = _choice_names(entry, session.clients)
    unknown = [choice for choice in schedule if choice not in allowed]
    if unknown:
        raise _refused(
            session,
            _("“%(choice)s” is not a choice on this rung. Choices are: %(allowed)s.")
            % {"choice": unknown[0][:40], "allowed": ", ".join(allowed)},
        )
    return replace(session, schedule=schedule)


def _choice_names(entry: LadderEntry, clients: int) -> Sequence[str]:
    """Return every name that may be in a schedule with this number of clients."""
    names = actors(entry, clients)
    watchdogs = [watchdog_of(name) for name in names]
    faults_of_one = [f"{fault} {name}" for fault in FAULTS_OF_AN_ACTOR for name in names]
    faults_of_all = [fault for fault in get_args(Fault) if fault not in FAULTS_OF_AN_ACTOR]
    return (*names, *watchdogs, *faults_of_one, *faults_of_all)


def _refused(session: PlaySession, message: str) -> PageRefused:
    return PageRefused(400, message, link=session.address, label=_("Start with an empty schedule"))
