"""The queue of accepted orders in Redis: a stream to which one script appends, and from which workers read.

An entry, and the reservation of its units, stays until a worker has finished the order. If a worker dies, another
worker takes over its unfinished entries. So a worker may save an order that is already saved: saving must be
idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
from redis import Redis, RedisError
from redis.exceptions import ResponseError

from inventory.counters.scripts import script
from inventory.counters.whole import RESERVATIONS, RESERVED_UNITS, Reservation, counter_key, text
from inventory.errors import Duplicate, OverLimit, SoldOut, StockNotLoaded, StockUnavailable
from inventory.queue.bought import BoughtUnits, bought_key
from inventory.queue.dead_letters import DeadLetters
from inventory.queue.entries import (
    QueueEntry,
    buyer_text,
    new_reservation,
    order_from_reservation,
    parse_buyer,
    parse_entry,
    reservation_fields,
)
from inventory.requests import OrderRequest, QueuedOrder

logger = logging.getLogger(__name__)

BEING_SAVED = script("being_saved")
ENQUEUE = script("enqueue")
FINISH_REFUSED = script("finish_refused")
FINISH_SAVED = script("finish_saved")
FREE_KEY = script("free_key")
REMOVE_WORKERS = script("remove_workers")
STREAM = "{stock}:queue"
GROUP = "workers"
NOBODY = "nobody"
"""Name of a consumer that no worker uses. It owns the entries that workers have handed back."""
LAST_QUEUED = "{stock}:queue:last"
LAST_FINISHED = "{stock}:queue:done"
WOKEN = "{stock}:queue:woken"
FINISHED_AT_ONCE = 100
"""Maximum number of saved orders that one script takes off the queue. The script blocks Redis for about a
millisecond."""
KEPT = 86400
"""Seconds for which Redis keeps an idempotency key, and the outcome of an order that was not saved."""


def idempotency_key(customer: int, key: str) -> str:
    """Return the Redis key that maps a customer's idempotency key to the id of the order."""
    return f"{{stock}}:key:{customer}:{key}"


def outcome_key(order_id: UUID) -> str:
    """Return the Redis key of the outcome of an order that left the queue without being saved."""
    return f"{{stock}}:outcome:{order_id}"


class Queue:
    """The queue in one Redis server.

    Args:
        client: a redis-py client that returns text or bytes.
        forgotten: seconds after which a wake-up is sent again, if no worker has followed it.
        dead: a worker counts as dead after this number of seconds without a command. Other workers take over its
            entries.
    """

    def __init__(self, client: Redis, *, forgotten: float = 10.0, dead: float = 10.0) -> None:
        self.client: Any = client
        self.forgotten = forgotten
        self.dead = dead
        self.bought = BoughtUnits(client)
        self.dead_letters = DeadLetters(client)
        self._being_saved: Any = client.register_script(BEING_SAVED)
        self._enqueue: Any = client.register_script(ENQUEUE)
        self._finish_refused: Any = client.register_script(FINISH_REFUSED)
        self._finish_saved: Any = client.register_script(FINISH_SAVED)
        self._free_key: Any = client.register_script(FREE_KEY)
        self._remove_workers: Any = client.register_script(REMOVE_WORKERS)

    def __len__(self) -> int:
        return int(self.client.xlen(STREAM))

    def age(self) -> float:
        """Return for how many seconds the oldest entry has been queued, by the clock of Redis; 0 for an empty queue."""
        oldest = self.client.xrange(STREAM, count=1)
        if not oldest:
            return 0.0
        seconds, microseconds = self.client.time()
        queued_at = int(text(oldest[0][0]).partition("-")[0])
        return float(max(0.0, seconds + microseconds / 1e6 - queued_at / 1000))

    def enqueue(self, order: OrderRequest, trace: str = "") -> tuple[int, bool]:
        """Take the units of an order and append it to the queue, or do neither. Idempotent.

        Args:
            trace: the `traceparent` that the entry carries to the worker.

        Returns:
            Its place in the queue, from 1, and whether a worker has to be woken.

        Raises:
            SoldOut, OverLimit, Duplicate, StockNotLoaded: nothing was taken.
            StockUnavailable: Redis did not answer. The order may be on the queue; `find_by_key` returns it then.
        """
        places = [STREAM, idempotency_key(order.customer, order.key), LAST_QUEUED, LAST_FINISHED, WOKEN]
        keys = [RESERVATIONS, RESERVED_UNITS, *places, *_item_keys(order.skus)]
        try:
            reservation = msgspec.json.encode(new_reservation(order, trace))
            arguments = [str(order.id), reservation, round(self.forgotten), KEPT]
            answer, what, left = self._enqueue(keys, arguments)
        except RedisError as error:
            raise StockUnavailable(f"Redis did not answer: {error}") from error
        match text(answer):
            case "queued":
                return int(left), bool(what)
            case "duplicate":
                raise Duplicate(UUID(text(what)))
        item = order.items[int(what) - 1]
        match text(answer):
            case "sold out":
                raise SoldOut(item.sku, wanted=item.quantity, left=int(left))
            case "over limit":
                raise OverLimit(item.sku, limit=item.limit or 0, taken=int(left))
        raise StockNotLoaded(f"{item.sku} has no counter in Redis: preheat its sale.")

    def read(self, worker: str, count: int) -> list[QueueEntry]:
        """Return up to `count` entries for a worker.

        If there are entries that were handed back, or left by a dead worker, return these. Otherwise return new
        entries.
        """
        try:
            entries = self.client.xautoclaim(STREAM, GROUP, worker, round(self.dead * 1000), count=count)[1]
            if entries:
                logger.warning("Took over %d queued orders from a worker that did not finish them.", len(entries))
            else:
                found = self.client.xreadgroup(GROUP, worker, {STREAM: ">"}, count=count)
                entries = found[0][1] if found else []
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            self._create_group()
            return self.read(worker, count)
        return [parse_entry(number, fields) for number, fields in entries if fields]

    def _create_group(self) -> None:
        """Create the stream and its group of workers. Do nothing if another worker has just created the group."""
        try:
            self.client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            # Any other error, such as "out of memory", means that there is still no group to read from.
            if not str(error).startswith("BUSYGROUP"):
                raise

    def risks(self) -> list[str]:
        """Return reasons why this Redis may lose accepted orders: it evicts keys, or does not log writes to disk."""
        memory, persistence = self.client.info("memory"), self.client.info("persistence")
        risks = []
        if (policy := memory.get("maxmemory_policy", "noeviction")) != "noeviction":
            risks.append(f"maxmemory-policy is {policy}: when Redis is full, it deletes orders that were accepted")
        if not persistence.get("aof_enabled", 1):
            risks.append("appendonly is no: a restart of Redis loses orders that were accepted")
        return risks

    def hand_back(self, worker: str, entries: Sequence[QueueEntry]) -> None:
        """Return to the queue the entries that a worker cannot save now.

        The next worker to read gets them immediately.
        """
        numbers = [entry.entry_id for entry in entries]
        self.client.xclaim(STREAM, GROUP, NOBODY, 0, numbers, idle=round(self.dead * 1000), justid=True)
        self.remove_worker(worker)

    def clear_wake_up(self) -> None:
        """Let the next order wake a worker again. The caller must read the queue once more afterwards.

        An order that was queued just before this call has woken no worker. Without the second read, it would stay on
        the queue until the next order wakes a worker.
        """
        self.client.delete(WOKEN)

    def remove_worker(self, worker: str) -> None:
        """Remove this worker and all dead workers from the group. Workers with unfinished entries stay in the group."""
        self._remove_workers([STREAM], [GROUP, worker, round(self.dead * 1000)])

    def finish_saved(self, entries: Iterable[QueueEntry]) -> None:
        """Take saved orders off the queue, and end their reservations."""
        keys, saved = [RESERVATIONS, RESERVED_UNITS, STREAM, LAST_FINISHED], list(entries)
        for start in range(0, len(saved), FINISHED_AT_ONCE):
            some = saved[start : start + FINISHED_AT_ONCE]
            ids = [each for entry in some for each in (str(entry.order_id), entry.entry_id)]
            for entry, result in zip(some, self._finish_saved(keys, [GROUP, *ids]), strict=True):
                _warn_if_not_reserved(entry, result)

    def finish_refused(self, entry: QueueEntry, *, existing: UUID | None = None, reason: str = "") -> bool:
        """Take a refused order off the queue, and return its units to the counters.

        Args:
            existing: the id of the order that was saved instead, and has the idempotency key.
            reason: why the order is rejected, if no other order was saved instead. The order then keeps its idempotency
                key: a retry gets this reason, and buys nothing.

        Returns:
            Whether the order still had its reservation. If not, no units are returned.
        """
        outcome = str(existing or "")
        if existing is None and (order := entry.order) is not None:
            fields = {"sale": order.sale, "customer": order.customer, "hash": order.body_hash, "reason": reason}
            outcome = msgspec.json.encode(fields).decode()
        result = self._take_off(entry, outcome)
        _warn_if_not_reserved(entry, result)
        return bool(result == 1)

    def finish_dead_letter(self, entry: QueueEntry, reason: str) -> None:
        """Remove from the queue an order that cannot be saved, and keep the order as a dead letter."""
        self.dead_letters.add(entry, reason)
        self.finish_refused(entry, reason=reason)

    def _take_off(self, entry: QueueEntry, outcome: str) -> int:
        order = entry.order
        if order is None:
            # The keys of an unreadable order are unknown, so remove only the entry. If the order has a reservation, the
            # reservation stays.
            self.client.xack(STREAM, GROUP, entry.entry_id)
            self.client.xdel(STREAM, entry.entry_id)
            return 0
        places = [STREAM, idempotency_key(order.customer, order.key), LAST_FINISHED, outcome_key(order.id)]
        keys = [RESERVATIONS, RESERVED_UNITS, *places, *_item_keys(order.skus)]
        return int(self._finish_refused(keys, [str(order.id), entry.entry_id, GROUP, outcome, KEPT]))

    def recover(self, entry: QueueEntry) -> QueueEntry:
        """Restore the order of an unreadable entry from its reservation. Without a reservation, `order` stays None."""
        order_id = entry.order_id or self._order_of(entry.entry_id)
        if order_id is None:
            return entry
        return replace(entry, order_id=order_id, order=order_from_reservation(order_id, self._reservation(order_id)))

    def _order_of(self, entry_id: str) -> UUID | None:
        for order_id, encoded in self.client.hgetall(RESERVATIONS).items():
            if reservation_fields(encoded).get("entry") == entry_id:
                with suppress(ValueError):  # The hash key is not an order id.
                    return UUID(text(order_id))
        return None

    def _reservation(self, order_id: UUID) -> dict[str, Any]:
        encoded = self.client.hget(RESERVATIONS, str(order_id))
        return {} if encoded is None else reservation_fields(encoded)

    def being_saved(self, sku: str) -> tuple[int, Mapping[UUID, int]]:
        """Return all reserved units of a sku, and those of each order that a worker has read and not finished.

        Only such an order can be in both states at once: saved in Postgres, and its units still reserved in Redis.
        Redis reads all values at one moment.
        """
        reserved, *orders = self._being_saved([RESERVATIONS, RESERVED_UNITS, STREAM], [sku, GROUP])
        return int(reserved), {UUID(text(order_id)): int(units) for order_id, units in orders}

    def which_of(self, entry_ids: Iterable[str]) -> set[str]:
        """Return which of these entries are still on the queue. One round trip checks a thousand entries."""
        ids = list(entry_ids)
        found: set[str] = set()
        for start in range(0, len(ids), 1000):
            some = ids[start : start + 1000]
            with self.client.pipeline(transaction=False) as pipe:
                for entry_id in some:
                    pipe.xrange(STREAM, entry_id, entry_id)
                found.update(entry_id for entry_id, entries in zip(some, pipe.execute(), strict=True) if entries)
        return found

    def has(self, entry_id: str) -> bool:
        """Return whether an entry is still on the queue."""
        return bool(self.client.xrange(STREAM, entry_id, entry_id))

    def find(self, order_id: UUID) -> QueuedOrder | None:
        """Return what Redis knows of a queued order; None if Redis does not know it."""
        reservation = self._reservation(order_id)
        # If the order leaves the queue between these two reads, Redis has its outcome, or Postgres has the order.
        if "entry" in reservation and (
            entries := self.client.xrange(STREAM, reservation["entry"], reservation["entry"])
        ):
            place = reservation.get("place")
            place = place - int(self.client.get(LAST_FINISHED) or 0) if isinstance(place, int) else 1
            order = parse_entry(*entries[0]).order or order_from_reservation(order_id, reservation)
            return QueuedOrder(order=order, place=max(1, place))
        outcome = self.client.get(outcome_key(order_id))
        if outcome is None:
            return None
        if not text(outcome).startswith("{"):
            return QueuedOrder(existing=UUID(text(outcome)))
        fields = msgspec.json.decode(outcome)
        return QueuedOrder(
            reason=fields["reason"], sale=fields["sale"], customer=fields["customer"], body_hash=fields["hash"]
        )

    def find_by_key(self, customer: int, key: str) -> QueuedOrder | None:
        """Return the order on the queue that has this idempotency key of a customer; None if there is none."""
        order_id = self.client.get(idempotency_key(customer, key))
        found = None if order_id is None else self.find(UUID(text(order_id)))
        return found if found is not None and found.order is not None else None

    def free_key(self, order: OrderRequest, lost: UUID) -> bool:
        """Free the idempotency key of a sold order that is missing in Postgres now, for example after a restore.

        Args:
            order: the new request with that key.
            lost: the id of the order that has the key.

        Returns:
            Whether the key was freed. It is not freed if the lost order is queued or was rejected.
        """
        keys = [RESERVATIONS, idempotency_key(order.customer, order.key), outcome_key(lost)]
        units = [item.quantity for item in order.items]
        return bool(
            self._free_key(
                [*keys, *map(bought_key, order.skus)], [str(lost), buyer_text(order.sale, order.customer), *units]
            )
        )

    def sales_of(self, reservations: Iterable[Reservation], skus: Collection[str]) -> set[int]:
        """Return the sales that have orders on the queue for any of these skus.

        Args:
            reservations: all reservations, as `Counters.reservations` returns them.
        """
        sales: set[int] = set()
        for reservation in reservations:
            names = {name for name, _ in reservation.items}
            if reservation.buyer and reservation.entry and not names.isdisjoint(skus):
                sale, _ = parse_buyer(reservation.buyer)
                if sale not in sales and self.has(reservation.entry):
                    sales.add(sale)
        return sales


def _warn_if_not_reserved(entry: QueueEntry, result: int) -> None:
    if result == -1:
        logger.warning("Queued order %s had no reservation: reconciliation corrects its counters.", entry.order_id)


def _item_keys(skus: Iterable[str]) -> list[str]:
    return [key for sku in skus for key in (counter_key(sku), bought_key(sku))]
