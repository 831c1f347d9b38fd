"""`async-standby-failover`: the order is committed on the primary, and the standby learns of it after the customer."""

from __future__ import annotations

from django.db import transaction

from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, take


class AsyncStandbyFailover(StockRung):
    """Flawed: a standby that is promoted knows only the commits that had reached it by then.

    Check and subtraction are one statement, and the order is in the same transaction. On one server nothing breaks it.
    The flaw is asynchronous replication, which is Postgres' default: COMMIT returns when the primary has the
    transaction on its disk. The schedule that breaks it: A buys the last unit and is told so. The primary is lost
    before the standby has received the commit. The standby is promoted, and on it the unit is still for sale. B buys
    it too, and A has no order. The stock of the new primary is consistent: only the two customers can tell.

    Fixed by a commit that waits until the standby has it too: `sync-standby-failover`. Source: article 002 (section
    4.2), which tells this of a lock on Redis.
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
