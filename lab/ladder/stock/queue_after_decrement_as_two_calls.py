"""Flawed way of selling: it decrements, then queues the order for a worker that saves it."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec
from django.db import connection, transaction

from inventory.requests import OrderRequest, Placement, RequestItem, Save
from lab.ladder.stock.redis_taken_then_the_process_dies import RedisTakenThenTheProcessDies
from lab.models import RungOrder


class QueueAfterDecrementAsTwoCalls(RedisTakenThenTheProcessDies):
    """Flawed: an order in the queue survives the death of its process, but the units are taken before it is queued.

    The schedule that breaks it: client A's script has taken the units, and A's process dies before it queues the order.
    This gap is shorter than on `redis-taken-then-the-process-dies`. So a loss is rarer, but just as hard to explain.

    Fixed by one script that takes the units and records whom they are for: `lua`. Source: common practice.
    """

    slug = "queue-after-decrement-as-two-calls"
    title = "Queue after the decrement, as two calls"
    flaw = "A crash between the decrement and the publish leaves a unit without an owner."
    breaks = "conserved"
    broken_by = "crash"
    breaks_under = "crash"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "lua"
    source = "common practice"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        self.take(order)
        self.redis.rpush(self.queue, msgspec.json.encode(order))
        self.work(save)
        return Placement.COMMITTED

    @property
    def queue(self) -> str:
        return f"lab:{{{self.slug}}}"

    def work(self, save: Save) -> None:
        """Save all orders of the queue in Postgres. In this rung, the client that queues an order is also the worker.

        One worker writes at a time. It removes an entry after the commit, and does not write an order that exists. So a
        worker that dies or is paused neither loses nor repeats an order: the flaw of this rung is not here.
        """
        while self.redis.llen(self.queue):
            with transaction.atomic(durable=True):
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [self.queue])
                if (entry := self.redis.lindex(self.queue, 0)) is None:
                    return
                order = request_of(entry)
                if not RungOrder.objects.filter(order=order.id).exists():
                    self.write(order, save)
            self.redis.lrem(self.queue, 1, entry)

    def copy(self, sku: str) -> int:
        queued = [request_of(entry) for entry in self.redis.lrange(self.queue, 0, -1)]
        written = set(
            RungOrder.objects.filter(order__in=[order.id for order in queued]).values_list("order", flat=True)
        )
        waiting = (item for order in queued if order.id not in written for item in order.items)
        return super().copy(sku) + sum(item.quantity for item in waiting if item.sku == sku)


def request_of(entry: bytes) -> OrderRequest:
    """Return the order request of a queue entry."""
    fields = msgspec.json.decode(entry)
    items = (
        RequestItem(item["sku"], item["quantity"], Decimal(item["price"]), item["limit"]) for item in fields["items"]
    )
    return OrderRequest(
        **fields
        | {
            "id": UUID(fields["id"]),
            "items": tuple(items),
            "created_at": datetime.fromisoformat(fields["created_at"]),
        }
    )
