"""The verdict of a fault round: each kind of loss is reported, and a buyer knows which answers are final."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import uuid_utils.compat

from inventory.audit import Figures
from inventory.counters.segmented import segment_name
from inventory.counters.whole import Counters
from inventory.models import StockItem
from inventory.strategies import registry
from shop.models import Order
from tests.factories import OnSale, new_customer, new_request, on_sale
from tests.faults.buyers import Crowd, Purchase, ShopClient
from tests.faults.rounds import drift_in_redis, losses_in_answers, losses_in_tables, units_reserved
from tests.shop.conftest import buy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def offer() -> OnSale:
    return on_sale({"a": 5})


@pytest.fixture
def purchase(offer: OnSale) -> Purchase:
    """A purchase to which the shop responded with an order."""
    made = Purchase(new_customer(), str(uuid4()), offer.sale, [(offer.products["a"], 2)], answered=True)
    placed = buy(offer, made.customer, made.key, a=2)
    made.orders.add(str(placed.order.pk))
    return made


def losses(offer: OnSale, purchase: Purchase) -> dict[str, Any]:
    found = losses_in_tables(offer.sale, offer.products, [purchase]) | losses_in_answers([purchase])
    return {name: loss for name, loss in found.items() if loss}


def test_units_orders_and_answers_are_compared(offer: OnSale, purchase: Purchase) -> None:
    (order,) = purchase.orders
    assert losses(offer, purchase) == {}
    StockItem.objects.update(on_hand=2)
    assert losses(offer, purchase) == {"unconserved": [str(Figures("a", 5, 2, 2))]}
    StockItem.objects.update(on_hand=3)
    purchase.orders = {str(uuid4())}
    assert losses(offer, purchase) == {"missing": 1, "untold": 1}
    purchase.orders = set()
    assert losses(offer, purchase) == {"untold": 1}
    second = Order.objects.get()
    second.pk, second.key = uuid_utils.compat.uuid7(), "another"
    second.save(force_insert=True)
    purchase.orders = {order, str(second.pk)}
    assert losses(offer, purchase) == {"two orders for one key": 1, "two answers for one key": 1}


def test_missing_and_wrong_answers() -> None:
    served = Purchase(1, "1", 1, [], answered=True, refusals={"sold-out"})
    left = Purchase(2, "2", 1, [], gave_up=True)
    queued = Purchase(3, "3", 1, [], gave_up=True, queued=True)
    refused = Purchase(4, "4", 1, [], answered=True, refusals={"sold-out", "invalid"})
    assert losses_in_answers([served, left, queued, refused]) == {
        "unanswered": 2,
        "queued for ever": 1,
        "wrong answers": ["invalid"],
        "two answers for one key": 0,
    }


@pytest.mark.parametrize("strategy", ["lua", "segmented-redis"])
def test_units_in_redis_without_an_owner(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    offer = on_sale({"a": 10, "b": 10}, strategy=strategy)
    counters = registry.counters()
    a, b = ("a", "b") if strategy == "lua" else (segment_name("a", 3), segment_name("b", 0))
    request = new_request((a, 2), (b, 1))
    assert (units_reserved(offer.products), drift_in_redis(offer.products)) == (0, 0)
    counters.take(request)
    assert (units_reserved(offer.products), drift_in_redis(offer.products)) == (3, 0)
    counters.confirm_reservation(request.id, request.skus)
    assert (units_reserved(offer.products), drift_in_redis(offer.products)) == (0, 3)
    # A reservation whose order is saved is no drift: here, the process dies before it confirms.
    offer = on_sale({"c": 10}, strategy=strategy)
    monkeypatch.setattr(Counters, "confirm_reservation", lambda *_: False)
    buy(offer, c=2)
    assert (units_reserved(offer.products), drift_in_redis(offer.products)) == (2, 0)


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
