"""The stock of each sku: the truth that every strategy writes and the audit reads."""

from django.db import models
from django.db.models import F, Q


class StockItem(models.Model):
    """One sku. Every write of `on_hand` is relative and guarded; the constraint stands behind the guard."""

    sku = models.CharField(max_length=64, primary_key=True)
    received = models.BigIntegerField(default=0, help_text="Units ever delivered, corrections included.")
    on_hand = models.BigIntegerField(default=0, help_text="Units that can still be sold.")
    version = models.BigIntegerField(default=0, editable=False, help_text="Grows with every write of the row.")
    fence = models.BigIntegerField(default=0, editable=False, help_text="The last lock grant that claimed the row.")

    class Meta:
        ordering = ["sku"]
        constraints = [
            models.CheckConstraint(condition=Q(on_hand__gte=0), name="stock_on_hand_not_negative"),
            models.CheckConstraint(condition=Q(received__gte=F("on_hand")), name="stock_on_hand_at_most_received"),
        ]

    def __str__(self) -> str:
        return self.sku
