"""One counter per sku in Redis, and a reservation for each order that has taken units from it.

Redis admits an order; Postgres decides on it. While nothing is in progress, `counter + reserved = on hand`; `load`
restores that equation. Every key has the hash tag `{stock}`, so that one script may use the keys of several skus.
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

import orjson
from redis import Redis, RedisError

from inventory.counters.scripts import script
from inventory.errors import SoldOut, StockNotLoaded, StockReserved, StockUnavailable
from inventory.requests import OrderRequest

logger = logging.getLogger(__name__)

RESERVATIONS = "{stock}:reserved"
"""Hash of order id to reservation."""
RESERVED_UNITS = "{stock}:reserved:units"
"""Hash of counter name to the sum of its reservations."""
TAKE = script("take")
END_RESERVATION = script("end_reservation")
LOAD = script("load")
RECOUNT = script("recount")
RECOUNTED = 2000
"""Reservations that one script adds up. It takes 0.03 ms for each, and Redis answers nobody meanwhile."""
ENTRY = re.compile(r"(\d+-\d+)?")
BUYER = re.compile(r"(\d+:\d+)?")


def counter_key(name: str) -> str:
    """Return the key of a counter: the units that Redis may still admit.

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
        entry: the id of the order's entry in the queue; empty for an order that is saved at once.
        buyer: "sale:customer" of a queued order; empty for an order that is saved at once.
    """

    order_id: UUID
    items: Sequence[tuple[str, int]]
    at: float
    entry: str = ""
    buyer: str = ""


Unended = deque[tuple[UUID, tuple[str, ...], str]]
UNENDED = 10_000
"""Ends that a process remembers. Reconciliation makes up for those it forgets."""


class Counters:
    """The counters of one Redis.

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
        """Ends of reservations that Redis did not take. A strategy uses one for all orders of its process."""

    def load(self, sku: str, on_hand: int, committed: Collection[UUID], *, make: bool) -> int | None:
        """Set the counter of a sku to the units on hand minus the units reserved.

        Args:
            on_hand: units in Postgres. The caller holds the sku's row lock until this returns.
            committed: ids of orders that have a reservation and are saved already.
            make: create a missing counter; otherwise it is left alone.

        Returns:
            Units that were added to the counter, 0 for one that was created; None if there is no counter.
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
        """Take the units of every item of an order, or none, and reserve them. A repeated call takes nothing more.

        Raises:
            SoldOut, StockReserved, StockNotLoaded: nothing was taken.
            StockUnavailable: Redis did not answer. Units that it may have taken are given back; if that gets no answer
                either, the reservation stays until `end_again` or until the stock is reconciled.
        """
        reservation = orjson.dumps({"items": [(item.sku, item.quantity) for item in order.items]})
        try:
            answer, position, left = self._take(_keys(order.skus), [str(order.id), reservation])
        except RedisError as error:
            # A customer who tries again sends a new order, which would take the same units a second time.
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
        """Put back the units of an order that certainly was not saved. Idempotent.

        Args:
            names: counter names of its items, in the order of the items.

        Returns:
            Whether the order had a reservation; False as well if Redis did not answer.
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
        """End the reservations that Redis did not end when it was asked, so that nobody waits for their units."""
        for _ in range(len(self.unended)):
            try:
                order_id, names, outcome = end = self.unended.popleft()
            except IndexError:  # Another thread has ended the last one.
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
        """Return those skus that have a counter, whatever it holds."""
        with self.client.pipeline(transaction=False) as pipe:
            for sku in skus:
                pipe.exists(counter_key(sku))
            return [sku for sku, exists in zip(skus, pipe.execute(), strict=True) if exists]

    def left(self, skus: Sequence[str]) -> Mapping[str, int | None]:
        """Return the units of each sku that Redis may still admit; None where there is no counter."""
        if not skus:
            return {}
        counts = self.client.mget([counter_key(sku) for sku in skus])
        return {sku: None if count is None else int(count) for sku, count in zip(skus, counts, strict=True)}

    def reserved(self) -> Mapping[str, int]:
        """Return the units reserved by counter name."""
        return {text(name): int(units) for name, units in self.client.hgetall(RESERVED_UNITS).items()}

    def recount(self) -> list[tuple[str, int, int]]:
        """Set the units reserved to the sum of the reservations.

        Nothing is done while a reservation cannot be read, or while there are more than `RECOUNTED`.

        Returns:
            Sku, units before and units after, for each value that was wrong.
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
        """Return every reservation, the oldest first. One that cannot be read is logged and skipped."""
        found = []
        for order_id, encoded in self.client.hgetall(RESERVATIONS).items():
            try:
                found.append(_reservation(order_id, encoded))
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
                logger.exception("The reservation of order %r in Redis cannot be read: %r", order_id, encoded)
        return sorted(found, key=lambda reservation: reservation.at)


def _reservation(order_id: bytes | str, encoded: bytes | str) -> Reservation:
    fields = orjson.loads(encoded)
    # The scripts do not read a reservation with fractions of a unit, so it must not be read here either.
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
    """Decode a value from a client, whether or not the client decodes."""
    return value.decode() if isinstance(value, bytes) else value
