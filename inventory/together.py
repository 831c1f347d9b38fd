"""Who asks at the same time is answered together: one thread of the process asks for all that wait in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from django.db import connection

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(eq=False, slots=True)
class Ticket(Generic[Question, Answer]):
    """A question that waits. Who has it is called once: with his answer, or to lead the next group."""

    question: Question
    called: threading.Event = field(default_factory=threading.Event)
    answered: bool = False
    answer: Answer | None = None
    error: BaseException | None = None


class Together(Generic[Question, Answer]):
    """One thread answers for all that wait; meanwhile the next group gathers.

    Nobody waits for company: who finds nobody at work begins at once. What is answered was asked for after the question
    came, so an answer is never older than its question. There is no thread of its own.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: list[Ticket[Question, Answer]] = []
        self._leading = False

    def ask(self, question: Question, answer: Callable[[Sequence[Question]], Sequence[Answer]]) -> Answer:
        """Ask with all who wait at the moment.

        Args:
            answer: answers many questions, in their order. Any caller's will do for all. What it raises is raised for
                each of them.
        """
        mine: Ticket[Question, Answer] = Ticket(question)
        if not self._enter(mine, unless_to_wait=True):
            # Whoever leads may need it, where there are fewer connections than threads. Before the ticket is seen: who
            # is called has to come.
            if not connection.in_atomic_block:
                connection.close()
            if not self._enter(mine):
                mine.called.wait()
        if not mine.answered:
            self._lead(answer)
        if mine.error is not None:
            raise mine.error
        return cast(Answer, mine.answer)

    def waiting(self) -> int:
        """How many wait for the next group."""
        return len(self._waiting)

    def _enter(self, mine: Ticket[Question, Answer], *, unless_to_wait: bool = False) -> bool:
        """Get in line, and say whether there was none: who is the first leads."""
        with self._mutex:
            leads = not self._leading
            if leads or not unless_to_wait:
                self._waiting.append(mine)
                self._leading = True
        return leads

    def _lead(self, answer: Callable[[Sequence[Question]], Sequence[Answer]]) -> None:
        """Answer everybody who waits, and then let the first who came meanwhile lead."""
        with self._mutex:
            group, self._waiting = self._waiting, []
        try:
            answers = answer([ticket.question for ticket in group])
            for ticket, one in zip(group, answers, strict=True):
                ticket.answer = one
        except BaseException as error:
            for ticket in group:
                ticket.error = error
        finally:
            for ticket in group:
                ticket.answered = True
            with self._mutex:
                self._leading = bool(self._waiting)
                following = self._waiting[0] if self._waiting else None
            if following is not None:
                following.called.set()
            for ticket in group:
                ticket.called.set()
