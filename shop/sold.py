"""Queries that the inventory needs: which order requests were saved, and how many units each customer has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from django.db import connection

from inventory.requests import Buyer
from shop.models import Allowance

SAVED = "SELECT id FROM shop_order WHERE id = ANY(%s::uuid[]) AND state <> 'rejected'"


def taken(sku: str, sales: Collection[int]) -> Mapping[Buyer, int]:
    """Return how many units of a sku each customer has in pending and paid orders of these sales."""
    allowances = Allowance.objects.filter(sale__in=sales, sku=sku).values_list("sale", "customer", "taken")
    return {(sale, customer): units for sale, customer, units in allowances}


def saved(requests: Collection[UUID]) -> set[UUID]:
    """Return the ids of the requests whose order is in Postgres and was not rejected."""
    if not requests:
        return set()
    with connection.cursor() as cursor:
        # Pass one array: a statement takes at most 65,535 parameters, and a queue may have more orders.
        cursor.execute(SAVED, [list(requests)])
        return {order_id for (order_id,) in cursor.fetchall()}
