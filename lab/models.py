"""Tables from which the rungs of the lab sell. No constraint guards the stock, so that a flaw can show."""

from django.db import models

LONGEST_SKU = 64


class RungStock(models.Model):
    """The stock of a sku in the lab."""

    sku = models.CharField(max_length=LONGEST_SKU, primary_key=True)
    received = models.BigIntegerField()
    on_hand = models.BigIntegerField()

    def __str__(self) -> str:
        return self.sku


class RungOrder(models.Model):
    """One item of an order that a customer has placed through a strategy of the lab."""

    class State(models.TextChoices):
        PLACED = "placed"
        CANCELLED = "cancelled"

    order = models.UUIDField(db_index=True)
    customer = models.BigIntegerField()
    key = models.CharField(max_length=128, help_text="The idempotency key. Nothing makes it unique.")
    sku = models.CharField(max_length=LONGEST_SKU, db_index=True)
    quantity = models.PositiveIntegerField()
    state = models.CharField(max_length=9, choices=State.choices, default=State.PLACED)
    counted = models.BooleanField(
        default=False, help_text="Its units were never subtracted from the stock's row: they are counted here."
    )

    def __str__(self) -> str:
        return f"{self.quantity} × {self.sku}"
