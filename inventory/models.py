"""The stock of each sku: the truth that every strategy writes and the audit reads."""

from django.conf import settings
from django.db import models
from django.db.models import F, Q


class StockItem(models.Model):
    """One sku. Every write of `on_hand` is relative and guarded; the constraint stands behind the guard.

    What is on hand of a sku is `on_hand` here, and what its segments and unit rows have: see `stock.all_on_hand`.
    """

    sku = models.CharField(max_length=64, primary_key=True)
    received = models.BigIntegerField(default=0, help_text="Units ever delivered, corrections included.")
    on_hand = models.BigIntegerField(default=0, help_text="Units that can still be sold.")
    version = models.BigIntegerField(default=0, editable=False, help_text="Grows with every write of the row.")
    fence = models.BigIntegerField(default=0, editable=False, help_text="The last lock grant that claimed the row.")
    fenced_by = models.CharField(
        max_length=40,
        default="",
        editable=False,
        help_text="Whose grants `fence` counts.",
    )
    split_by = models.CharField(
        max_length=40,
        default="",
        editable=False,
        help_text="The strategy that has split it for a sale, and alone may split it again; empty when none has.",
    )

    class Meta:
        ordering = ["sku"]
        constraints = [
            models.CheckConstraint(condition=Q(on_hand__gte=0), name="stock_on_hand_not_negative"),
            models.CheckConstraint(condition=Q(received__gte=F("on_hand")), name="stock_on_hand_at_most_received"),
        ]

    def __str__(self) -> str:
        return self.sku


class StockSegment(models.Model):
    """A part of a sku's stock, with a row and a lock of its own: buyers of one sku wait in several items."""

    item = models.ForeignKey(StockItem, on_delete=models.CASCADE, db_column="sku", related_name="segments")
    number = models.PositiveSmallIntegerField()
    on_hand = models.BigIntegerField()
    fence = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["item", "number"]
        constraints = [
            models.UniqueConstraint(fields=["item", "number"], name="segment_once_per_sku"),
            models.CheckConstraint(condition=Q(on_hand__gte=0), name="segment_on_hand_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.item_id} / {self.number}"


class StockUnit(models.Model):
    """One unit that can be sold. Selling it deletes the row."""

    item = models.ForeignKey(StockItem, on_delete=models.CASCADE, db_column="sku", related_name="units")

    def __str__(self) -> str:
        return f"{self.item_id} #{self.pk}"


class StockMovement(models.Model):
    """A change of stock that a person made, who and why. What was received of a sku is the sum of these."""

    class Kind(models.TextChoices):
        DELIVERED = "delivered"
        CORRECTED = "corrected"
        RETURNED = "returned"

    item = models.ForeignKey(StockItem, on_delete=models.PROTECT, db_column="sku", related_name="movements")
    kind = models.CharField(max_length=20, choices=Kind)
    units = models.BigIntegerField(help_text="Units that came; negative for units that turned out not to be there.")
    who = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, help_text="Nobody: a program."
    )
    why = models.CharField(max_length=200, blank=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-at", "-pk"]
        constraints = [
            models.CheckConstraint(condition=~Q(units=0), name="movement_moves_something"),
            models.CheckConstraint(
                condition=Q(units__gt=0) | Q(kind="corrected"), name="movement_only_corrections_take_away"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.units:+} {self.item_id}"
