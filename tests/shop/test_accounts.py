"""The audit is one snapshot, also while the shop sells, and it tells what is broken by its exit status."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.db.models import Sum
from redis import Redis

from inventory import audit, stock
from inventory.audit import Figures
from inventory.models import StockItem, StockMovement
from shop import conservation
from shop.models import Order, OrderItem
from shop.orders.place import place_order
from tests.factories import OnSale, interleaved, new_customer, on_sale
from tests.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def customer(db: None) -> int:
    return new_customer()


def place(offer: OnSale, customer: int, **units: int) -> None:
    place_order(customer=customer, sale=offer.sale, quantities=offer.cart(**units), key=str(uuid4()))


def test_it_counts_orders_that_stand_and_no_others(customer: int) -> None:
    offer = on_sale({"a": 10, "b": 1})
    for units in (1, 2, 4):
        place(offer, customer, a=units)
    paid, expired, _ = Order.objects.order_by("id")
    Order.objects.filter(pk=paid.pk).update(state="paid")
    Order.objects.filter(pk=expired.pk).update(state="expired")
    stock.give_back([("a", 2)])
    assert conservation.figures() == [Figures("a", 10, 5, 5), Figures("b", 1, 1, 0)]
    assert conservation.figures(["b"]) == [Figures("b", 1, 1, 0)]
    assert conservation.figures([]) == []


def test_a_sku_that_was_sold_and_has_no_stock_is_seen(customer: int) -> None:
    place(on_sale({"a": 1}), customer, a=1)
    StockMovement.objects.all().delete()
    StockItem.objects.all().delete()
    assert conservation.figures() == conservation.figures(["a"]) == [Figures("a", 0, 0, 1)]


def test_it_does_not_run_inside_a_transaction_whose_snapshot_may_be_old() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError):
        conservation.figures()


# One snapshot


def two_reads() -> list[Figures]:
    """The audit without its snapshot: at READ COMMITTED each statement sees its own moment."""
    with transaction.atomic():
        on_hand = list(StockItem.objects.values_list("sku", "received", "on_hand"))
        sold = dict(OrderItem.objects.values_list("product").annotate(Sum("quantity")))
    return audit.check(on_hand, sold)


@pytest.mark.parametrize(
    ("read", "drift"),
    [pytest.param(conservation.figures, 0, id="snapshot"), pytest.param(two_reads, -1, id="two reads")],
)
def test_an_order_between_its_two_reads_is_not_half_seen(
    customer: int, read: Callable[[], list[Figures]], drift: int
) -> None:
    """The negative control beside it: without the snapshot the same order looks like one unit sold twice."""
    offer = on_sale({"a": 5})
    place(offer, customer, a=1)
    seen: list[Figures] = []
    with interleaved(lambda: place(offer, customer, a=1), after="^SELECT"):
        seen = read()
    assert [(row.drift, row.conserved) for row in seen] == [(drift, drift == 0)]
    assert conservation.figures() == [Figures("a", 5, 3, 2)]


def test_200_audits_while_the_shop_sells_are_all_conserved(customer: int) -> None:
    offer = on_sale({"a": 1_000_000, "b": 1_000_000})
    done = threading.Event()

    def keep_selling() -> int:
        sold = 0
        try:
            while not done.is_set():
                place(offer, customer, a=1, b=2)
                sold += 1
        finally:
            connections.close_all()
        return sold

    with ThreadPoolExecutor(1) as pool:
        selling = pool.submit(keep_selling)
        try:
            wait_for(lambda: Order.objects.exists(), "the first order")
            seen = [conservation.figures() for _ in range(200)]
        finally:
            done.set()
        orders = selling.result()

    assert [row for figures in seen for row in figures if not row.conserved] == []
    assert len({figures[0].sold for figures in seen}) > 1, "nothing was sold meanwhile"
    assert conservation.figures() == [
        Figures("a", 1_000_000, 1_000_000 - orders, orders),
        Figures("b", 1_000_000, 1_000_000 - 2 * orders, 2 * orders),
    ]


# manage.py audit


def run_audit(*arguments: str) -> int:
    try:
        call_command("audit", *arguments)
    except SystemExit as status:
        return int(str(status.code))
    return 0


@pytest.fixture
def sold(customer: int) -> None:
    place(on_sale({"a": 3, "b": 2}), customer, a=2)


def lose_a_unit() -> None:
    StockItem.objects.filter(sku="b").update(on_hand=1)


def test_the_command_says_that_the_law_holds(sold: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_audit() == 0
    assert capsys.readouterr().out == "Conserved: 2 skus, 2 units sold, each of them once.\n"


def test_the_command_shows_what_differs_and_only_that(sold: None, capsys: pytest.CaptureFixture[str]) -> None:
    lose_a_unit()
    assert run_audit() == 1
    out = capsys.readouterr().out
    assert "BROKEN: 1 of 2 skus." in out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert rows == [["b", "2", "1", "0", "1", "0", "0"]]


def test_what_a_row_says_beyond_its_movements_breaks_the_law(sold: None, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand, somebody has written a unit that nobody delivered: the figures of the row alone would add up."""
    StockItem.objects.filter(sku="b").update(received=3, on_hand=3)
    assert conservation.figures(["b"]) == [Figures("b", 2, 3, 0, unexplained=1)]
    assert run_audit() == 1
    assert "│ b   │ 2        │ 3       │ 0    │ -1    │ 0        │ 1           │" in capsys.readouterr().out
    rows = StockItem.objects.values_list("sku", "received", "on_hand")
    without_movements = audit.check(rows, {"a": 2})
    assert [row.conserved for row in without_movements] == [True, True]


def test_a_movement_that_the_row_has_not_followed_breaks_the_law(sold: None) -> None:
    StockMovement.objects.create(item_id="b", kind="delivered", units=5)
    assert conservation.figures(["b"]) == [Figures("b", 7, 2, 0, unexplained=-5)]
    assert run_audit() == 1


@pytest.mark.parametrize(("sku", "status"), [("a", 0), ("b", 1)])
def test_the_command_looks_at_the_skus_that_it_is_told(sold: None, sku: str, status: int) -> None:
    lose_a_unit()
    assert run_audit(sku) == status


def test_the_command_does_not_call_a_sku_conserved_that_nobody_knows(sold: None) -> None:
    with pytest.raises(CommandError, match="Nobody knows unknown") as refused:
        run_audit("a", "unknown")
    assert refused.value.returncode == 2


@pytest.mark.parametrize("broken", [False, True])
def test_the_command_speaks_json(sold: None, capsys: pytest.CaptureFixture[str], broken: bool) -> None:
    if broken:
        lose_a_unit()
    assert run_audit("--json") == int(broken)
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    sound = {"drift": 0, "oversold": 0, "unexplained": 0, "conserved": True}
    row = {"received": 3, "on_hand": 1, "sold": 2, **sound}
    other = {"received": 2, "on_hand": 2, "sold": 0, **sound}
    if broken:
        other |= {"on_hand": 1, "drift": 1, "conserved": False}
    assert said == {"conserved": not broken, "skus": [{"sku": "a", **row}, {"sku": "b", **other}]}


def test_an_empty_shop_conserves(db: None, redis: Redis, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_audit() == 0
    assert capsys.readouterr().out.startswith("Conserved: 0 skus")
