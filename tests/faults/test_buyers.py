"""Which responses a buyer counts as a final answer. The verdict of a fault round depends on it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.buyers import Crowd, Purchase, ShopClient

ORDER = {"id": "1", "state": "pending"}
QUEUED = (202, {"id": "1", "state": "queued"})
LOST = (0, {})
Answers = list[tuple[int, dict[str, Any]]]


def problem(status: int, name: str) -> tuple[int, dict[str, Any]]:
    return status, {"type": f"/api/problems/{name}/"}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([problem(503, "unavailable"), LOST, problem(409, "still-running"), (201, ORDER)], {"orders": {"1"}}),
        ([problem(503, "busy"), (201, ORDER)], {"postponed": True, "answered": False, "orders": set()}),
        ([problem(409, "sold-out")], {"refusals": {"sold-out"}}),
        ([(500, {})], {"refusals": {"500"}}),
        ([QUEUED, (200, QUEUED[1]), LOST, (200, ORDER)], {"queued": True, "orders": {"1"}}),
        ([QUEUED] + [(200, QUEUED[1])] * 1000, {"queued": True, "answered": False, "gave_up": True}),
    ],
    ids=["retried", "postponed", "refused", "internal error", "queued", "never saved"],
)
def test_answers(monkeypatch: pytest.MonkeyPatch, answers: Answers, expected: dict[str, Any]) -> None:
    if expected.get("gave_up"):
        monkeypatch.setattr("tests.faults.buyers.WAIT_TIMEOUT", 0.5)
    coming = iter(answers)
    monkeypatch.setattr(ShopClient, "_send", lambda *_: (*next(coming), "/api/orders/1/"))
    purchase = Purchase(1, "key", 1, [(1, 1)])
    with Crowd(0, [purchase], busy=0):
        pass
    values = {"answered": True, "postponed": False, "gave_up": False, "queued": False} | expected
    assert {name: getattr(purchase, name) for name in values} == values
