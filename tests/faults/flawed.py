"""Strategies that lose something when a part of the shop is killed: negative controls of the rounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

from django.db import connections, transaction
from django_redis import get_redis_connection
from redis import RedisError

from inventory import stock
from inventory.counters.whole import Counters, counter_key
from inventory.errors import InventoryError, SoldOut, StockNotLoaded, StockUnavailable
from inventory.queue.stream import QueueEntry
from inventory.requests import OrderRequest, Placement, Reject, Save, Saved, save_one
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from inventory.strategies.lua import Lua
from inventory.strategies.lua_queue import LuaQueue
from shop.models import Sale

BEHIND = 0.1  # seconds for which a flaw is open: before the commit, or in doubt after it


class AnswersEarly(Strategy):
    """Answers before the commit."""

    name = "answers-early"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        answer = threading.Event()
        refused: list[BaseException] = []

        def write() -> None:
            try:
                with transaction.atomic(durable=True):
                    for item in order.items:
                        stock.take(item.sku, item.quantity)
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


TAKE = """
for at, counter in ipairs(KEYS) do
    local left = tonumber(redis.call("GET", counter) or -1)
    if left < tonumber(ARGV[at]) then
        return {at, left}
    end
end
for at, counter in ipairs(KEYS) do
    redis.call("DECRBY", counter, ARGV[at])
end
return {0, 0}
"""


class AsksNobody(Lua):
    """Believes Redis when it says "sold out": what is taken without a note would look lost to who asks Postgres."""

    @contextmanager
    def agreed(self) -> Iterator[None]:
        yield


class NotesInMemory(Counters):
    """Remembers what it has taken for whom, instead of noting it in Redis."""

    def take(self, request: OrderRequest) -> None:
        self.items = request.items
        keys, units = zip(*((counter_key(item.sku), item.quantity) for item in request.items), strict=True)
        try:
            short, left = self.client.eval(TAKE, len(keys), *keys, *units)
        except RedisError as error:
            raise StockUnavailable(f"Redis did not answer: {error}") from error
        if short:
            item = request.items[short - 1]
            if left < 0:
                raise StockNotLoaded(f"{item.sku} has no counter in Redis.")
            raise SoldOut(item.sku, wanted=item.quantity, left=left)

    def give_back(self, request: UUID, skus: Iterable[str]) -> bool:
        for item in self.items:
            self.client.incrby(counter_key(item.sku), item.quantity)
        return True


class LuaWithoutNotes(AsksNobody):
    """Takes units in Redis, and nobody else can tell whose they are."""

    name = "lua-without-notes"

    def __init__(self) -> None:
        super().__init__(lambda: NotesInMemory(get_redis_connection("default")))


class GivesBackWhenInDoubt(Lua):
    """Takes an answer that does not come for a failure, although the COMMIT may have succeeded."""

    name = "gives-back-when-in-doubt"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        counters = self.counters()
        counters.take(order)
        try:
            with transaction.atomic(durable=True):
                for item in order.items:
                    stock.take(item.sku, item.quantity)
                save_one(order, save)
            time.sleep(BEHIND)
            for sku in order.skus:
                stock.on_hand(sku)
        except BaseException:
            counters.give_back(order.id, order.skus)
            raise
        counters.confirm_reservation(order.id, order.skus)
        return Placement.COMMITTED


class AcknowledgesEarly(AsksNobody, LuaQueue):
    """Takes what it saves off the queue before the commit; what other sales have queued, after it.

    In the same transaction: as long as it has the rows of the stock, nobody counts them and finds units without an
    owner. So only a crash shows it.
    """

    name = "acknowledges-early"

    def _save(self, entries: Sequence[QueueEntry], save: Save, reject: Reject, saved: Saved) -> None:
        mine = set(Sale.objects.filter(strategy=self.name).values_list("pk", flat=True))
        early = {entry.id: entry for entry in entries if entry.request and entry.request.sale in mine}

        def save_and_take_off(requests: Sequence[OrderRequest]) -> Mapping[UUID, InventoryError]:
            refusals = save(requests)
            if written := [
                early[request.id] for request in requests if request.id in early and request.id not in refusals
            ]:
                self.queue().done(written)
                time.sleep(BEHIND)
            return refusals

        super()._save(entries, save_and_take_off, reject, saved)


def register(*, worker: bool = False) -> None:
    """Let a sale choose them, in this process.

    Args:
        worker: this process saves what is queued.
    """
    known = registry._strategies()
    assert isinstance(known, dict)
    early = AcknowledgesEarly(registry.counters, registry.queue)
    for strategy in (AnswersEarly(), LuaWithoutNotes(), GivesBackWhenInDoubt(registry.counters), early):
        known[strategy.name] = strategy
    if worker:
        known[LuaQueue.name] = early
