"""Flawed way of selling: the customer is told about the order before the standby has received it."""

from __future__ import annotations

from django.db import transaction

from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, take


class AsyncStandbyFailover(StockRung):
    """Flawed: a standby that is promoted knows only the commits that it had received by then.

    Check and subtraction are one statement, and the order is in the same transaction. On one server nothing breaks it.
    The flaw is asynchronous replication, the default of Postgres: COMMIT returns when the primary has the transaction
    on its disk. The schedule that breaks it: client A buys the last unit and is told so. The primary is lost before the
    standby has received the commit. The standby is promoted, and there the unit is still for sale. B buys it too, and A
    has no order. The stock of the new primary is consistent: only the answers that A and B got show the mistake.

    Fixed by a commit that also waits until the standby has the transaction: `sync-standby-failover`. Source: article
    002 (section 4.2), which describes this flaw for a lock on Redis.
    """

    slug = "async-standby-failover"
    title = "Asynchronous standby"
    flaw = "A failover forgets an order that the standby had not received yet, and its unit is sold again."
    breaks = "conserved"
    broken_by = "failover"
    breaks_under = "lost data"
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "sync-standby-failover"
    source = "002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            for item in order.items:
                take(item)
            save_one(order, save)
        return Placement.COMMITTED
