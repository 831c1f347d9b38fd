"""`group-commit`: who waits together is saved together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from django.db import InterfaceError, OperationalError, connection
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled

from inventory import batch
from inventory.draft import Draft, Placement, Save
from inventory.strategies.base import Strategy

AGAIN = 0.1
"""Seconds for which an order that is tried again alone waits for a lock."""


@dataclass(eq=False, slots=True)
class Ticket:
    """An order that waits. It is called once: with its answer, or to lead the next group."""

    order: Draft
    called: threading.Event = field(default_factory=threading.Event)
    answered: bool = False
    error: BaseException | None = None


class GroupCommit(Strategy):
    """One request of a process saves for all that wait in it, in one transaction; meanwhile the next group gathers.

    Nobody waits for company: who finds nobody saving begins at once. The hot row is written once a group, and the disk
    is waited for once a group, so it gets faster as more buyers come.
    """

    name = "group-commit"

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: list[Ticket] = []
        self._saving = False

    def _place(self, order: Draft, save: Save) -> Placement:
        mine = Ticket(order)
        with self._mutex:
            self._waiting.append(mine)
            leads, self._saving = not self._saving, True
        if not leads:
            mine.called.wait()
        if not mine.answered:
            self._lead(save)
        if mine.error is not None:
            raise mine.error
        return Placement.COMMITTED

    def _lead(self, save: Save) -> None:
        """Save everybody who waits, and then let the first who came meanwhile lead."""
        with self._mutex:
            group, self._waiting = self._waiting, []
        try:
            _answer(group, save)
        finally:
            with self._mutex:
                self._saving = bool(self._waiting)
                following = self._waiting[0] if self._waiting else None
            if following is not None:
                following.called.set()
            for ticket in group:
                ticket.called.set()


def _answer(group: Sequence[Ticket], save: Save) -> None:
    """Answer each ticket of a group. An order that makes the transaction fail fails alone: the others are saved."""
    try:
        refusals = batch.commit([ticket.order for ticket in group], save)
    except BaseException as error:
        if len(group) > 1 and _is_answer(error):
            with _in_a_hurry():
                for ticket in group:
                    _answer([ticket], save)
            return
        for ticket in group:
            ticket.answered, ticket.error = True, error
        return
    for ticket in group:
        ticket.answered, ticket.error = True, refusals.get(ticket.order.id)


def _is_answer(error: BaseException) -> bool:
    """Whether nothing was saved. Without an answer from Postgres the group may be, and so may each be on its own."""
    if isinstance(error, OperationalError | InterfaceError):
        return isinstance(error.__cause__, LockNotAvailable | QueryCanceled | DeadlockDetected)
    return isinstance(error, Exception)


@contextmanager
def _in_a_hurry() -> Iterator[None]:
    """Wait only `AGAIN` seconds for a lock: what one order waits for in vain, everybody waits for."""
    try:
        _set(f"SET lock_timeout = '{AGAIN}s'")
        yield
    finally:
        _set("RESET lock_timeout")


def _set(what: str) -> None:
    # Where Postgres does not answer now each order is told so by its own transaction.
    with suppress(OperationalError, InterfaceError), connection.cursor() as cursor:
        cursor.execute(what)
