"""A draft is valid, or it is not made: what strategies and Save rely on without looking."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from decimal import Decimal
from uuid import uuid4

import pytest

from inventory.draft import Draft, Line, save_one
from inventory.errors import OverLimit
from tests.factories import new_draft


def draft_of(*lines: tuple[str, int]) -> Draft:
    """A draft of these lines, in this order."""
    return Draft(
        id=uuid4(),
        customer=1,
        sale=1,
        lines=tuple(Line(sku, quantity, Decimal("1.00")) for sku, quantity in lines),
        key="key",
        body_hash="",
        created_at=datetime.now(tz=UTC),
    )


@pytest.mark.parametrize("lines", [[("a", 1)], [("a", 1), ("b", 2)], [("B", 1), ("a", 1)]])
def test_lines_in_the_order_of_their_skus_are_a_draft(lines: list[tuple[str, int]]) -> None:
    assert [(line.sku, line.quantity) for line in draft_of(*lines).lines] == lines


@pytest.mark.parametrize("lines", [[], [("b", 1), ("a", 1)], [("a", 1), ("a", 1)], [("a", 1), ("b", 1), ("a", 1)]])
def test_no_lines_unordered_lines_and_a_sku_twice_are_not(lines: list[tuple[str, int]]) -> None:
    with pytest.raises(ValueError, match="in the order of their skus, one a sku"):
        draft_of(*lines)


@pytest.mark.parametrize("quantity", [0, -1, -(2**63)])
def test_less_than_one_unit_is_not(quantity: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        draft_of(("a", 1), ("b", quantity))


def test_a_draft_does_not_change() -> None:
    draft = new_draft(("a", 1))
    with pytest.raises(FrozenInstanceError):
        draft.customer = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        draft.lines[0].quantity = 2  # type: ignore[misc]


def test_save_one_raises_the_refusal_of_its_own_draft_and_no_other() -> None:
    mine, other = new_draft(("a", 1)), new_draft(("a", 1))
    refusal = OverLimit("a", limit=1, taken=1)
    save_one(mine, lambda drafts: {})
    save_one(mine, lambda drafts: {other.id: refusal})
    with pytest.raises(OverLimit) as raised:
        save_one(mine, lambda drafts: {mine.id: refusal})
    assert raised.value is refusal
