"""A scheduler's session, which is its address: a schedule, how many clients, and nothing that is kept anywhere."""

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
from lab.site.pages.page import PageRefused
from lab.workloads.registry import actors

LONGEST = 60
"""Choices of a schedule in an address."""
CLIENTS = (2, 3, 4)
"""How many clients there may be."""


@dataclass(frozen=True)
class PlaySession:
    """What a visitor has chosen so far.

    Attributes:
        slug: the rung.
        schedule: who went, or what happened, in order.
        clients: how many there are.
        lenient: whether choices that this rung does not offer are left out, since they were made on another.
    """

    slug: str
    schedule: tuple[str, ...]
    clients: int
    lenient: bool = False

    @property
    def address(self) -> str:
        """The address of its page."""
        query = {"schedule": ",".join(self.schedule), "clients": self.clients}
        if self.lenient:
            query["lenient"] = 1
        return f"{reverse('lab-play', args=[self.slug])}?{urlencode(query, safe=',')}"

    def first(self, choices: int) -> PlaySession:
        """The same session, before all but the first choices."""
        return replace(self, schedule=self.schedule[:choices], lenient=False)

    def after(self, choice: str) -> PlaySession:
        """The same session with one more choice."""
        return replace(self, schedule=(*self.schedule, choice), lenient=False)


def begin(entry: LadderEntry) -> PlaySession:
    """A session in which nothing has been chosen yet."""
    return PlaySession(entry.slug, (), entry.clients)


def read(entry: LadderEntry, query: QueryDict) -> PlaySession:
    """The session of an address.

    Raises:
        Refused: the address is no session.
    """
    start = begin(entry)
    clients = query.get("clients", str(start.clients))
    if clients not in map(str, CLIENTS):
        raise _refused(start, _("There can be two, three or four clients."))
    session = replace(start, clients=int(clients), lenient=query.get("lenient") == "1")
    said = query.get("schedule", "")
    # A list of no end is not split: its length is known from its commas.
    if said.count(",") >= LONGEST:
        raise _refused(session, _("A schedule has at most %(longest)d choices.") % {"longest": LONGEST})
    schedule = tuple(choice.strip() for choice in said.split(",")) if said else ()
    may = known(entry, session.clients)
    unknown = [choice for choice in schedule if choice not in may]
    if unknown:
        raise _refused(
            session,
            _("“%(choice)s” is nothing that a schedule can choose. It may name: %(known)s.")
            % {"choice": unknown[0][:40], "known": ", ".join(may)},
        )
    return replace(session, schedule=schedule)


def known(entry: LadderEntry, clients: int) -> Sequence[str]:
    """Whatever may stand in a schedule of so many clients on a rung."""
    names = actors(entry, clients)
    watchdogs = [watchdog_of(name) for name in names]
    to_one = [f"{event} {name}" for event in FAULTS_OF_AN_ACTOR for name in names]
    to_all = [event for event in get_args(Fault) if event not in FAULTS_OF_AN_ACTOR]
    return (*names, *watchdogs, *to_one, *to_all)


def _refused(session: PlaySession, message: str) -> PageRefused:
    return PageRefused(400, message, link=session.address, label=_("Begin with an empty schedule"))
