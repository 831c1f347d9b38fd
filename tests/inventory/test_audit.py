"""Cases of the conservation law: received = on hand + sold, and no figure is negative."""

from __future__ import annotations

import pytest

from inventory import audit
from inventory.audit import Figures


@pytest.mark.parametrize(
    ("received", "on_hand", "sold", "drift", "oversold", "conserved"),
    [
        pytest.param(0, 0, 0, 0, 0, True, id="nothing received"),
        pytest.param(5, 3, 2, 0, 0, True, id="some sold"),
        pytest.param(5, 4, 2, -1, 0, False, id="a lost update: two sold, down by one"),
        pytest.param(1, 0, 2, -1, 1, False, id="the last unit sold twice, down by one"),
        pytest.param(1, -1, 2, 0, 1, False, id="the sum fits: one sold too many and -1 on hand"),
        pytest.param(5, -1, 5, 1, 0, False, id="-1 on hand alone"),
        pytest.param(5, 2, 2, 1, 0, False, id="a missing unit"),
        pytest.param(5, 6, 0, -1, 0, False, id="more on hand than received"),
        pytest.param(-1, -1, 0, 0, 1, False, id="received below zero, though the sum fits"),
        pytest.param(2, 3, -1, 0, 0, False, id="sold below zero, though the sum fits"),
    ],
)
def test_the_law(received: int, on_hand: int, sold: int, drift: int, oversold: int, conserved: bool) -> None:
    figures = Figures("a", received, on_hand, sold)
    assert (figures.drift, figures.oversold, figures.conserved) == (drift, oversold, conserved)
    assert not Figures("a", received, on_hand, sold, unexplained=1).conserved


def test_check_returns_every_sku_sorted() -> None:
    rows = audit.check(iter([("c", 1, 1), ("a", 3, 1)]), {"a": 2, "b": 1})
    assert rows == [Figures("a", 3, 1, 2), Figures("b", 0, 0, 1), Figures("c", 1, 1, 0)]
    assert [row.conserved for row in rows] == [True, False, True]
    assert audit.check([], {}) == []
