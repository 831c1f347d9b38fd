"""The audit reads one snapshot, even during sales. Its exit status says whether the stock figures are broken."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models import Sum

from inventory import audit, stock
from inventory.audit import Figures
from inventory.models import StockItem, StockMovement
from shop import conservation
from shop.models import Order, OrderItem
from tests.factories import interleaved, on_sale
from tests.shop.conftest import buy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def test_figures_count_pending_and_paid_orders_only(customer: int) -> None:
    offer = on_sale({"a": 10, "b": 1})
    for units in (1, 2, 4):
        buy(offer, customer, a=units)
    paid, expired, _ = Order.objects.order_by("id")
    Order.objects.filter(pk=paid.pk).update(state="paid")
    Order.objects.filter(pk=expired.pk).update(state="expired")
    stock.give_back([("a", 2)])
    assert conservation.figures() == [Figures("a", 10, 5, 5), Figures("b", 1, 1, 0)]
    assert conservation.figures(["b"]) == [Figures("b", 1, 1, 0)]
    assert conservation.figures([]) == []


def test_a_sku_that_was_sold_without_stock_is_listed(customer: int) -> None:
    assert conservation.figures() == []
    buy(on_sale({"a": 1}), customer, a=1)
    StockMovement.objects.all().delete()
    StockItem.objects.all().delete()
    assert conservation.figures() == conservation.figures(["a"]) == [Figures("a", 0, 0, 1)]


def two_reads() -> list[Figures]:
    """Read the figures without a snapshot. At READ COMMITTED, each statement may see other data."""
    with transaction.atomic():
        on_hand = list(StockItem.objects.values_list("sku", "received", "on_hand"))
        sold = dict(OrderItem.objects.values_list("product").annotate(Sum("quantity")))
    return audit.check(on_hand, sold)


@pytest.mark.parametrize(
    ("read", "drift"),
    [pytest.param(conservation.figures, 0, id="snapshot"), pytest.param(two_reads, -1, id="two reads")],
)
def test_figures_are_one_snapshot(customer: int, read: Callable[[], list[Figures]], drift: int) -> None:
    """The figures come from one snapshot. Negative control: without it, an order in between looks like drift."""
    offer = on_sale({"a": 5})
    buy(offer, customer, a=1)
    seen: list[Figures] = []
    with interleaved(lambda: buy(offer, customer, a=1), after=r"^\s*SELECT"):
        seen = read()
    assert [(row.drift, row.conserved) for row in seen] == [(drift, drift == 0)]
    assert conservation.figures() == [Figures("a", 5, 3, 2)]


def run_audit(*arguments: str) -> int:
    try:
        call_command("audit", *arguments)
    except SystemExit as status:
        return int(str(status.code))
    return 0


@pytest.fixture
def sold(customer: int) -> None:
    buy(on_sale({"a": 3, "b": 2}), customer, a=2)


def lose_a_unit() -> None:
    StockItem.objects.filter(sku="b").update(on_hand=1)


def test_the_command_says_whether_the_law_holds(sold: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_audit() == 0
    assert capsys.readouterr().out == "Conserved: 2 skus, 2 units sold, none of them twice.\n"
    lose_a_unit()
    assert run_audit() == 1
    out = capsys.readouterr().out
    assert "BROKEN: 1 of 2 skus." in out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert rows == [["b", "2", "1", "0", "1", "0", "0"]]


def test_received_without_a_movement_breaks_the_law(sold: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Units received without a movement break the law, although the row's figures look right."""
    StockItem.objects.filter(sku="b").update(received=3, on_hand=3)
    assert conservation.figures(["b"]) == [Figures("b", 2, 3, 0, unexplained=1)]
    assert run_audit() == 1
    assert "│ b   │ 2        │ 3       │ 0    │ -1    │ 0        │ 1           │" in capsys.readouterr().out
    rows = StockItem.objects.values_list("sku", "received", "on_hand")
    without_movements = audit.check(rows, {"a": 2})
    assert [row.conserved for row in without_movements] == [True, True]


def test_the_command_checks_the_named_skus_only(sold: None, capsys: pytest.CaptureFixture[str]) -> None:
    lose_a_unit()
    assert [run_audit(sku) for sku in "ab"] == [0, 1]
    assert capsys.readouterr().out.startswith("Conserved: 1 sku, 2 units sold, none of them twice.\n")
    with pytest.raises(CommandError, match="There is no stock of unknown") as refused:
        run_audit("a", "unknown")
    assert refused.value.returncode == 2


def test_the_command_prints_json(sold: None, capsys: pytest.CaptureFixture[str]) -> None:
    sound = {"drift": 0, "oversold": 0, "unexplained": 0, "conserved": True}
    row = {"sku": "a", "received": 3, "on_hand": 1, "sold": 2, **sound}
    other = {"sku": "b", "received": 2, "on_hand": 2, "sold": 0, **sound}
    assert run_audit("--json") == 0
    assert json.loads(capsys.readouterr().out) == {"conserved": True, "skus": [row, other]}
    lose_a_unit()
    assert run_audit("--json") == 1
    broken = other | {"on_hand": 1, "drift": 1, "conserved": False}
    assert json.loads(capsys.readouterr().out) == {"conserved": False, "skus": [row, broken]}
