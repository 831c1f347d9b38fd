"""Stock counters in Redis, one per sku, and the reservations of orders that have taken units and are not saved yet.

Redis only admits an order; Postgres decides whether it is sold. While no order is in progress, counter + reserved units
= units on hand in Postgres; `load` restores that equation. Every key has the hash tag `{stock}`, so that one script may
use the keys of several skus.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from redis import Redis, RedisError

from inventory.counters.scripts import script
from inventory.errors import SoldOut, StockNotLoaded, StockReserved, StockUnavailable
from inventory.requests import OrderRequest

logger = logging.getLogger(__name__)

RESERVATIONS = "{stock}:reserved"
"""Hash of order id to reservation."""
RESERVED_UNITS = "{stock}:reserved:units"
"""Hash of counter name to the units that are reserved from it."""
TAKE = script("take")
END_RESERVATION = script("end_reservation")
LOAD = script("load")
RECOUNT = script("recount")
RECOUNTED = 2000
"""Maximum number of reservations that `recount` adds up. Each reservation takes 0.03 ms, during which Redis serves no
other client."""
ENTRY = re.compile(r"(\d+-\d+)?")
BUYER = re.compile(r"(\d+:\d+)?")


def counter_key(name: str) -> str:
    """Return the Redis key of a counter, which holds the units that can still be reserved.

    Args:
        name: the sku, or the name of one of its segments.
    """
    return f"{{stock}}:counter:{name}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Units that were taken from counters for an order.

    Args:
        items: pairs of counter name and units.
        at: seconds since 1970 on the server's clock.
        entry: the id of the order's entry in the queue; empty for an order that is not queued.
        buyer: "sale:customer" of a queued order; empty for an order that is not queued.
    """

    order_id: UUID
    items: Sequence[tuple[str, int]]
    at: float
    entry: str = ""
    buyer: str = ""


Unended = deque[tuple[UUID, tuple[str, ...], str]]
UNENDED = 10_000
"""Maximum number of reservations in `Counters.unended`. Reconciliation ends the others."""


class Counters:
    """The stock counters in one Redis server.

    Args:
        client: a redis-py client that returns text or bytes.
    """

    def __init__(self, client: Redis) -> None:
        self.client: Any = client
        self._take = client.register_script(TAKE)
        self._end_reservation = client.register_script(END_RESERVATION)
        self._load: Any = client.register_script(LOAD)
        self._recount: Any = client.register_script(RECOUNT)
        self.unended: Unended = deque(maxlen=UNENDED)
        """Reservations that are still to be ended, because Redis did not answer. All orders of a strategy share one
        list."""

    def load(self, sku: str, on_hand: int, committed: Collection[UUID], *, make: bool) -> int | None:
        """Set the counter of a sku to the units on hand minus the units reserved.

        Args:
            on_hand: units in Postgres. The caller holds the sku's row lock until this returns.
            committed: ids of orders that have a reservation and are already saved.
            make: whether to create the counter if it is missing.

        Returns:
            Units that were added to the counter; 0 for a new counter; None if there is no counter.
        """
        arguments = [sku, on_hand, "make" if make else "mend", *map(str, committed)]
        before, after = self._load([RESERVATIONS, RESERVED_UNITS, counter_key(sku)], arguments)
        if after is None:
            return None
        return 0 if before is None else int(after) - int(before)

    def unload(self, skus: Iterable[str]) -> None:
        """Delete the counters of skus whose sale has ended, or whose counters are wrong."""
        if keys := [counter_key(sku) for sku in skus]:
            self.client.delete(*keys)

    def take(self, order: OrderRequest) -> None:
        """Take the units of all items of an order from their counters and reserve them, or take nothing. Idempotent.

        Raises:
            SoldOut, StockReserved, StockNotLoaded: nothing was taken.
            StockUnavailable: Redis did not answer. Units that it may have taken are given back: by this call or, if
                Redis still does not answer, later by `end_again` or reconciliation.
        """
        reservation = msgspec.json.encode({"items": [(item.sku, item.quantity) for item in order.items]})
        try:
            answer, position, left = self._take(_keys(order.skus), [str(order.id), reservation])
        except RedisError as error:
            # Give the units back: a customer's retry is a new order, which would take them a second time.
            self._end(order.id, order.skus, "back")
            raise StockUnavailable(f"Redis did not answer: {error}") from error
        item = order.items[int(position) - 1]
        match answer:
            case b"reserved" | "reserved":
                raise StockReserved(item.sku)
            case b"sold out" | "sold out":
                raise SoldOut(item.sku, wanted=item.quantity, left=int(left))
            case b"not loaded" | "not loaded":
                raise StockNotLoaded(f"{item.sku} has no counter in Redis: preheat its sale.")

    def give_back(self, order_id: UUID, names: Iterable[str]) -> bool:
        """Return the reserved units of an order to their counters. Idempotent.

        Args:
            order_id: id of an order that is not saved in Postgres, and cannot be saved later.
            names: counter names of its items, in the order of the items.

        Returns:
            Whether the order had a reservation; also False if Redis did not answer.
        """
        return self._end(order_id, names, "back")

    def confirm_reservation(self, order_id: UUID, names: Iterable[str]) -> bool:
        """Delete the reservation of an order that is committed. Arguments and result are those of `give_back`."""
        return self._end(order_id, names, "sold")

    def _end(self, order_id: UUID, names: Iterable[str], outcome: str) -> bool:
        names = tuple(names)
        try:
            return bool(self._end_reservation(_keys(names), [str(order_id), outcome]))
        except RedisError:
            logger.warning(
                "Redis did not answer: the reservation of order %s stays until the next order or reconciliation.",
                order_id,
            )
            self.unended.append((order_id, names, outcome))
            return False

    def end_again(self) -> None:
        """Try again to end the reservations in `unended`, so that other orders need not wait for the reserved units."""
        for _ in range(len(self.unended)):
            try:
                order_id, names, outcome = end = self.unended.popleft()
            except IndexError:  # Another thread has taken the last entry.
                return
            try:
                self._end_reservation(_keys(names), [str(order_id), outcome])
            except RedisError:
                self.unended.appendleft(end)
                return

    def skus(self) -> list[str]:
        """Return the skus that have a counter, whole or segmented."""
        prefix = counter_key("")
        names = {text(key)[len(prefix) :] for key in self.client.scan_iter(match=f"{prefix}*", count=1000)}
        return sorted({name.partition("\0")[0] for name in names})

    def counted(self, skus: Sequence[str]) -> list[str]:
        """Return which of these skus have a counter, even a counter at 0."""
        with self.client.pipeline(transaction=False) as pipe:
            for sku in skus:
                pipe.exists(counter_key(sku))
            return [sku for sku, exists in zip(skus, pipe.execute(), strict=True) if exists]

    def left(self, skus: Sequence[str]) -> Mapping[str, int | None]:
        """Return the units in the counter of each sku; None for a sku without a counter."""
        if not skus:
            return {}
        counts = self.client.mget([counter_key(sku) for sku in skus])
        return {sku: None if count is None else int(count) for sku, count in zip(skus, counts, strict=True)}

    def reserved(self) -> Mapping[str, int]:
        """Return the units that are reserved, by counter name."""
        return {text(name): int(units) for name, units in self.client.hgetall(RESERVED_UNITS).items()}

    def recount(self) -> list[tuple[str, int, int]]:
        """Correct the stored sums of reserved units by adding up all reservations.

        Nothing is changed if a reservation cannot be read, or if there are more than `RECOUNTED`.

        Returns:
            (sku, units before, units after) for each sum that was wrong.
        """
        wrong = self._recount([RESERVATIONS, RESERVED_UNITS], [RECOUNTED])
        return sorted((text(name).partition("\0")[0], int(before), int(after)) for name, before, after in wrong)

    def order_ids(self) -> set[UUID]:
        """Return the ids of the orders that have a reservation. Keys that are not ids are skipped."""
        found = set()
        for order_id in self.client.hkeys(RESERVATIONS):
            with suppress(ValueError):
                found.add(UUID(text(order_id)))
        return found

    def reservations(self) -> list[Reservation]:
        """Return every reservation, the oldest first. An unreadable reservation is logged and skipped."""
        found = []
        for order_id, encoded in self.client.hgetall(RESERVATIONS).items():
            try:
                found.append(_reservation(order_id, encoded))
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
                logger.exception("The reservation of order %r in Redis cannot be read: %r", order_id, encoded)
        return sorted(found, key=lambda reservation: reservation.at)


def _reservation(order_id: bytes | str, encoded: bytes | str) -> Reservation:
    fields = msgspec.json.decode(encoded)
    # Reject fractions of a unit: the Lua scripts cannot read such a reservation, and Python must reject the same
    # reservations as Lua.
    items = [(str(name), _whole(units)) for name, units, *_ in fields["items"]]
    entry, buyer = fields.get("entry", ""), fields.get("buyer", "")
    if not (ENTRY.fullmatch(entry) and BUYER.fullmatch(buyer)):
        raise ValueError(f"Invalid entry {entry!r} or buyer {buyer!r}.")
    return Reservation(UUID(text(order_id)), items, float(fields["at"]), entry, buyer)


def _whole(units: object) -> int:
    if isinstance(units, bool) or not isinstance(units, (int, float)) or units != int(units):
        raise ValueError(f"{units!r} is not a whole number of units.")
    return int(units)


def _keys(names: Iterable[str]) -> list[str]:
    return [RESERVATIONS, RESERVED_UNITS, *map(counter_key, names)]


def text(value: bytes | str) -> str:
    """Return a value from Redis as text, whether the client returns bytes or text."""
    return value.decode() if isinstance(value, bytes) else value
