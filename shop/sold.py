"""What the inventory asks the shop: which requests were sold, and how many units each customer has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from inventory.requests import Buyer
from shop.models import Allowance, Order


def taken(sku: str, sales: Collection[int]) -> Mapping[Buyer, int]:
    """Return how many units of a sku each customer of these sales holds, in orders that are pending or paid."""
    allowances = Allowance.objects.filter(sale__in=sales, sku=sku).values_list("sale", "customer", "taken")
    return {(sale, customer): units for sale, customer, units in allowances}


def saved(requests: Collection[UUID]) -> set[UUID]:
    """Return which of these requests were sold at some time: they have an order, and it was not rejected."""
    if not requests:
        return set()
    return set(Order.objects.filter(pk__in=requests).exclude(state=Order.State.REJECTED).values_list("pk", flat=True))
