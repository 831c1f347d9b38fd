"""Flawed way of selling: a counter in Redis decides alone, although it may be out of date."""

from __future__ import annotations

from typing import Any

import msgspec

from inventory.counters.whole import END_RESERVATION, TAKE
from inventory.errors import SoldOut, StockReserved
from inventory.requests import OrderRequest, Placement, Save
from lab.ladder.stock.counter_rung import CounterRung
from lab.models import RungOrder


class RedisLosesItsLastSecond(CounterRung):
    """Flawed: Redis alone decides whether a unit is left, and Redis can lose its latest writes.

    The scripts are those of the sound strategy `lua`: they take a whole cart or nothing, record whom the units are for,
    and put them back only once. The schedule that breaks it: client A's script takes the last unit. Redis restarts
    without its last second of data, so the counter says "one left" and A's reservation is gone. A's order is still
    written. B buys too, and the stock is -1.

    Fixed by a guard in SQL, which refuses what Redis has admitted by mistake: `lua`. Source: article 002 (section 4.2).

    `manage.py ladder --verify` and `--stress` kill a Valkey, which restarts with the file that it wrote when the sale
    began. On the pages the data is reset to that moment, and no server stops.
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
    def reservations_key(self) -> str:
        """The key of the hash with the reservations, by request id."""
        return f"lab:{{{self.slug}}}"

    def take(self, order: OrderRequest) -> None:
        reservation = msgspec.json.encode({"items": [(item.sku, item.quantity) for item in order.items]})
        answer, position, left = self._run(TAKE, order, reservation)
        item = order.items[position - 1]
        if answer == b"reserved":
            raise StockReserved(item.sku)
        if answer != b"taken":
            raise SoldOut(item.sku, wanted=item.quantity, left=left)

    def give_back(self, order: OrderRequest) -> None:
        self._end_reservation(order, "back")

    def _end_reservation(self, order: OrderRequest, how: str) -> None:
        self._run(END_RESERVATION, order, how)

    def _run(self, text: str, order: OrderRequest, argument: bytes | str) -> Any:
        keys = [self.reservations_key, f"{self.reservations_key}:units", *self.keys(order)]
        return self.redis.eval(text, len(keys), *keys, str(order.id), argument)

    def copy(self, sku: str) -> int:
        """Return the counter plus the units reserved for requests that have no order yet."""
        stored = self.redis.hgetall(self.reservations_key)
        reservations = {request.decode(): msgspec.json.decode(value)["items"] for request, value in stored.items()}
        placed = RungOrder.objects.filter(order__in=reservations).values_list("order", flat=True)
        orders = {str(order) for order in placed}
        pending = [item for request, items in reservations.items() if request not in orders for item in items]
        return super().copy(sku) + sum(units for reserved, units in pending if reserved == sku)
