"""Flawed strategies for negative controls: they lose stock or orders when a part is killed or a connection is cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from django.db import connections, transaction
from django_redis import get_redis_connection

from inventory import stock
from inventory.counters.whole import Counters, counter_key
from inventory.errors import InventoryError, SoldOut
from inventory.queue.entries import QueueEntry
from inventory.requests import OrderRequest, Placement, Reject, Save, Saved, save_one
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from inventory.strategies.lua import Lua
from inventory.strategies.lua_queue import LuaQueue
from shop.models import Sale

WINDOW = 0.1  # seconds for which a fault can hit the flaw


class AnswersEarly(Strategy):
    """Confirms the order before the commit."""

    name = "answers-early"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        answered = threading.Event()
        refused: list[BaseException] = []

        def write() -> None:
            try:
                with transaction.atomic(durable=True):
                    for item in order.items:
                        stock.take(item.sku, item.quantity)
                    save_one(order, save)
                    answered.set()
                    time.sleep(WINDOW)
            except BaseException as error:
                refused.append(error)
            finally:
                answered.set()
                connections.close_all()

        connections.close_all()  # Return a connection to the pool for the writer.
        threading.Thread(target=write).start()
        answered.wait()
        if refused:
            raise refused[0]
        return Placement.COMMITTED


class TrustsSoldOut(Lua):
    """Trusts "sold out" from Redis without asking Postgres, although Redis may count too few units."""

    def _verify_sold_out(self, refused: SoldOut, saved: Saved) -> None:
        pass


class ReservationsInMemory(Counters):
    """Keeps reservations in memory instead of Redis, so that a crash loses them."""

    def take(self, request: OrderRequest) -> None:
        self.items = request.items
        super().take(request)
        self._end(request.id, request.skus, "sold")

    def _end(self, request: UUID, skus: Iterable[str], outcome: str) -> bool:
        return super()._end(request, skus, "sold")  # Forget the reservation, whatever has become of its units.

    def give_back(self, request: UUID, skus: Iterable[str]) -> bool:
        for item in self.items:
            self.client.incrby(counter_key(item.sku), item.quantity)
        return True


class LuaWithoutReservations(TrustsSoldOut):
    """Takes units in Redis without a reservation."""

    name = "lua-without-reservations"

    def __init__(self) -> None:
        super().__init__(lambda: ReservationsInMemory(get_redis_connection("default")))


class GivesBackWhenInDoubt(Lua):
    """Gives the units back after every error, although the COMMIT may have succeeded."""

    name = "gives-back-when-in-doubt"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        counters = self.counters()
        counters.take(order)
        try:
            with transaction.atomic(durable=True):
                for item in order.items:
                    stock.take(item.sku, item.quantity)
                save_one(order, save)
            time.sleep(WINDOW)
            for sku in order.skus:
                stock.on_hand(sku)
        except BaseException:
            counters.give_back(order.id, order.skus)
            raise
        counters.confirm_reservation(order.id, order.skus)
        return Placement.COMMITTED


class AcknowledgesEarly(TrustsSoldOut, LuaQueue):
    """Acknowledges queue entries of its own sales before the commit. Entries of other sales are acknowledged after it.

    The open transaction still locks the stock rows, so no check sees units without an owner. Only a crash shows the
    flaw.
    """

    name = "acknowledges-early"

    def _save(self, entries: Sequence[QueueEntry], save: Save, reject: Reject, saved: Saved) -> None:
        own = set(Sale.objects.filter(strategy=self.name).values_list("pk", flat=True))
        early = {entry.order_id: entry for entry in entries if entry.order and entry.order.sale in own}

        def save_and_acknowledge(requests: Sequence[OrderRequest]) -> Mapping[UUID, InventoryError]:
            refusals = save(requests)
            if written := [
                early[request.id] for request in requests if request.id in early and request.id not in refusals
            ]:
                self.queue().finish_saved(written)
                time.sleep(WINDOW)
            return refusals

        super()._save(entries, save_and_acknowledge, reject, saved)


def register(*, worker: bool = False) -> None:
    """Register the flawed strategies in this process. With `worker`, `acknowledges-early` also replaces `lua-queue`."""
    early = AcknowledgesEarly(registry.counters, registry.queue)
    for strategy in (AnswersEarly(), LuaWithoutReservations(), GivesBackWhenInDoubt(registry.counters), early):
        registry._loaded[strategy.name] = strategy
    if worker:
        registry._loaded[LuaQueue.name] = early
