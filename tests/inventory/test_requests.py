"""An invalid order request cannot be constructed, so strategies and `save` callbacks need not check it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from inventory.errors import OverLimit
from inventory.requests import OrderRequest, RequestItem, save_one
from tests.factories import new_request


def order_of(*items: tuple[str, int]) -> OrderRequest:
    """Return an order request with these items in the given order."""
    made = tuple(RequestItem(sku, quantity, Decimal("1.00")) for sku, quantity in items)
    return replace(new_request(("a", 1)), items=made)


@pytest.mark.parametrize(
    ("items", "error"),
    [
        *[([], "sorted by sku"), ([("b", 1), ("a", 1)], "sorted by sku"), ([("a", 1), ("a", 1)], "sorted by sku")],
        *[([("a", 1), ("b", quantity)], "at least 1") for quantity in (0, -1, -(2**63))],
    ],
)
def test_invalid_items_are_refused(items: list[tuple[str, int]], error: str) -> None:
    order_of(("B", 1), ("a", 1))  # Negative control: these items are sorted as Python sorts.
    with pytest.raises(ValueError, match=error):
        order_of(*items)


@pytest.mark.django_db
def test_save_one_raises_its_own_refusal() -> None:
    mine, other = new_request(("a", 1)), new_request(("a", 1))
    refusal = OverLimit("a", limit=1, taken=1)
    save_one(mine, lambda orders: {})
    save_one(mine, lambda orders: {other.id: refusal})
    with pytest.raises(OverLimit) as raised:
        save_one(mine, lambda orders: {mine.id: refusal})
    assert raised.value is refusal
