"""`redis-loses-its-last-second`: a counter that may be older than the truth, and nobody but the counter is asked."""

from __future__ import annotations

from typing import Any

import orjson

from inventory.errors import SoldOut, StockReserved
from inventory.requests import OrderRequest, Placement, Save
from inventory.scripts import script
from lab.ladder.stock.counter_rung import CounterRung
from lab.models import RungOrder


class RedisLosesItsLastSecond(CounterRung):
    """Flawed: Redis decides alone that a unit exists, and Redis forgets.

    The scripts are those of the sound strategy: they take a cart or nothing, note for whom, and give back once. The
    schedule: A buys the last unit. Redis restarts, or a replica takes over, without its last second, so the counter
    says "one left" and the note is gone. B buys, and what he is sold is in no warehouse: the stock is below zero.
    Fixed by a guard in SQL, which refuses what Redis has let through: `lua`. Source: article 002 (section 4.2).

    `manage.py ladder --verify` and `--control` kill a Valkey for it, which starts with the file that it wrote when the
    sale began. On the pages the data are set back to that moment, and no server ends.
    """

    slug = "redis-loses-its-last-second"
    title = "Redis loses its last second"
    flaw = "A counter that is older than the truth sells the last units again."
    breaks = "conserved"
    broken_by = "restart"
    breaks_under = "lost data"
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "lua"
    source = "002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        placement = super()._place(order, save)
        self._end_reservation(order, "sold")
        return placement

    @property
    def notes(self) -> str:
        """The key of the notes: what is reserved for which request."""
        return f"lab:{{{self.slug}}}"

    def take(self, order: OrderRequest) -> None:
        note = orjson.dumps({"items": [(item.sku, item.quantity) for item in order.items]})
        answer, position, left = self._run(script("take"), order, note)
        item = order.items[position - 1]
        if answer == b"reserved":
            raise StockReserved(item.sku)
        if answer != b"taken":
            raise SoldOut(item.sku, wanted=item.quantity, left=left)

    def give_back(self, order: OrderRequest) -> None:
        self._end_reservation(order, "back")

    def _end_reservation(self, order: OrderRequest, how: str) -> None:
        self._run(script("end_reservation"), order, how)

    def _run(self, text: str, order: OrderRequest, argument: bytes | str) -> Any:
        keys = [self.notes, f"{self.notes}:units", *self.keys(order)]
        return self.redis.eval(text, len(keys), *keys, str(order.id), argument)

    def copy(self, sku: str) -> int:
        """The counter, and what is noted for requests that are no orders yet."""
        notes = {note.decode(): orjson.loads(said)["items"] for note, said in self.redis.hgetall(self.notes).items()}
        orders = {str(order) for order in RungOrder.objects.filter(order__in=notes).values_list("order", flat=True)}
        reserved = [item for note, items in notes.items() if note not in orders for item in items]
        return super().copy(sku) + sum(units for noted, units in reserved if noted == sku)
