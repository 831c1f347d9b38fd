"""The tables that the flawed rungs sell from. No constraint holds them: a rung has to be free to fail."""

from django.db import models

LONGEST_SKU = 64


class RungStock(models.Model):
    """The stock of a sku that a rung sells."""

    sku = models.CharField(max_length=LONGEST_SKU, primary_key=True)
    received = models.BigIntegerField()
    on_hand = models.BigIntegerField()

    def __str__(self) -> str:
        return self.sku


class RungOrder(models.Model):
    """So many units of a sku that a customer has ordered from a rung: a row for each line of the order."""

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
