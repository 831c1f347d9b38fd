"""`retries-reported-as-sold-out`: compare and set, and who loses too often is told that all is sold."""

from __future__ import annotations

from django.db import transaction

from inventory.draft import Draft, Line, Placement, Save, save_one
from inventory.errors import SoldOut
from inventory.strategies.optimistic import Overtaken
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

    def _place(self, order: Draft, save: Save) -> Placement:
        for _ in range(ATTEMPTS):
            try:
                with transaction.atomic(durable=True):
                    for line in order.lines:
                        compare_and_set(line)
                    save_one(order, save)
            except Overtaken:
                continue
            return Placement.COMMITTED
        raise SoldOut(order.lines[0].sku, wanted=order.lines[0].quantity, left=0)


def compare_and_set(line: Line) -> None:
    """Subtract a line if the stock is still what was read. A figure that has come back to the same is the same stock.

    Raises:
        SoldOut: the stock that was read does not cover it.
        Overtaken: it has changed since.
    """
    left = RungStock.objects.get(sku=line.sku).on_hand
    if left < line.quantity:
        raise SoldOut(line.sku, wanted=line.quantity, left=left)
    if not RungStock.objects.filter(sku=line.sku, on_hand=left).update(on_hand=left - line.quantity):
        raise Overtaken
