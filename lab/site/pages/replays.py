"""Replay a schedule for a page, in a borrowed sandbox. Limits on time and visitors keep threads free for the shop."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import get_args

import psycopg
from django.db import InterfaceError, OperationalError
from django.utils.translation import gettext as _
from redis import RedisError

from lab.claims import runs
from lab.explorer.actors import Stuck
from lab.explorer.scheduler import TooLong
from lab.explorer.terms import Fault
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.sandbox.databases import SandboxesBusy
from lab.sandbox.pool import borrowed
from lab.sandbox.redis_database import NotOurs
from lab.site.page import PageRefused
from servers import ServerError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 2
"""Seconds after which a visitor whose replay was not possible at the moment may try again."""
REPLAY_SECONDS = 10.0
"""Seconds after which a replay takes no further step, because other visitors wait for its sandbox."""
VISITORS = 4
"""Maximum number of visitors per process who replay a schedule or wait for a sandbox. The shop needs other threads."""

_slots = BoundedSemaphore(VISITORS)


def replay_for_page(
    slug: str, schedule: Sequence[str], clients: int, *, to_the_end: bool = False, lenient: bool = False
) -> Trace:
    """Replay a schedule and return its trace.

    Args:
        slug: slug of the rung.
        schedule: the choices in order.
        clients: number of clients.
        to_the_end: whether to continue after the last choice until every client is done.
        lenient: whether to skip choices that the rung does not offer.

    Raises:
        PageRefused: no sandbox is free or usable, a server does not answer, or the replay does not end in time.
        Impossible: a choice is not possible at its place.
    """
    with _errors_as_refusals(), _visitor_slot(), borrowed() as sandbox:
        return runs.replay(
            slug,
            schedule,
            sandbox,
            clients=clients,
            faults=offered_faults(LADDER[slug]),
            to_the_end=to_the_end,
            as_far_as_possible=lenient,
            seconds=REPLAY_SECONDS,
        )


def offered_faults(entry: LadderEntry) -> Sequence[Fault]:
    """Return the faults that a page offers for a rung.

    These are the faults that the rung survives, the fault that breaks it, and the faults that break the rungs that it
    fixes.
    """
    fixed = [other.broken_by for other in LADDER.values() if other.fixed_by == entry.slug]
    faults = {*entry.survives, entry.broken_by, *fixed}
    return [fault for fault in get_args(Fault) if fault in faults]


@contextmanager
def _visitor_slot() -> Iterator[None]:
    if not _slots.acquire(blocking=False):
        raise SandboxesBusy(f"{VISITORS} visitors of this process already replay a schedule or wait for a sandbox.")
    try:
        yield
    finally:
        _slots.release()


@contextmanager
def _errors_as_refusals() -> Iterator[None]:
    try:
        yield
    except SandboxesBusy as busy:
        message = _("Other visitors are using every sandbox of the lab. Try again in a moment.")
        raise PageRefused(503, message, retry_after=RETRY_SECONDS) from busy
    except NotOurs as error:
        logger.error("The lab is closed: %s", error)
        message = _("The lab is closed: a database that it would empty contains other data. The log names it.")
        raise PageRefused(503, message) from error
    except ServerError as error:
        logger.error("The lab has no sandbox: %s", error)
        raise _servers_silent() from error
    except TooLong as error:
        logger.warning("A schedule of the lab took longer than %g s.", REPLAY_SECONDS)
        message = _("This schedule took too long. Try again in a moment, or try a shorter one.")
        raise PageRefused(503, message, retry_after=RETRY_SECONDS) from error
    except Stuck as error:
        raise PageRefused(500, _("The schedule did not end, and no server reported an error.")) from error
    except (RedisError, psycopg.OperationalError, OperationalError, InterfaceError) as error:
        logger.warning("A schedule of the lab stopped early: %r", error)
        raise _servers_silent() from error


def _servers_silent() -> PageRefused:
    message = _("The lab's servers do not answer. Try again in a moment.")
    return PageRefused(503, message, retry_after=RETRY_SECONDS)
