"""`retries-reported-as-sold-out`: compare and set, and who loses too often is told that all is sold."""

from __future__ import annotations

from django.db import transaction

from inventory.errors import SoldOut
from inventory.requests import OrderRequest, Placement, RequestItem, Save, save_one
from inventory.strategies.optimistic import VersionChanged
from lab.ladder.stock.rung import StockRung
from lab.models import RungStock

ATTEMPTS = 3


class RetriesReportedAsSoldOut(StockRung):
    """Flawed: "others were faster" and "nothing is left" are two answers, and a buyer comes back only after one.

    Nothing is sold twice: whoever writes has read the figure that he replaces. The schedule: before each of A's writes
    somebody else buys a unit; his tries are used up, and he is told that all is sold with units on hand.
    Fixed by an answer that says "try again": `optimistic`. Source: article 002 (section 3.1), which warns of the many
    writes that fail.
    """

    slug = "retries-reported-as-sold-out"
    title = "Retries used up, reported as sold out"
    flaw = "A buyer who was only overtaken is told that nothing is left."
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
    """Subtract a item if the stock is still what was read. A figure that has come back to the same is the same stock.

    Raises:
        SoldOut: the stock that was read does not cover it.
        VersionChanged: it has changed since.
    """
    left = RungStock.objects.get(sku=item.sku).on_hand
    if left < item.quantity:
        raise SoldOut(item.sku, wanted=item.quantity, left=left)
    if not RungStock.objects.filter(sku=item.sku, on_hand=left).update(on_hand=left - item.quantity):
        raise VersionChanged
