"""Strategies that lose something when a part of the shop is killed: negative controls of the rounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from uuid import UUID

from django.db import connections, transaction
from django_redis import get_redis_connection

from inventory import stock, strategies
from inventory.counters import Counters, counter_key
from inventory.draft import Draft, Placement, Save, save_one
from inventory.strategies import Strategy
from inventory.strategies.lua import Lua

BEHIND = 0.1  # seconds from the answer to the commit


class AnswersEarly(Strategy):
    """Answers before the commit."""

    name = "answers-early"

    def _place(self, order: Draft, save: Save) -> Placement:
        answer = threading.Event()
        refused: list[BaseException] = []

        def write() -> None:
            try:
                with transaction.atomic(durable=True):
                    for line in order.lines:
                        stock.take(line)
                    save_one(order, save)
                    answer.set()
                    time.sleep(BEHIND)
            except BaseException as error:
                refused.append(error)
            finally:
                answer.set()
                connections.close_all()

        connections.close_all()  # the writer needs one of the pool too
        threading.Thread(target=write).start()
        answer.wait()
        if refused:
            raise refused[0]
        return Placement.COMMITTED


class NotesInMemory(Counters):
    """Remembers what it has taken for whom, instead of noting it in Redis."""

    def take(self, draft: Draft) -> None:
        super().take(draft)
        self.settle(draft.id, draft.skus)
        self.lines = draft.lines

    def give_back(self, draft: UUID, skus: Iterable[str]) -> bool:
        for line in self.lines:
            self.client.incrby(counter_key(line.sku), line.quantity)
        return True


class LuaWithoutNotes(Lua):
    """Takes units in Redis, and nobody else can tell whose they are."""

    name = "lua-without-notes"

    def __init__(self) -> None:
        super().__init__(lambda: NotesInMemory(get_redis_connection("default")))


def register() -> None:
    """Let a sale choose them, in this process."""
    known = strategies._strategies()
    assert isinstance(known, dict)
    for strategy in (AnswersEarly(), LuaWithoutNotes()):
        known[strategy.name] = strategy
