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
    """So many units of a sku that a rung has sold."""

    order = models.UUIDField()
    sku = models.CharField(max_length=LONGEST_SKU, db_index=True)
    quantity = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.quantity} × {self.sku}"
