"""How load tests mark their sales, so that the storefront does not list them."""

from __future__ import annotations

from django.db.models import QuerySet

from shop.models import Sale

SLUG_PREFIX = "load-test-"
"""Prefix of the slug of each sale that a load test makes. The sale has a page, but no page of the shop lists it."""


def listed(sales: QuerySet[Sale]) -> QuerySet[Sale]:
    """Return the sales that the storefront may list: all except the sales of load tests."""
    return sales.exclude(slug__startswith=SLUG_PREFIX)
