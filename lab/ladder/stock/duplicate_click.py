"""`duplicate-click`: stock and order in one guarded transaction, and nobody asks whether it was placed already."""

from __future__ import annotations

from django.db import transaction

from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, take


class DuplicateClick(StockRung):
    """Flawed: every unit is accounted for, and the customer has bought twice.

    The schedule: the answer to A's order is lost, or he clicks again; the same request comes a second time, and there
    is a second order. He knows of one of them and cancels it: the stock was taken twice and comes back once, and a
    unit stays with an order that nobody wants.
    Fixed by an idempotency key that is unique with the order, written in the same transaction: `guarded-update`, with
    the shop's own save. Source: common practice.
    """

    slug = "duplicate-click"
    title = "Duplicate click"
    flaw = "The same request, sent twice, is two orders."
    breaks = "once"
    breaks_under = "second click"
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "guarded-update"
    source = "common practice"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        with transaction.atomic(durable=True):
            for item in order.items:
                take(item)
            save_one(order, save)
        return Placement.COMMITTED
