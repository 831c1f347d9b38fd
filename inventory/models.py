"""The tables of stock in Postgres, which every strategy writes and the audit reads."""

from django.conf import settings
from django.db import models
from django.db.models import F, Q


class StockItem(models.Model):
    """The stock of one sku. A write of `on_hand` holds the row lock, or is guarded: `on_hand - n WHERE on_hand >= n`.

    `on_hand` counts only the unsplit stock. A strategy may move units to segments and unit rows, the tables below;
    `stock.all_on_hand` adds up all of them.
    """

    sku = models.CharField(max_length=64, primary_key=True)
    received = models.BigIntegerField(default=0, help_text="Units received, corrections included.")
    on_hand = models.BigIntegerField(default=0, help_text="Units that can still be sold.")
    version = models.BigIntegerField(default=0, editable=False, help_text="Incremented by every write of the units.")
    fence = models.BigIntegerField(
        default=0, editable=False, help_text="Fence of the last lock grant that wrote the row."
    )
    fenced_by = models.CharField(
        max_length=40,
        default="",
        editable=False,
        help_text="The kind of lock that `fence` comes from.",
    )
    split_by = models.CharField(
        max_length=40,
        default="",
        editable=False,
        help_text="The strategy that has split the stock for a sale; only it may split it again. Empty: not split.",
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
    """A part of a sku's stock with its own row and lock, so that several orders of one sku can run at the same time."""

    item = models.ForeignKey(
        StockItem, on_delete=models.CASCADE, db_column="sku", related_name="segments", db_index=False
    )
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
    """One unit of a sku as a row of its own. Selling the unit deletes the row."""

    item = models.ForeignKey(StockItem, on_delete=models.CASCADE, db_column="sku", related_name="units")

    def __str__(self) -> str:
        return f"{self.item_id} #{self.pk}"


class StockMovement(models.Model):
    """A change of a sku's units received, with the user and the reason. `received` is the sum of a sku's movements."""

    class Kind(models.TextChoices):
        DELIVERED = "delivered"
        CORRECTED = "corrected"
        RETURNED = "returned"

    item = models.ForeignKey(StockItem, on_delete=models.PROTECT, db_column="sku", related_name="movements")
    kind = models.CharField(max_length=20, choices=Kind)
    units = models.BigIntegerField(help_text="Units that came; negative for units that turned out to be missing.")
    who = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, help_text="Empty for a program."
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
