"""A request is valid, or it is not made: what strategies and Save rely on without looking."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from decimal import Decimal
from uuid import uuid4

import pytest

from inventory.errors import OverLimit
from inventory.requests import OrderRequest, RequestItem, save_one
from tests.factories import new_request


def request_of(*items: tuple[str, int]) -> OrderRequest:
    """A request of these items, in this order."""
    return OrderRequest(
        id=uuid4(),
        customer=1,
        sale=1,
        items=tuple(RequestItem(sku, quantity, Decimal("1.00")) for sku, quantity in items),
        key="key",
        body_hash="",
        created_at=datetime.now(tz=UTC),
    )


@pytest.mark.parametrize("items", [[("a", 1)], [("a", 1), ("b", 2)], [("B", 1), ("a", 1)]])
def test_items_in_the_order_of_their_skus_are_a_request(items: list[tuple[str, int]]) -> None:
    assert [(item.sku, item.quantity) for item in request_of(*items).items] == items


@pytest.mark.parametrize("items", [[], [("b", 1), ("a", 1)], [("a", 1), ("a", 1)], [("a", 1), ("b", 1), ("a", 1)]])
def test_no_items_unordered_items_and_a_sku_twice_are_not(items: list[tuple[str, int]]) -> None:
    with pytest.raises(ValueError, match="in the order of their skus, one a sku"):
        request_of(*items)


@pytest.mark.parametrize("quantity", [0, -1, -(2**63)])
def test_less_than_one_unit_is_not(quantity: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        request_of(("a", 1), ("b", quantity))


def test_a_request_does_not_change() -> None:
    request = new_request(("a", 1))
    with pytest.raises(FrozenInstanceError):
        request.customer = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        request.items[0].quantity = 2  # type: ignore[misc]


def test_save_one_raises_the_refusal_of_its_own_request_and_no_other() -> None:
    mine, other = new_request(("a", 1)), new_request(("a", 1))
    refusal = OverLimit("a", limit=1, taken=1)
    save_one(mine, lambda requests: {})
    save_one(mine, lambda requests: {other.id: refusal})
    with pytest.raises(OverLimit) as raised:
        save_one(mine, lambda requests: {mine.id: refusal})
    assert raised.value is refusal
