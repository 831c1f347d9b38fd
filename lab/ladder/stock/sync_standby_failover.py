"""Sound way of selling: the customer is told only when the standby also has the order."""

from __future__ import annotations

from django.db import connection, transaction

from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, take


class SyncStandbyFailover(StockRung):
    """Sound, as long as one of the two servers is left: the one that is promoted has every order that was confirmed.

    COMMIT returns when a standby in `synchronous_standby_names` has applied the transaction. If that setting is empty,
    COMMIT does not wait. If the standby is gone, each COMMIT waits until it is back. A customer whose connection is cut
    during that wait does not know whether they have bought: they send the request again, with the same idempotency key.

    Only this transaction waits for the standby. `on` instead of `remote_apply` is enough for a failover: the standby
    then has the commit on its disk, but a reader on the standby may not see it yet.
    """

    slug = "sync-standby-failover"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL synchronous_commit = remote_apply")
            for item in order.items:
                take(item)
            save_one(order, save)
        return Placement.COMMITTED
