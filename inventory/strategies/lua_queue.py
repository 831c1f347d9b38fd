"""`lua-queue`: Redis takes and queues in one script; workers save many orders at once."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from django.db import DataError, Error, IntegrityError, transaction
from django.dispatch import Signal
from psycopg.errors import NotNullViolation, UniqueViolation
from redis import RedisError

from inventory import bulk
from inventory.counters.whole import Counters, Note
from inventory.errors import Duplicate, InventoryError, SoldOut, StockElsewhere, StockUnavailable
from inventory.queue.stream import Queue, QueueEntry
from inventory.requests import OrderRequest, Placement, Reject, Returned, Save, Saved, Waiting
from inventory.strategies.lua import Lua

logger = logging.getLogger(__name__)

queued = Signal()
"""Sent when an order is queued and nobody is at work: somebody has to call `LuaQueue.work`."""

BATCH = 500
"""Orders in a transaction."""


class LuaQueue(Lua):
    """The buyer is answered when the order is in Redis, and its rows follow. Fast, and as durable as Redis' own log.

    What Redis admitted and Postgres refuses is rejected, and its units go back: Redis never decides alone.

    Args:
        queue: the queue in Redis; called when it is needed.
    """

    name = "lua-queue"
    queues = True

    def __init__(self, counters: Callable[[], Counters], queue: Callable[[], Queue]) -> None:
        super().__init__(counters)
        self.queue = queue

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with self.agreed():
            place, first = self.queue().put(order)
        if first:
            queued.send_robust(sender=type(self))
        return Placement(place)

    def work(self, save: Save, reject: Reject, saved: Saved, *, shift: float = math.inf) -> int:
        """Save what is queued, until nothing is. Several may work at the same time.

        Args:
            reject: writes the orders that are sold nothing after all.
            shift: seconds after which it ends where more is queued, so that others have their turn, and another
                worker is woken.

        Returns:
            How many requests were taken off the queue.

        Raises:
            django.db.Error: Postgres does not answer, or cannot save anything now; what is queued stays so.
            RedisError: Redis did not answer.
        """
        queue, worker, total, resting = self.queue(), uuid.uuid4().hex, 0, False
        ends = time.monotonic() + shift
        while True:
            entries = queue.read(worker, BATCH)
            if entries:
                try:
                    self._save(entries, save, reject, saved)
                except (Error, RedisError):
                    with suppress(RedisError):
                        queue.put_back(worker, entries)
                    raise
                total, resting = total + len(entries), False
                if time.monotonic() >= ends:
                    queue.leave(worker)
                    queued.send_robust(sender=type(self))
                    return total
            elif resting:
                queue.leave(worker)
                return total
            else:
                queue.rest()
                resting = True

    def _save(self, entries: Sequence[QueueEntry], save: Save, reject: Reject, saved: Saved) -> None:
        """Save requests in one transaction. One that makes it fail is set aside, and stops nobody."""
        requests = [entry.request for entry in entries if entry.request]
        try:
            if len(requests) < len(entries):
                raise ValueError("An entry cannot be read.")
            # What a worker that died has committed is sold, also where nothing is left to sell.
            orders = saved([request.id for request in requests])
            refusals = bulk.commit([request for request in requests if request.id not in orders], save, reject)
            refusals.update({order: Duplicate(order) for order in orders})
        except Exception as error:
            if _would_fail_for_any(error):
                raise
            if len(entries) > 1:
                for entry in entries:
                    self._save([entry], save, reject, saved)
            else:
                self._dead_letter(entries[0], f"{type(error).__name__}: {error}"[:200], reject)
            return
        self._take_off(entries, refusals, saved)

    def _dead_letter(self, entry: QueueEntry, reason: str, reject: Reject) -> None:
        if entry.request is None:
            entry = self.queue().promised(entry)
        logger.error("OrderRequest %s cannot be saved: %s", entry.id or entry.number, reason)
        if entry.request is not None:
            _reject_if_possible(entry.request, reason, reject)
        self.queue().dead_letter(entry, reason)

    def end(self, note: Note, reject: Reject) -> bool:
        """End a request whose entry is no longer on the queue: nobody would ever save it. It is rejected.

        Returns:
            Whether it was noted; its units, and the customer's, go back once.
        """
        reason = "The queue has lost this order before it was saved."
        entry = self.queue().promised(QueueEntry(note.entry, note.request, None, ""))
        if entry.request is None:
            return self.counters().give_back(note.request, [sku for sku, _ in note.items])
        _reject_if_possible(entry.request, reason, reject)
        return self.queue().back(entry, reason=reason)

    def _take_off(self, entries: Sequence[QueueEntry], refusals: dict[uuid.UUID, InventoryError], saved: Saved) -> None:
        # Refused here may be what another worker has sold: one that died after its commit, or was only paused.
        sold = saved(refusals) if refusals else set()
        queue = self.queue()
        queue.done(entry for entry in entries if entry.id not in refusals or entry.id in sold)
        distrusted: set[str] = set()
        for entry in entries:
            if entry.id is None or entry.id in sold:
                continue
            match refusals.get(entry.id):
                case None:
                    continue
                case Duplicate(existing=existing, same=True) if existing != entry.id:  # else it is rejected already
                    queue.back(entry, instead=existing)
                case refusal:
                    queue.back(entry, reason=str(refusal))
                    if isinstance(refusal, SoldOut | StockElsewhere):
                        distrusted.add(refusal.sku)
        if distrusted:
            super().refresh(sorted(distrusted), saved)

    def unload(self, skus: Sequence[str]) -> None:
        super().unload(skus)
        self.queue().forget(skus)

    def refresh(self, skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
        """Nothing: the counters are those of `lua`, which brings them up to date."""
        return {}

    def given_back(self, returned: Sequence[Returned], saved: Saved) -> None:
        self.queue().allow(returned)

    def waiting(self, customer: int, key: str) -> Waiting | None:
        try:
            return self.queue().under(customer, key)
        except RedisError as error:
            raise StockUnavailable(f"Redis did not answer: {error}") from error


def _reject_if_possible(request: OrderRequest, reason: str, reject: Reject) -> None:
    """Write that a request is rejected. Whatever is wrong with it may be wrong here too, and must stop nobody.

    Raises:
        django.db.Error: Postgres does not answer, or cannot save anything now: this is the next worker's.
    """
    try:
        with transaction.atomic():
            reject({request: reason})
    except Exception as error:
        if _would_fail_for_any(error):
            raise
        logger.exception(
            "OrderRequest %s cannot be written as rejected either; Redis remembers its outcome for a day.", request.id
        )


def _would_fail_for_any(error: Exception) -> bool:
    """Whether the request is not to blame: Postgres is away, read-only, or has not the tables or rights that it should.

    Only what Postgres says of the values is the request's own. Not so that one is missing, since who read the request
    has seen that all are there: there is a column that this version of the shop does not know. Nor that one is there
    already, for which Save looks: a sequence is behind, as after a failover to a logical replica.
    """
    not_its_own = isinstance(error.__cause__, (NotNullViolation, UniqueViolation))
    return isinstance(error, Error) and (not_its_own or not isinstance(error, (DataError, IntegrityError)))
