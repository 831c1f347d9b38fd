"""`lua-queue`: one script takes the stock and queues the order in Redis; workers save many orders together."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from django.db import DataError, Error, IntegrityError, connection, transaction
from psycopg.errors import NotNullViolation, UniqueViolation
from redis import RedisError

from inventory import bulk, observing, stock
from inventory.counters.whole import Counters, Reservation
from inventory.errors import Duplicate, InventoryError, SoldOut, StockElsewhere, StockNotLoaded, StockUnavailable
from inventory.queue.entries import QueueEntry
from inventory.queue.signals import worker_needed
from inventory.queue.stream import Queue
from inventory.requests import OrderRequest, Placement, QueuedOrder, Reject, ReturnedUnits, Save, Saved
from inventory.strategies.lua import Lua

logger = logging.getLogger(__name__)

BATCH = 500
"""Maximum number of orders that a worker saves together, in one statement or transaction."""


class LuaQueue(Lua):
    """Answer once the order is queued in Redis; a worker saves it in Postgres later.

    Guarantees: an accepted order is as durable as Redis' own log. Workers try to save it at least once, and it is sold
    at most once. If Postgres refuses an accepted order, it is rejected and its units go back.
    Costs: workers to run and to watch. Customers get "queued" first, and may be told "rejected" later.
    Choose it: for the highest peaks. One round trip to Redis accepts an order, and no customer waits for Postgres.

    Args:
        queue: returns the queue in Redis. Called at each use, so that nothing connects at import.
    """

    name = "lua-queue"
    queues = True

    def __init__(self, counters: Callable[[], Counters], queue: Callable[[], Queue]) -> None:
        super().__init__(counters)
        self.queue = queue

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with observing.queueing() as trace:
            place, wake_worker = self.queue().enqueue(order, trace)
        if wake_worker:
            worker_needed.send_robust(sender=type(self))
        return Placement(place)

    def _verify_sold_out(self, refused: SoldOut, saved: Saved) -> None:
        try:
            super()._verify_sold_out(refused, saved)
        except StockNotLoaded:
            # A counter may be right although more units are on hand, because queued orders may have reserved them.
            # Check twice: if a worker ends orders between the reads of Postgres and Redis, the counter looks wrong
            # once.
            if all(self._unreserved(refused.sku, saved) > refused.left for _ in range(2)):
                raise

    def _unreserved(self, sku: str, saved: Saved) -> int:
        """Return the units on hand that no order has reserved.

        The result is too high if a worker saves and ends orders between the reads of Postgres and Redis.

        A saved order keeps its reservation until its worker ends the reservation. The units of such an order are no
        longer on hand, so they are not subtracted a second time.
        """
        with transaction.atomic(durable=True):
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            on_hand = stock.on_hand(sku)  # The first query takes the snapshot.
            # Read Redis after the snapshot of Postgres, so that Redis lists each order that is saved and still
            # reserved. If Redis were read first, its list would not contain an order that a worker reads and saves
            # between the two reads.
            try:
                reserved, being_saved = self.queue().being_saved(sku)
            except RedisError as error:
                raise StockUnavailable(f"Redis did not answer: {error}") from error
            return on_hand - reserved + sum(being_saved[order_id] for order_id in saved(being_saved))

    def work(self, save: Save, reject: Reject, saved: Saved, *, shift: float = math.inf) -> int:
        """Save queued orders until the queue is empty. Several workers may run at the same time.

        Args:
            reject: saves as rejected the queued orders that get no units.
            shift: seconds after which the worker returns even if orders are still queued, so that other tasks get their
                turn. It asks for another worker first.

        Returns:
            The number of entries taken off the queue.

        Raises:
            django.db.Error: Postgres did not answer, or cannot save any order now. The orders stay on the queue.
            RedisError: Redis did not answer.
        """
        queue, worker, total, looked_twice = self.queue(), uuid.uuid4().hex, 0, False
        ends = time.monotonic() + shift
        while True:
            entries = queue.read(worker, BATCH)
            if entries:
                try:
                    self._save(entries, save, reject, saved)
                except (Error, RedisError):
                    with suppress(RedisError):
                        queue.hand_back(worker, entries)
                    raise
                total, looked_twice = total + len(entries), False
                if time.monotonic() >= ends:
                    queue.remove_worker(worker)
                    worker_needed.send_robust(sender=type(self))
                    return total
            elif looked_twice:
                queue.remove_worker(worker)
                return total
            else:
                queue.clear_wake_up()
                looked_twice = True

    def _save(self, entries: Sequence[QueueEntry], save: Save, reject: Reject, saved: Saved) -> None:
        """Save all orders together; if that fails, one by one. An order that fails alone becomes a dead letter."""
        orders = [entry.order for entry in entries if entry.order]
        try:
            if len(orders) < len(entries):
                raise ValueError("An entry cannot be read.")
            with observing.saving({entry.order.id: entry.trace for entry in entries if entry.order}):
                # Skip orders that a worker committed before it died. Saved again, they could be refused as sold out.
                sold = saved([order.id for order in orders])
                refusals = bulk.commit([order for order in orders if order.id not in sold], save, reject)
            refusals.update({order_id: Duplicate(order_id) for order_id in sold})
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
        if entry.order is None:
            entry = self.queue().recover(entry)
        logger.error(
            "Queued order %s cannot be saved and is kept as a dead letter: %s",
            entry.order_id or entry.entry_id,
            reason,
            extra={"trace": entry.trace_id},
        )
        if entry.order is not None:
            _reject_if_possible(entry.order, reason, reject)
        self.queue().finish_dead_letter(entry, reason)
        for observer in observing.observers():
            observer.dead_letter()

    def end_lost(self, reservation: Reservation, reject: Reject) -> bool:
        """Reject an order that has a reservation but no entry on the queue. No worker would ever save it.

        Returns:
            Whether the order still had its reservation. If not, no units are returned.
        """
        reason = "The queue has lost this order before it was saved."
        entry = self.queue().recover(QueueEntry(reservation.entry, reservation.order_id, None, ""))
        if entry.order is None:
            return self.counters().give_back(reservation.order_id, [name for name, _ in reservation.items])
        _reject_if_possible(entry.order, reason, reject)
        return self.queue().finish_refused(entry, reason=reason)

    def _take_off(self, entries: Sequence[QueueEntry], refusals: dict[uuid.UUID, InventoryError], saved: Saved) -> None:
        # A refused order may have been saved by another worker, which then died or was paused. So check again.
        sold = saved(refusals) if refusals else set()
        queue = self.queue()
        finished = [entry for entry in entries if entry.order_id not in refusals or entry.order_id in sold]
        queue.finish_saved(finished)
        ages = [entry.age(time.time()) for entry in finished]
        for observer in observing.observers():
            observer.left_queue(ages=ages, refused=len(entries) - len(finished))
        wrong_counters: set[str] = set()
        for entry in entries:
            if entry.order_id is None or entry.order_id in sold:
                continue
            match refusals.get(entry.order_id):
                case None:
                    continue
                # If `existing` is this order, a worker has saved it as rejected before: see the next case.
                case Duplicate(existing=existing, same=True) if existing != entry.order_id:
                    queue.finish_refused(entry, existing=existing)
                case refusal:
                    queue.finish_refused(entry, reason=str(refusal))
                    if isinstance(refusal, SoldOut | StockElsewhere):
                        wrong_counters.add(refusal.sku)
        if wrong_counters:
            super().refresh(sorted(wrong_counters), saved)

    def hold(self, skus: Sequence[str]) -> None:
        super().unload(skus)  # Keep the units bought per customer: limits apply after the pause, too.

    def unload(self, skus: Sequence[str]) -> None:
        super().unload(skus)
        self.queue().bought.forget(skus)

    def refresh(self, skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
        """Do nothing: `lua` refreshes the counters, which both strategies share."""
        return {}

    def units_returned(self, returned: Sequence[ReturnedUnits], saved: Saved) -> None:
        self.queue().bought.subtract_returned(returned)

    def queued_order(self, customer: int, key: str) -> QueuedOrder | None:
        try:
            return self.queue().find_by_key(customer, key)
        except RedisError as error:
            raise StockUnavailable(f"Redis did not answer: {error}") from error


def _reject_if_possible(order: OrderRequest, reason: str, reject: Reject) -> None:
    """Write an order as rejected. If this order cannot be written, log it: one order must not stop the others.

    Raises:
        django.db.Error: Postgres did not answer, or cannot save any order now. The next worker tries again.
    """
    try:
        with transaction.atomic():
            reject({order: reason})
    except Exception as error:
        if _would_fail_for_any(error):
            raise
        logger.exception("Order %s cannot be written as rejected. Redis keeps its outcome for a day.", order.id)


def _would_fail_for_any(error: Exception) -> bool:
    """Return whether any order would fail like this: Postgres is away, read-only, or lacks tables or rights.

    An error about a value is caused by the order itself, with two exceptions. Every field was checked when the entry
    was read, so a NOT NULL violation means that the table has a column unknown to this version of the shop. `save`
    checks for duplicates, so a unique violation means that a sequence is behind, for example after a failover to a
    logical replica.
    """
    not_its_own = isinstance(error.__cause__, (NotNullViolation, UniqueViolation))
    return isinstance(error, Error) and (not_its_own or not isinstance(error, (DataError, IntegrityError)))
