"""Runs for the pages, each on a stage of its own: the witness of a rung, and what a visitor has chosen."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Literal, get_args

import psycopg
from django.db import InterfaceError, OperationalError
from django.utils.translation import gettext as _
from redis import RedisError

from lab.claims import witness
from lab.claims.runs import Impossible, replay
from lab.explorer.actors import Stuck
from lab.explorer.scheduler import TooLong
from lab.explorer.terms import Fault
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.sandbox.databases import SandboxesBusy
from lab.sandbox.pool import borrowed
from lab.sandbox.redis_database import NotOurs
from lab.site.pages.page import PageRefused
from lab.site.pages.session import LONGEST, PlaySession
from lab.workloads.registry import can_play
from servers import ServerError

logger = logging.getLogger(__name__)

AGAIN = 2
"""Seconds after which a visitor who found all stages in use may ask again."""

LONG = 10.0
"""Seconds after which a run for a page takes no further step: it holds a stage that others wait for."""

VISITORS = 4
"""Those of a process who run a schedule or wait for a stage, at most: its other threads are the shop's."""

_places = BoundedSemaphore(VISITORS)
_kept: dict[str, Shown] = {}
"""What was shown of a rung, and is the same each time."""


@dataclass(frozen=True)
class Shown:
    """A run that a rung's page shows.

    Attributes:
        kind: the `witness` that breaks the rung; `survived`: the witness of another rung, which does not break this
            one; `alone`: nobody interferes.
        trace: what happened.
        other: the rung whose witness was survived.
    """

    kind: Literal["witness", "survived", "alone"]
    trace: Trace
    other: LadderEntry | None = None

    @property
    def session(self) -> PlaySession | None:
        """The same schedule for a visitor to go on with; None: it is too long for an address, or not for visitors."""
        slug, schedule, clients = self.trace.rung, self.trace.schedule, self.trace.clients
        if not can_play(LADDER[slug]):
            return None
        return PlaySession(slug, schedule, clients) if len(schedule) <= LONGEST else None


def shown(entry: LadderEntry) -> Shown | None:
    """The run that a rung's page shows. It is the same each time, so a process replays it once.

    One that needs servers of its own was kept when its witness was found.

    Raises:
        Refused: all stages are in use, or a server does not answer, or the stored witness cannot be run.
    """
    if not can_play(entry):
        kept = witness.trace(entry.slug)
        return None if kept is None else Shown("witness" if kept.broken else "alone", kept)
    try:
        with _refusing():
            return _shown(entry.slug)
    except Impossible as impossible:
        raise PageRefused(500, _("The stored schedule does not fit the code of this rung any more.")) from impossible


def play(session: PlaySession) -> Trace:
    """Run a visitor's schedule.

    Raises:
        Refused: it cannot be run, or all stages are in use, or a server does not answer.
    """
    try:
        with _refusing():
            return _replay(session.slug, session.schedule, session.clients, to_the_end=False, lenient=session.lenient)
    except Impossible as impossible:
        raise PageRefused(
            400,
            _("Choice %(number)d, “%(choice)s”, cannot come at that place.")
            % {"number": impossible.at + 1, "choice": session.schedule[impossible.at]},
            link=session.first(impossible.at).address,
            label=_("Go on from the choice before it"),
        ) from impossible


def offered(entry: LadderEntry) -> Sequence[Fault]:
    """What may happen on a rung: what it claims to survive, what breaks it, and what breaks the rungs that it fixes."""
    fixed = [other.broken_by for other in LADDER.values() if other.fixed_by == entry.slug]
    events = {*entry.survives, entry.broken_by, *fixed}
    return [event for event in get_args(Fault) if event in events]


def _shown(slug: str) -> Shown:
    if slug in _kept:
        return _kept[slug]
    shown, stored = _seen(slug), witness.load(slug)
    # A witness that does not break its rung has met with something: it is not shown for good.
    if stored is None or shown.trace.broken == stored.invariant:
        _kept[slug] = shown
    return shown


def _seen(slug: str) -> Shown:
    entry = LADDER[slug]
    stored = witness.load(slug)
    if stored is not None:
        return Shown("witness", _replay(slug, stored.schedule, stored.clients, to_the_end=True, lenient=False))
    for other in LADDER.values():
        theirs = witness.load(other.slug) if other.fixed_by == slug and can_play(other) else None
        if theirs is not None:
            trace = _replay(slug, theirs.schedule, theirs.clients, to_the_end=True, lenient=True)
            return Shown("survived", trace, other)
    return Shown("alone", _replay(slug, (), entry.clients, to_the_end=True, lenient=False))


def _replay(slug: str, schedule: Sequence[str], clients: int, *, to_the_end: bool, lenient: bool) -> Trace:
    with _place(), borrowed() as stage:
        return replay(
            slug,
            schedule,
            stage,
            clients=clients,
            faults=offered(LADDER[slug]),
            to_the_end=to_the_end,
            as_far_as_possible=lenient,
            seconds=LONG,
        )


@contextmanager
def _place() -> Iterator[None]:
    if not _places.acquire(blocking=False):
        raise SandboxesBusy(f"{VISITORS} visitors of this process run a schedule or wait for a stage.")
    try:
        yield
    finally:
        _places.release()


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except SandboxesBusy as busy:
        message = _("Other visitors are using every stage of the lab. One is free in a moment.")
        raise PageRefused(503, message, retry_after=AGAIN) from busy
    except NotOurs as error:
        logger.error("The lab is closed: %s", error)
        message = _("The lab is closed: a database that it would empty holds what is not its own. The log says which.")
        raise PageRefused(503, message) from error
    except ServerError as error:
        logger.error("The lab has no stage: %s", error)
        raise PageRefused(
            503, _("The lab's servers do not answer. Try again in a moment."), retry_after=AGAIN
        ) from error
    except TooLong as long:
        logger.warning("A schedule of the lab took longer than %g s.", LONG)
        message = _("This schedule took too long. Try again in a moment, or a shorter one.")
        raise PageRefused(503, message, retry_after=AGAIN) from long
    except Stuck as stuck:
        raise PageRefused(500, _("The schedule did not end, and no server says why.")) from stuck
    except (RedisError, psycopg.OperationalError, OperationalError, InterfaceError) as error:
        logger.warning("A schedule of the lab broke off: %r", error)
        message = _("The lab's servers do not answer. Try again in a moment.")
        raise PageRefused(503, message, retry_after=AGAIN) from error
