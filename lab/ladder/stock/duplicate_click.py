"""Flawed way of selling: each request becomes an order, even if the same request was already saved."""

from __future__ import annotations

from django.db import transaction

from inventory.requests import OrderRequest, Placement, Save, save_one
from lab.ladder.stock.rung import StockRung, take


class DuplicateClick(StockRung):
    """Flawed: stock and orders agree, but one customer has bought twice.

    The schedule that breaks it: clients A and B send the same request of one customer. The answer to A is lost, or the
    customer clicks again, so B arrives and becomes a second order. The customer knows of one order and cancels it. The
    stock was taken twice and comes back once: one unit stays with an unwanted order.

    Fixed by a unique idempotency key that is written with the order in the same transaction: `guarded-update`, with the
    shop's own save. Source: common practice.
    """

    slug = "duplicate-click"
    title = "Duplicate click"
    flaw = "A request that is sent twice becomes two orders."
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
