"""Flawed way of selling: a customer whose compare-and-set fails three times is told "sold out"."""

from __future__ import annotations

from django.db import transaction

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, RequestItem, Save, save_one
from inventory.strategies.optimistic import VersionChanged
from lab.ladder.stock.rung import StockRung
from lab.models import RungStock

ATTEMPTS = 3


class RetriesReportedAsSoldOut(StockRung):
    """Flawed: it answers "sold out" when other orders were only faster. The customer believes it and gives up.

    No unit is sold twice: each write requires that the stock is still the figure that was read. The schedule that
    breaks it: before each of client B's three writes another customer, A, C and then D, buys a unit. B's attempts are
    used up, and B is told "sold out" with units on hand.

    Fixed by an answer that says "try again": `optimistic`. Source: article 002 (section 3.1), which warns of the many
    writes that fail.
    """

    slug = "retries-reported-as-sold-out"
    title = "Retries used up, reported as sold out"
    flaw = "A customer who was only overtaken is told that nothing is left."
    breaks = "no false refusal"
    clients = 4
    preemptions = 3
    survives = frozenset({"expiry", "pause", "crash"})
    fixed_by = "optimistic"
    source = "002"

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        for _ in range(ATTEMPTS):
            try:
                with transaction.atomic(durable=True):
                    for item in order.items:
                        compare_and_set(item)
                    save_one(order, save)
            except VersionChanged:
                continue
            return Placement.COMMITTED
        raise SoldOut(order.items[0].sku, wanted=order.items[0].quantity, left=0)


def compare_and_set(item: RequestItem) -> None:
    """Subtract an item if the stock has not changed since it was read.

    Raises:
        SoldOut: the stock that was read does not cover the item.
        VersionChanged: another order has changed the stock after the read.
    """
    left = RungStock.objects.get(sku=item.sku).on_hand
    if left < item.quantity:
        raise SoldOut(item.sku, wanted=item.quantity, left=left)
    if not RungStock.objects.filter(sku=item.sku, on_hand=left).update(on_hand=left - item.quantity):
        raise VersionChanged
