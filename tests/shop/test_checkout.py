"""One way to an order: once for a key, however often it is sent, and nothing sold when it is refused."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from inventory import stock
from inventory.errors import OverLimit, SoldOut, StockBusy, StockReserved, StockUnavailable, TryAgain, UnknownCustomer
from inventory.requests import OrderRequest, Placement, Save
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from locking import held
from shop import conservation
from shop.models import Allowance, Order, OrderItem, SaleItem
from shop.orders import receipts
from shop.orders.customer_changes import cancel_order
from shop.orders.errors import KeyReused, SaleNotOpen, StillRunning, UnknownProduct, UnknownSale
from shop.orders.lookup import which_are_used
from shop.orders.place import make_request, place_order, place_request
from shop.orders.queued import save_queued
from shop.orders.receipts import Placed
from shop.sales import offers
from tests.factories import (
    SAVING,
    OnSale,
    at_once,
    begin,
    close_now,
    elsewhere,
    new_customer,
    on_sale,
    orders_in,
    tally,
)
from tests.shop.conftest import Gone
from tests.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def customer(db: None) -> int:
    return new_customer()


def place(offer: OnSale, customer: int, key: str = "", **units: int) -> Placed:
    return place_order(customer=customer, sale=offer.sale, quantities=offer.cart(**units), key=key or str(uuid4()))


def assert_books(**expected: tuple[int, int]) -> None:
    """Each sku has so many units on hand and sold, and the law holds."""
    figures = conservation.figures()
    assert {row.sku: (row.on_hand, row.sold) for row in figures} == expected
    assert all(row.conserved for row in figures)


class Paused(Strategy):
    """A strategy that waits, with everything done but the commit, until it is told to go on."""

    name = "paused"

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.saved = threading.Event()
        self.go_on = threading.Event()

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        def save_and_wait(requests: Any) -> Any:
            refusals = save(requests)
            self.saved.set()
            assert self.go_on.wait(PATIENCE)
            return refusals

        return self.strategy.place(order, save_and_wait)


# A new order


@pytest.mark.parametrize("name", SAVING)
def test_an_order_is_committed_and_answered_as_it_is_in_the_tables(customer: int, name: str) -> None:
    offer = on_sale({"a": 3, "b": 3}, strategy=name, price="9.90", limit=2)
    placed = place(offer, customer, key="mine", a=2, b=1)
    order = Order.objects.get()
    assert placed == Placed(receipts.of_row(order), replayed=False)
    assert (order.customer_id, order.key, order.state) == (customer, "mine", "pending")
    saved = list(order.items.order_by("product").values_list("product__pk", "product__sku", "quantity", "price"))
    answered = [(item.product, item.sku, item.quantity, item.price) for item in placed.order.items]
    a, b = offer.products["a"], offer.products["b"]
    assert answered == saved == [(a, "a", 2, Decimal("9.90")), (b, "b", 1, Decimal("9.90"))]
    assert_books(a=(1, 2), b=(2, 1))
    assert held(registry.counters().client) == []


@pytest.mark.parametrize(
    ("name", "statements"),
    [
        ("advisory-lock", "BEGIN SELECT SELECT UPDATE WITH COMMIT"),
        ("guarded-update", "BEGIN UPDATE WITH COMMIT"),
        ("lua", "BEGIN UPDATE WITH COMMIT"),
        ("optimistic", "BEGIN SELECT UPDATE WITH COMMIT"),
        ("redis-lock", "BEGIN UPDATE WITH COMMIT"),
        ("segmented-redis", "BEGIN UPDATE WITH COMMIT"),
        ("segmented-lock", "SELECT BEGIN UPDATE WITH COMMIT"),  # the first look at the segments
        ("row-lock", "BEGIN SELECT UPDATE WITH COMMIT"),
        ("unit-rows", "BEGIN DELETE WITH COMMIT"),
    ],
)
def test_an_order_under_a_limit_costs_so_many_statements_once_the_offer_is_known(
    customer: int, name: str, statements: str
) -> None:
    offer = on_sale({"a": 3}, strategy=name, limit=3)
    offers._remembered[offer.sale] = (math.inf, offers.read(offer.sale))
    with CaptureQueriesContext(connection) as queries:
        place(offer, customer, a=1)
    assert " ".join(query["sql"].split()[0] for query in queries) == statements


# The same key again


@pytest.mark.parametrize("name", SAVING)
def test_the_same_key_and_body_is_the_same_order_and_takes_nothing_more(customer: int, name: str) -> None:
    offer = on_sale({"a": 5, "b": 5}, strategy=name)
    first = place(offer, customer, key="mine", a=2, b=1)
    for cart in ({"a": 2, "b": 1}, {"b": 1, "a": 2}):
        again = place(offer, customer, key="mine", **cart)
        assert (again.order, again.replayed) == (first.order, True)
    assert_books(a=(3, 2), b=(4, 1))
    assert registry.counters().reserved() == {}


@pytest.mark.parametrize("name", SAVING)
def test_without_the_key_the_same_order_again_is_another_order(customer: int, name: str) -> None:
    """The negative control."""
    offer = on_sale({"a": 5}, strategy=name)
    orders = {place(offer, customer, a=2).order.pk for _ in range(2)}
    assert len(orders) == 2
    assert_books(a=(1, 4))


def sell_out(offer: OnSale) -> None:
    place(offer, new_customer(), a=stock.on_hand("a"))


@pytest.mark.parametrize("since", [sell_out, close_now], ids=["sold out", "closed"])
@pytest.mark.parametrize("name", SAVING)
def test_a_retry_gets_its_order_also_when_stock_or_sale_have_ended_since(
    customer: int, name: str, since: Callable[[OnSale], None]
) -> None:
    offer = on_sale({"a": 5}, strategy=name)
    first = place(offer, customer, key="mine", a=1)
    since(offer)
    again = place(offer, customer, key="mine", a=1)
    assert (again.order, again.replayed) == (first.order, True)
    with pytest.raises((SoldOut, SaleNotOpen)):
        place(offer, customer, key="new", a=1)
    assert orders_in() == (2 if since is sell_out else 1)


@pytest.mark.parametrize("paid", [True, False])
def test_a_retry_shows_what_has_become_of_the_order(customer: int, paid: bool) -> None:
    offer = on_sale({"a": 5})
    first = place(offer, customer, key="mine", a=1)
    Order.objects.update(state="paid" if paid else "expired")
    again = place(offer, customer, key="mine", a=1)
    assert (again.order.pk, again.order.state) == (first.order.pk, "paid" if paid else "expired")


@pytest.mark.parametrize(
    "body",
    [{"a": 2}, {"b": 1}, {"a": 1, "b": 1}, "another sale"],
    ids=["quantity", "product", "one more product", "sale"],
)
@pytest.mark.parametrize("since", [lambda offer: None, sell_out, close_now], ids=["open", "sold out", "closed"])
def test_the_same_key_with_a_different_body_is_refused_whatever_has_happened_since(
    customer: int, body: Any, since: Callable[[OnSale], None]
) -> None:
    offer = on_sale({"a": 5, "b": 5})
    first = place(offer, customer, key="mine", a=1)
    since(offer)
    before = orders_in()
    another = on_sale({"a": 0}, preheat=False) if body == "another sale" else offer
    with pytest.raises(KeyReused):
        place(another, customer, key="mine", **({"a": 1} if body == "another sale" else body))
    assert orders_in() == before
    assert list(OrderItem.objects.filter(order=first.order.pk).values_list("product", "quantity")) == [("a", 1)]


def test_the_same_key_of_another_customer_is_another_order(customer: int) -> None:
    offer = on_sale({"a": 5})
    orders = {place(offer, who, key="mine", a=1).order.pk for who in (customer, new_customer())}
    assert len(orders) == 2
    assert_books(a=(3, 2))


def test_a_key_whose_order_was_refused_may_try_again(customer: int) -> None:
    offer = on_sale({"a": 1})
    with pytest.raises(SoldOut):
        place(offer, customer, key="mine", a=2)
    assert place(offer, customer, key="mine", a=1).replayed is False
    assert_books(a=(0, 1))


def test_of_many_keys_it_is_told_which_are_used_by_whom(customer: int) -> None:
    """Those who are refused at the same time ask by one statement, in the order in which they came."""
    offer, other = on_sale({"a": 5}), new_customer()
    place(offer, customer, key="his", a=1)
    place(offer, other, key="hers", a=1)
    clicks = [(other, "his"), (customer, "his"), (customer, "new"), (other, "hers"), (customer, "his")]
    with CaptureQueriesContext(connection) as asked:
        assert which_are_used(clicks) == [False, True, False, True, True]
    assert len(asked) == 1


# Sold out, remembered for a moment


def test_who_comes_too_late_is_refused_without_asking_the_strategy_for_a_moment_and_no_longer(
    customer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = on_sale({"a": 1})
    strategy = registry.get("guarded-update")
    asked: list[OrderRequest] = []
    place_ = strategy.place
    monkeypatch.setattr(strategy, "place", lambda request, save: (asked.append(request), place_(request, save))[1])
    clock = [1000.0]
    monkeypatch.setattr("inventory.sold_out.time.monotonic", lambda: clock[0])
    for moment, expected in ((0.0, 1), (0.2, 1), (0.2, 2)):
        clock[0] += moment
        with pytest.raises(SoldOut) as refused:
            place(offer, customer, key=str(uuid4()), a=2)
        assert (refused.value.wanted, refused.value.left) == (2, 1)
        assert len(asked) == expected  # being refused meanwhile has not prolonged it
    assert not place(offer, customer, key="one", a=1).replayed  # which is left


class Asked:
    """A strategy that is asked in the middle of which something happens, once, on a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "guarded-update") -> None:
        self.strategy, self.times, self.now = registry.get(name), 0, 1000.0
        self.meanwhile: Callable[[], None] = lambda: None
        self.place = self.strategy.place
        monkeypatch.setattr(self.strategy, "place", self._place)
        monkeypatch.setattr("inventory.sold_out.time.monotonic", lambda: self.now)

    def _place(self, request: OrderRequest, save: Save) -> Placement:
        self.times += 1
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return self.place(request, save)


def test_when_the_moment_is_over_one_asks_and_the_others_are_refused_until_he_is_answered(
    customer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer, asked = on_sale({"a": 1, "b": 5}), Asked(monkeypatch)

    def refused(**cart: int) -> None:
        with pytest.raises(SoldOut):
            place(offer, customer, key=str(uuid4()), **cart)

    def others() -> None:
        refused(a=2)
        refused(a=2, b=1)
        place(offer, customer, key="what is left", a=1)

    refused(a=2)
    asked.now += 0.3
    asked.meanwhile = others
    refused(a=2)
    assert asked.times == 3  # the first, the one who asked for the others, and who wanted no more than was left


def sold_out_until_some_come_back(offer: OnSale, customer: int, asked: Asked, *, wanted: int) -> None:
    """As by another process, of which nobody told this one; its moment is over."""
    with pytest.raises(SoldOut):
        place(offer, customer, key="one", a=wanted)
    stock.deliver("a", 8)
    asked.now += 0.3


def test_who_asks_and_is_sold_what_came_back_lets_everybody_ask(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    offer, asked = on_sale({"a": 1}), Asked(monkeypatch)
    with pytest.raises(SoldOut):
        place(offer, customer, key="one", a=2)
    stock.deliver("a", 8)  # as by another process, of which nobody told this one
    with pytest.raises(SoldOut):
        place(offer, customer, key="two", a=2)
    asked.now += 0.3
    assert not place(offer, customer, key="three", a=2).replayed

    def all_others() -> None:
        assert not place(offer, customer, key="five", a=2).replayed

    asked.meanwhile = all_others
    assert not place(offer, customer, key="four", a=2).replayed
    assert_books(a=(3, 6))


def test_who_is_refused_for_another_sku_has_asked_for_nobody(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else carts with something that is sold out would keep others from what has come back, for ever."""
    offer, asked = on_sale({"a": 1, "b": 1}), Asked(monkeypatch)
    with pytest.raises(SoldOut):
        place(offer, customer, key="one", a=2)
    asked.now += 0.2
    with pytest.raises(SoldOut):
        place(offer, customer, key="two", b=2)
    stock.deliver("a", 8)
    asked.now += 0.1
    with pytest.raises(SoldOut) as refused:
        place(offer, customer, key="three", a=2, b=2)
    assert refused.value.sku == "b"
    assert not place(offer, customer, key="four", a=2).replayed


def refused_meanwhile(offer: OnSale, customer: int, **cart: int) -> None:
    """While one asks, the others do not."""
    with pytest.raises(SoldOut):
        place(offer, customer, key=str(uuid4()), **cart)


def test_who_asks_and_is_refused_for_another_sku_lets_the_next_one_ask(
    customer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else b, which has come back, would be refused as long as carts with a keep asking."""
    offer, asked = on_sale({"a": 1, "b": 1}), Asked(monkeypatch)
    for cart in ({"a": 2}, {"b": 2}):
        with pytest.raises(SoldOut):
            place(offer, customer, key=str(uuid4()), **cart)
    stock.deliver("b", 8)
    asked.now += 0.3
    with pytest.raises(SoldOut) as refused:
        place(offer, customer, key="one", a=2, b=2)
    assert (refused.value.sku, asked.times) == ("a", 3)
    asked.meanwhile = partial(refused_meanwhile, offer, customer, b=2)
    assert not place(offer, customer, key="two", b=2).replayed


@pytest.mark.parametrize("error", [StockBusy("no lock"), UnknownCustomer(1), OperationalError("no server")], ids=repr)
def test_who_asks_and_gets_no_answer_lets_the_next_one_ask(
    customer: int, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    offer, asked = on_sale({"a": 1}), Asked(monkeypatch)
    sold_out_until_some_come_back(offer, customer, asked, wanted=2)

    def fail() -> None:
        refused_meanwhile(offer, customer, a=2)
        raise error

    asked.meanwhile = fail
    with pytest.raises(type(error)):
        place(offer, customer, key="two", a=2)
    asked.meanwhile = partial(refused_meanwhile, offer, customer, a=2)
    assert not place(offer, customer, key="three", a=2).replayed


def test_what_is_known_better_by_now_is_not_forgotten(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has asked and was paused is answered when somebody else has been told that even less is left."""
    offer, asked = on_sale({"a": 2}), Asked(monkeypatch)
    sold_out_until_some_come_back(offer, customer, asked, wanted=3)

    def another() -> None:
        asked.now += 0.3
        with pytest.raises(SoldOut):
            place(offer, customer, key="two", a=11)

    asked.meanwhile = another
    assert not place(offer, customer, key="three", a=3).replayed
    times = asked.times
    with pytest.raises(SoldOut):
        place(offer, customer, key="four", a=11)
    assert asked.times == times


def test_what_is_reserved_for_somebody_is_not_remembered_as_sold(
    customer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He may not get it, after all. Who wants no more than that is told to ask again, not that nothing is left."""
    offer = on_sale({"a": 1}, strategy="lua")
    first, answers = new_customer(), []

    def fail(requests: Sequence[OrderRequest]) -> Any:
        for wanted in (2, 1):
            with pytest.raises((SoldOut, StockReserved)) as refused:
                elsewhere(partial(place, offer, customer, a=wanted))
            answers.append(refused.type)
        raise OperationalError("no server")

    monkeypatch.setattr("shop.orders.place.save", fail)
    with pytest.raises(OperationalError):
        place(offer, first, a=1)
    assert answers == [SoldOut, StockReserved]
    monkeypatch.undo()
    assert not place(offer, customer, a=1).replayed


def test_units_that_come_back_are_sold_at_once_by_the_process_that_has_them(customer: int) -> None:
    offer = on_sale({"a": 1})
    first = place(offer, customer, key="one", a=1)
    with pytest.raises(SoldOut):
        place(offer, customer, key="two", a=1)
    cancel_order(first.order.pk, customer=customer)
    assert not place(offer, customer, key="two", a=1).replayed


# Two clicks at once


@pytest.mark.parametrize("name", SAVING)
def test_while_the_first_click_is_on_its_way_the_second_is_told_so_and_after_it_gets_the_order(
    customer: int, name: str
) -> None:
    offer = on_sale({"a": 5}, strategy=name)
    first = Paused(registry.get(name))
    known = offers.read(offer.sale)
    assert known is not None
    request = make_request(known, customer=customer, quantities=offer.cart(a=1), key="mine")

    def click() -> Placed:
        try:
            return place_request(request, known, first)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        placing = pool.submit(click)
        try:
            assert first.saved.wait(PATIENCE)
            with pytest.raises(StillRunning):
                place(offer, customer, key="mine", a=1)
            with pytest.raises(StillRunning):
                place(offer, customer, key="mine", a=4)
            assert orders_in() == 0
        finally:
            first.go_on.set()
        placed = placing.result(PATIENCE)

    again = place(offer, customer, key="mine", a=1)
    assert (placed.replayed, again.order, again.replayed) == (False, placed.order, True)
    assert_books(a=(4, 1))


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No click sees another one on its way: as if each came to a process of its own."""

    class Apart(dict[Any, Any]):
        def setdefault(self, key: Any, default: Any = None) -> Any:
            return default

        def __delitem__(self, key: Any) -> None:
            pass

    monkeypatch.setattr("shop.orders.place._running", Apart())


def test_in_another_process_the_second_order_under_a_key_waits_for_the_first_at_the_unique_index(
    customer: int, apart: None
) -> None:
    # Stock of its own for each, so that it is the key that the second one waits for, and not the row of the stock.
    offer = on_sale({"a": 5, "b": 5})
    known = offers.read(offer.sale)
    assert known is not None
    first, second = (
        make_request(known, customer=customer, quantities=offer.cart(**{sku: 1}), key="mine") for sku in "ab"
    )
    paused = Paused(registry.get("guarded-update"))

    def click(request: OrderRequest, strategy: Strategy) -> Placed:
        try:
            return place_request(request, known, strategy)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        placing = pool.submit(click, first, paused)
        assert paused.saved.wait(PATIENCE)
        different = pool.submit(click, second, registry.get("guarded-update"))
        wait_for(somebody_waits_for_a_transaction, "the second order to wait")
        paused.go_on.set()
        assert placing.result(PATIENCE).replayed is False
        with pytest.raises(KeyReused):
            different.result(PATIENCE)
    assert_books(a=(4, 1), b=(5, 0))


def somebody_waits_for_a_transaction() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return cursor.fetchone() is not None


@pytest.mark.parametrize("name", SAVING)
@pytest.mark.parametrize("one_key", [True, False], ids=["one key", "a key each"])
def test_16_clicks_at_once_with_one_key_are_one_order_and_with_a_key_each_16(
    customer: int, name: str, one_key: bool
) -> None:
    offer = on_sale({"a": 20}, strategy=name)

    def click() -> str:
        key = "mine" if one_key else str(uuid4())

        def once() -> str:
            try:
                return "replayed" if place(offer, customer, key=key, a=1).replayed else "placed"
            except StillRunning:
                assert one_key
                return ""

        answer: str = wait_for(once, "an answer other than that it is being placed")
        return answer

    answers = tally(at_once(*[click] * 16))
    assert answers == ({"placed": 1, "replayed": 15} if one_key else {"placed": 16})
    assert orders_in() == (1 if one_key else 16)
    assert_books(a=(19, 1) if one_key else (4, 16))


@pytest.mark.parametrize("units", [20, 1])
@pytest.mark.parametrize("name", SAVING)
def test_16_clicks_at_once_with_one_key_in_a_process_each_are_one_order(
    customer: int, apart: None, name: str, units: int
) -> None:
    offer = on_sale({"a": units}, strategy=name)

    def click() -> str:
        def once() -> str:
            try:
                return str(place(offer, customer, key="mine", a=1).replayed)
            except TryAgain:
                return ""

        answer: str = wait_for(once, "an answer other than to try again")
        return answer

    assert tally(at_once(*[click] * 16)) == {"False": 1, "True": 15}
    assert_books(a=(units - 1, 1))


@pytest.mark.parametrize("name", ["guarded-update", "lua"])
def test_a_second_click_on_the_last_unit_in_another_process_is_not_told_that_it_is_sold_out(
    customer: int, apart: None, name: str
) -> None:
    """While the first one's is being saved: it is the same order, and is going to be answered so."""
    offer = on_sale({"a": 1}, strategy=name)
    first = Paused(registry.get(name))
    known = offers.read(offer.sale)
    assert known is not None
    request = make_request(known, customer=customer, quantities=offer.cart(a=1), key="mine")

    def second_click() -> Placed | None:
        try:
            return place(offer, customer, key="mine", a=1)
        except TryAgain:
            return None

    with ThreadPoolExecutor(2) as pool:
        try:
            placing = pool.submit(elsewhere, lambda: place_request(request, known, first))
            assert first.saved.wait(PATIENCE)
            early = begin(pool, second_click)
        finally:
            first.go_on.set()
        assert placing.result(PATIENCE).replayed is False
        answer = early.result(PATIENCE) or place(offer, customer, key="mine", a=1)
    assert (answer.order.pk, answer.replayed) == (request.id, True)
    assert_books(a=(0, 1))


@pytest.mark.parametrize("name", ["guarded-update", "optimistic"])
def test_a_strategy_that_needs_no_redis_sells_without_it(customer: int, redis_gone: Gone, name: str) -> None:
    offer = on_sale({"a": 2}, strategy=name)
    with redis_gone():
        first = place(offer, customer, key="mine", a=1)
        again = place(offer, customer, key="mine", a=1)
    assert (first.replayed, again.replayed, again.order) == (False, True, first.order)
    assert_books(a=(1, 1))


@pytest.mark.parametrize("name", ["lua", "redis-lock", "segmented-redis", "segmented-lock"])
def test_a_strategy_that_needs_redis_is_unavailable_without_it_and_takes_nothing(
    customer: int, redis_gone: Gone, name: str
) -> None:
    offer = on_sale({"a": 2}, strategy=name)
    with redis_gone(), pytest.raises(StockUnavailable):
        place(offer, customer, key="mine", a=1)
    assert orders_in() == 0
    assert place(offer, customer, key="mine", a=1).replayed is False
    assert_books(a=(1, 1))


# The answer is lost


@pytest.mark.parametrize("name", SAVING)
def test_when_the_answer_of_the_commit_is_lost_a_retry_finds_the_order(customer: int, name: str) -> None:
    offer = on_sale({"a": 5}, strategy=name)
    known = offers.read(offer.sale)
    assert known is not None

    class AnswerLost(Strategy):
        name = "answer-lost"

        def _place(self, order: OrderRequest, save: Save) -> Placement:
            def lose() -> None:
                raise OperationalError("the answer was lost")

            def save_and_lose(requests: Any) -> Any:
                transaction.on_commit(lose)
                return save(requests)

            return registry.get(offer_strategy).place(order, save_and_lose)

    offer_strategy = name
    request = make_request(known, customer=customer, quantities=offer.cart(a=1), key="mine")
    with pytest.raises(OperationalError):
        place_request(request, known, AnswerLost())
    again = place(offer, customer, key="mine", a=1)
    assert (again.order.pk, again.replayed) == (request.id, True)
    assert_books(a=(4, 1))


# Limits


@pytest.mark.parametrize("name", SAVING)
@pytest.mark.parametrize(("limit", "orders"), [(2, 2), (None, 16)], ids=["limit 2", "no limit"])
def test_16_orders_of_one_customer_at_once_are_as_many_as_the_limit_allows(
    customer: int, name: str, limit: int | None, orders: int
) -> None:
    offer = on_sale({"a": 20}, strategy=name, limit=limit)
    answers = tally(at_once(*[lambda: place(offer, customer, a=1).replayed] * 16))
    assert answers == {"False": orders, **({"OverLimit": 16 - orders} if limit else {})}
    assert list(Allowance.objects.values_list("taken", flat=True)) == [orders]
    assert_books(a=(20 - orders, orders))
    assert registry.counters().reserved() == {}


def test_over_the_limit_says_what_was_taken_and_leaves_nothing(customer: int) -> None:
    offer = on_sale({"a": 5, "b": 5}, limit=2)
    place(offer, customer, a=1)
    with pytest.raises(OverLimit) as refused:
        place(offer, customer, a=2, b=1)
    assert (refused.value.sku, refused.value.limit, refused.value.taken) == ("a", 2, 1)
    place(offer, new_customer(), a=2)
    assert orders_in() == 2
    assert_books(a=(2, 3), b=(5, 0))


@pytest.mark.parametrize("name", [*SAVING, "lua-queue"])
def test_who_wants_more_than_anybody_may_have_is_told_the_limit_and_not_that_it_is_sold_out(
    customer: int, name: str
) -> None:
    offer = on_sale({"a": 5, "b": 1}, strategy=name, limit=2)
    first = place(offer, customer, key="mine", a=1)
    save_queued()
    for _ in range(2):  # the second time this process might remember that it is sold out
        with pytest.raises(OverLimit) as refused:
            place(offer, customer, a=999, b=1)
        assert (refused.value.sku, refused.value.limit, refused.value.taken) == ("a", 2, 1)
    with pytest.raises(OverLimit):
        place(offer, new_customer(), b=3)
    # The key comes first: it stands for an order, or for another body than this one.
    with pytest.raises(KeyReused):
        place(offer, customer, key="mine", a=999)
    SaleItem.objects.update(limit=0)
    offers.forget(offer.sale)
    again = place(offer, customer, key="mine", a=1)
    assert (again.order.pk, again.replayed) == (first.order.pk, True)
    assert orders_in() == 1
    assert_books(a=(4, 1), b=(1, 0))


# What is refused before anything is taken


@pytest.mark.parametrize(
    ("opens", "closes", "is_open"),
    [
        pytest.param(timedelta(hours=1), timedelta(hours=2), False, id="not yet"),
        pytest.param(timedelta(hours=-2), timedelta(hours=-1), False, id="over"),
        pytest.param(timedelta(hours=-1), timedelta(hours=1), True, id="open"),
    ],
)
@pytest.mark.parametrize("name", SAVING)
def test_only_an_open_sale_sells(customer: int, name: str, opens: timedelta, closes: timedelta, is_open: bool) -> None:
    offer = on_sale({"a": 1}, strategy=name, opens=opens, closes=closes)
    if is_open:
        place(offer, customer, a=1)
    else:
        with pytest.raises(SaleNotOpen):
            place(offer, customer, a=1)
    assert_books(a=(0, 1) if is_open else (1, 0))


def test_a_sale_is_open_from_its_first_moment_until_just_before_its_last(customer: int) -> None:
    offer = offers.read(on_sale({"a": 1}).sale)
    assert offer is not None
    moment = timedelta(microseconds=1)
    assert [offer.is_open(offer.opens_at - moment), offer.is_open(offer.opens_at)] == [False, True]
    assert [offer.is_open(offer.closes_at - moment), offer.is_open(offer.closes_at)] == [True, False]


def test_an_unknown_sale_and_a_product_that_the_sale_does_not_offer_are_refused(customer: int) -> None:
    offer, another = on_sale({"a": 1}), on_sale({"b": 1})
    with pytest.raises(UnknownSale):
        place_order(customer=customer, sale=2**62, quantities=offer.cart(a=1), key="mine")
    with pytest.raises(UnknownProduct) as refused:
        place_order(customer=customer, sale=offer.sale, quantities={**offer.cart(a=1), **another.cart(b=1)}, key="mine")
    assert refused.value.product == another.products["b"]
    assert_books(a=(1, 0), b=(1, 0))


@pytest.mark.parametrize("name", SAVING)
def test_a_customer_who_was_deleted_buys_nothing(customer: int, name: str) -> None:
    offer = on_sale({"a": 1}, strategy=name)
    User.objects.filter(pk=customer).delete()
    with pytest.raises(UnknownCustomer):
        place(offer, customer, a=1)
    assert_books(a=(1, 0))


def test_it_does_not_run_inside_a_transaction(customer: int) -> None:
    offer = on_sale({"a": 1})
    with transaction.atomic(), pytest.raises(RuntimeError):
        place(offer, customer, a=1)
    assert_books(a=(1, 0))


# What an order is worth


def test_an_order_keeps_the_price_of_its_moment(customer: int) -> None:
    offer = on_sale({"a": 2}, price="5.00")
    place(offer, customer, key="mine", a=1)
    SaleItem.objects.update(price=Decimal("7.00"))
    offers._remembered.clear()
    place(offer, customer, key="later", a=1)
    again = place(offer, customer, key="mine", a=1)
    assert [item.price for item in again.order.items] == [Decimal("5.00")]
    assert sorted(OrderItem.objects.values_list("price", flat=True)) == [Decimal("5.00"), Decimal("7.00")]


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ({1: 1, 2: 2}, {2: 2, 1: 1}, True),
        ({1: 1}, {1: 2}, False),
        ({1: 1}, {2: 1}, False),
        ({1: 12}, {11: 2}, False),
    ],
)
def test_two_bodies_have_one_hash_when_they_say_the_same(
    one: Mapping[int, int], two: Mapping[int, int], same: bool
) -> None:
    products = {number: offers.Offered(number, f"sku{number}", "", Decimal(1), None) for number in (1, 2, 11)}
    offer = offers.Offer(1, "", None, None, "lua", True, products)  # type: ignore[arg-type]
    hashes = {make_request(offer, customer=1, quantities=cart, key="").body_hash for cart in (one, two)}
    assert len(hashes) == (1 if same else 2)
