"""Placing orders: one order per idempotency key, and a refused request sells nothing."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from inventory import sold_out, stock
from inventory.errors import OverLimit, SoldOut, StockBusy, StockReserved, TryAgain, UnknownCustomer
from inventory.requests import OrderRequest, Placement, Save
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from locking import held
from shop import conservation
from shop.models import Allowance, Order, OrderItem, SaleItem
from shop.orders.customer_changes import cancel_order
from shop.orders.errors import KeyReused, SaleNotOpen, StillRunning, UnknownProduct, UnknownSale
from shop.orders.lookup import which_are_used
from shop.orders.place import hash_of_body, make_request, place_order, place_request
from shop.orders.queued import save_queued
from shop.orders.receipts import Placed
from shop.sales import offers
from tests.factories import (
    SAVING,
    OnSale,
    at_once,
    begin,
    close_now,
    count_by_kind,
    elsewhere,
    fast_and_slow,
    new_customer,
    on_sale,
    orders_in,
)
from tests.shop.conftest import buy, race
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def assert_books(**expected: tuple[int, int]) -> None:
    """Check the units on hand and sold of each sku, and the conservation law."""
    figures = conservation.figures()
    assert {row.sku: (row.on_hand, row.sold) for row in figures} == expected
    assert all(row.conserved for row in figures)


def request_of(offer: OnSale, customer: int, **units: int) -> tuple[OrderRequest, offers.Offer]:
    """Return an order request with the key `mine`, and its offer (the products and prices of the sale)."""
    known = offers.read(offer.sale)
    assert known is not None
    request = make_request(
        known, customer=customer, quantities=offer.cart(**units), key="mine", expected_prices=offer.prices
    )
    return request, known


class Paused(Strategy):
    """A strategy that saves the order, and waits before it commits."""

    name = "paused"

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.saved = threading.Event()
        self.go_on = threading.Event()

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        def save_and_wait(requests: Any) -> Any:
            refusals = save(requests)
            self.saved.set()
            assert self.go_on.wait(WAIT_TIMEOUT)
            return refusals

        return self.strategy.place(order, save_and_wait)


STATEMENTS = {
    **dict.fromkeys(["group-commit", "guarded-update", "lua", "redis-lock"], "WITH"),
    "segmented-lock": "SELECT BEGIN UPDATE WITH COMMIT",  # SELECT reads the segments first.
    "unit-rows": "BEGIN DELETE WITH COMMIT",
}


@pytest.mark.parametrize(("name", "statements"), STATEMENTS.items())
def test_an_order_needs_few_statements(customer: int, name: str, statements: str) -> None:
    offer = on_sale({"a": 3}, strategy=name, limit=3)
    offers.cache.put(offer.sale, offers.read(offer.sale), refresh_at=math.inf)
    with CaptureQueriesContext(connection) as queries:
        buy(offer, customer, a=1)
    assert " ".join(query["sql"].split()[0] for query in queries) == statements
    assert [query for query in queries if "shop_ending" in query["sql"]] == [], "only an ending writes this table"


@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_the_same_key_and_body_is_the_same_order(customer: int, name: str) -> None:
    offer = on_sale({"a": 9, "b": 5}, strategy=name)
    first = buy(offer, customer, key="mine", a=2, b=1)
    for cart in ({"a": 2, "b": 1}, {"b": 1, "a": 2}):
        again = buy(offer, customer, key="mine", **cart)
        assert (again.order, again.replayed) == (first.order, True)
    assert_books(a=(7, 2), b=(4, 1))
    # Negative controls: another key, and another customer.
    for who, key in ((customer, "other"), (new_customer(), "mine")):
        assert not buy(offer, who, key=key, a=2).replayed
    assert_books(a=(3, 6), b=(4, 1))
    assert (registry.counters().reserved(), held(registry.counters().client)) == ({}, [])


def test_a_retry_shows_the_present_state(customer: int) -> None:
    offer = on_sale({"a": 5})
    first = buy(offer, customer, key="mine", a=1)
    for state in ("paid", "expired"):
        Order.objects.update(state=state)
        again = buy(offer, customer, key="mine", a=1)
        assert (again.order.pk, again.order.state) == (first.order.pk, state)


def sell_out(offer: OnSale) -> None:
    buy(offer, new_customer(), a=stock.on_hand("a"))


def remove_products(offer: OnSale) -> None:
    SaleItem.objects.filter(sale=offer.sale).delete()
    offers.forget(offer.sale)


SINCE: dict[str, tuple[Callable[[OnSale], None], type[Exception] | None]] = {
    "open": (lambda offer: None, None),
    "sold out": (sell_out, SoldOut),
    "closed": (close_now, SaleNotOpen),
    "without its products": (remove_products, UnknownProduct),
}
"""For what a sale has become: a function that does it, and the error of an order with a new key."""


@pytest.mark.parametrize("since", SINCE)
@pytest.mark.parametrize("name", ["guarded-update", "lua"])
def test_a_key_stays_with_its_order_whatever_the_sale_has_become(customer: int, name: str, since: str) -> None:
    offer = on_sale({"a": 5, "b": 5}, strategy=name)
    first = buy(offer, customer, key="mine", a=1)
    become, error = SINCE[since]
    become(offer)
    before = orders_in()
    again = buy(offer, customer, key="mine", a=1)
    assert (again.order, again.replayed) == (first.order, True)
    if error is not None:
        with pytest.raises(error):
            buy(offer, customer, key="new", a=1)
    for other, cart in ((offer, {"a": 2}), (offer, {"b": 1}), (on_sale({"a": 0}, preheat=False), {"a": 1})):
        with pytest.raises(KeyReused):
            buy(other, customer, key="mine", **cart)
    assert orders_in() == before
    assert list(OrderItem.objects.filter(order=first.order.pk).values_list("product", "quantity")) == [("a", 1)]


def test_keys_are_looked_up_as_they_are_and_in_one_query(customer: int) -> None:
    """Even `null`: Postgres reads an unquoted `null` in an array as NULL."""
    offer, other = on_sale({"a": 9}), new_customer()
    used = [(customer, "one"), (other, "two"), *((customer, key) for key in ("null", "NULL", "a:b~c.d_e-f"))]
    for who, key in used:
        buy(offer, who, key=key, a=1)
    keys = [(other, "one"), (customer, "new"), (other, "null"), *used, (customer, "one")]
    with CaptureQueriesContext(connection) as asked:
        assert which_are_used(keys) == [False] * 3 + [True] * 6
    assert len(asked) == 1


def test_sold_out_is_remembered_for_sold_out_ttl(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    offer, asked = on_sale({"a": 1}), Asked(monkeypatch)
    for moment, expected in ((0.0, 1), (0.2, 1), (0.2, 2)):
        asked.now += moment
        error = refused(offer, customer, a=2)
        assert (error.wanted, error.left) == (2, 1)
        assert asked.times == expected, "refusals do not prolong it"
    assert not buy(offer, customer, key="one", a=1).replayed, "one unit is left"


class Asked:
    """Counts the calls of a strategy, and runs an action during the next call. The clock stands still.

    A request that asks again whether sold-out stock has come back is called a probe.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "guarded-update") -> None:
        self.strategy, self.times, self.now = registry.get(name), 0, 1000.0
        self.meanwhile: Callable[[], None] = lambda: None
        self.place = self.strategy.place
        monkeypatch.setattr(self.strategy, "place", self._place)
        monkeypatch.setattr("inventory.sold_out.time.monotonic", lambda: self.now)

    def _place(self, *arguments: Any) -> Placement:
        self.times += 1
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return self.place(*arguments)


def test_one_request_probes_and_the_others_are_refused(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    offer, asked = on_sale({"a": 1, "b": 5}), Asked(monkeypatch)

    def others() -> None:
        refused(offer, customer, a=2)
        refused(offer, customer, a=2, b=1)
        buy(offer, customer, a=1)

    refused(offer, customer, a=2)
    asked.now += 0.3
    asked.meanwhile = others
    refused(offer, customer, a=2)
    assert asked.times == 3, "the first request, the probe, and the one that wants no more than is left"


def returned_elsewhere(offer: OnSale, customer: int, asked: Asked, *, wanted: int) -> None:
    """Refuse an order as sold out, deliver units without telling this process, and let `SOLD_OUT_TTL` pass."""
    refused(offer, customer, a=wanted)
    stock.deliver("a", 8)
    asked.now += 0.3


def test_a_probe_that_is_sold_its_units_lets_everybody_try(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    offer, asked = on_sale({"a": 1}), Asked(monkeypatch)
    refused(offer, customer, a=2)
    stock.deliver("a", 8)
    refused(offer, customer, a=2)
    asked.now += 0.3
    buy(offer, customer, a=2)
    asked.meanwhile = partial(buy, offer, customer, a=2)
    buy(offer, customer, a=2)
    assert_books(a=(3, 6))


def test_of_two_requests_that_would_probe_at_once_one_is_refused(
    customer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer, asked = on_sale({"a": 1}), Asked(monkeypatch)
    refused(offer, customer, a=2)
    asked.now += 0.3
    claim = sold_out.units_left.claim

    def claimed_by_another(due: Any, *, until: float) -> Any:
        claim(due, until=until)
        monkeypatch.setattr(sold_out.units_left, "claim", claim)
        return claim(due, until=until)

    monkeypatch.setattr(sold_out.units_left, "claim", claimed_by_another)
    refused(offer, customer, a=2)
    assert asked.times == 1


def test_a_request_refused_for_another_sku_probes_nothing(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise carts with a sold-out sku would keep other customers from units that are available again."""
    offer, asked = on_sale({"a": 1, "b": 1}), Asked(monkeypatch)
    refused(offer, customer, a=2)
    asked.now += 0.2
    refused(offer, customer, b=2)
    stock.deliver("a", 8)
    asked.now += 0.1
    assert refused(offer, customer, a=2, b=2).sku == "b"
    buy(offer, customer, a=2)


def refused(offer: OnSale, customer: int, **cart: int) -> SoldOut:
    with pytest.raises(SoldOut) as error:
        buy(offer, customer, **cart)
    return error.value


def test_a_probe_refused_for_another_sku_lets_the_next_one_probe(
    customer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise b would be refused although it is in stock, while carts with `a` keep probing."""
    offer, asked = on_sale({"a": 1, "b": 1}), Asked(monkeypatch)
    refused(offer, customer, a=2)
    refused(offer, customer, b=2)
    stock.deliver("b", 8)
    asked.now += 0.3
    assert (refused(offer, customer, a=2, b=2).sku, asked.times) == ("a", 3)
    asked.meanwhile = partial(refused, offer, customer, b=2)
    buy(offer, customer, b=2)


@pytest.mark.parametrize("error", [StockBusy("no lock"), UnknownCustomer(1), OperationalError("no server")], ids=repr)
def test_a_probe_that_fails_lets_the_next_one_probe(
    customer: int, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    offer, asked = on_sale({"a": 1}), Asked(monkeypatch)
    returned_elsewhere(offer, customer, asked, wanted=2)

    def fail() -> None:
        refused(offer, customer, a=2)
        raise error

    asked.meanwhile = fail
    with pytest.raises(type(error)):
        buy(offer, customer, key="two", a=2)
    asked.meanwhile = partial(refused, offer, customer, a=2)
    assert not buy(offer, customer, key="three", a=2).replayed


def test_a_probe_does_not_drop_newer_knowledge(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow probe does not overwrite a newer finding that even fewer units are left."""
    offer, asked = on_sale({"a": 2}), Asked(monkeypatch)
    returned_elsewhere(offer, customer, asked, wanted=3)

    def another() -> None:
        asked.now += 0.3
        refused(offer, customer, a=11)

    asked.meanwhile = another
    buy(offer, customer, a=3)
    times = asked.times
    refused(offer, customer, a=11)
    assert asked.times == times


def test_reserved_units_are_not_remembered_as_sold_out(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for no more than the reserved units gets "try again", because they may be released."""
    offer = on_sale({"a": 1}, strategy="lua")
    first, answers = new_customer(), []

    def fail(requests: Sequence[OrderRequest]) -> Any:
        for wanted in (2, 1):
            with pytest.raises((SoldOut, StockReserved)) as refused:
                elsewhere(partial(buy, offer, customer, a=wanted))
            answers.append(refused.type)
        raise OperationalError("no server")

    monkeypatch.setattr("shop.orders.place.save", fail)
    with pytest.raises(OperationalError):
        buy(offer, first, a=1)
    assert answers == [SoldOut, StockReserved]
    monkeypatch.undo()
    assert not buy(offer, customer, a=1).replayed


def test_returned_units_are_sold_at_once_in_this_process(customer: int) -> None:
    offer = on_sale({"a": 1})
    first = buy(offer, customer, a=1)
    refused(offer, customer, a=1)
    cancel_order(first.order.pk, customer=customer)
    buy(offer, customer, a=1)


@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_a_second_request_with_the_key_is_told_that_the_first_is_running(customer: int, name: str) -> None:
    offer = on_sale({"a": 5}, strategy=name)
    first = Paused(registry.get(name))
    request, known = request_of(offer, customer, a=1)
    with ThreadPoolExecutor(1) as pool:
        placing = pool.submit(elsewhere, partial(place_request, request, known, first))
        try:
            assert first.saved.wait(WAIT_TIMEOUT)
            for units in (1, 4):
                with pytest.raises(StillRunning):
                    buy(offer, customer, key="mine", a=units)
            assert orders_in() == 0
        finally:
            first.go_on.set()
        placed = placing.result(WAIT_TIMEOUT)

    again = buy(offer, customer, key="mine", a=1)
    assert (placed.replayed, again.order, again.replayed) == (False, placed.order, True)
    assert_books(a=(4, 1))


@pytest.fixture
def many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep requests in this process from seeing each other, as if each ran in another process."""

    class Unseen(dict[Any, Any]):
        def setdefault(self, key: Any, default: Any = None) -> Any:
            return default

        def __delitem__(self, key: Any) -> None:
            pass

    monkeypatch.setattr("shop.orders.place._running", Unseen())


def test_in_another_process_the_second_request_waits_at_the_unique_index(customer: int, many_processes: None) -> None:
    # Use different skus, so that the second request waits for the key and not for the stock row.
    offer = on_sale({"a": 5, "b": 5})
    first, known = request_of(offer, customer, a=1)
    second, _ = request_of(offer, customer, b=1)
    place = partial(place_request, offer=known, strategy=registry.get("guarded-update"))
    with pytest.raises(KeyReused):
        race(partial(place, first), partial(place, second), after="INSERT INTO shop_order")
    assert Order.objects.get().pk == first.id
    assert_books(a=(4, 1), b=(5, 0))


def patiently(offer: OnSale, customer: int, key: str) -> str:
    """Buy one unit. Repeat the request while the error says to try again."""

    def once() -> str:
        try:
            return "replayed" if buy(offer, customer, key, a=1).replayed else "placed"
        except (TryAgain, StillRunning):
            return ""

    return wait_for(once, "an answer other than to try again")


@pytest.mark.parametrize(
    ("processes", "units"), [("one", 10), ("many", 1), pytest.param("many", 10, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_requests_at_once_with_one_key_are_one_order(
    customer: int, request: pytest.FixtureRequest, name: str, processes: str, units: int
) -> None:
    if processes == "many":
        request.getfixturevalue("many_processes")
    offer = on_sale({"a": units}, strategy=name)
    answers = count_by_kind(at_once(*[partial(patiently, offer, customer, "mine")] * 8))
    assert answers == {"placed": 1, "replayed": 7}
    assert_books(a=(units - 1, 1))


@pytest.mark.parametrize("name", ["guarded-update", "lua"])
def test_a_retry_in_another_process_is_not_told_sold_out(customer: int, many_processes: None, name: str) -> None:
    """A retry in another process is not told "sold out" while its own order, with the last unit, is being saved."""
    offer = on_sale({"a": 1}, strategy=name)
    first = Paused(registry.get(name))
    request, known = request_of(offer, customer, a=1)

    def retry() -> Placed | None:
        with suppress(TryAgain):
            return buy(offer, customer, key="mine", a=1)
        return None

    with ThreadPoolExecutor(2) as pool:
        try:
            placing = pool.submit(elsewhere, partial(place_request, request, known, first))
            assert first.saved.wait(WAIT_TIMEOUT)
            early = begin(pool, retry)
        finally:
            first.go_on.set()
        assert placing.result(WAIT_TIMEOUT).replayed is False
        answer = early.result(WAIT_TIMEOUT) or buy(offer, customer, key="mine", a=1)
    assert (answer.order.pk, answer.replayed) == (request.id, True)
    assert_books(a=(0, 1))


@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_concurrent_orders_of_a_customer_keep_to_the_limit(customer: int, name: str) -> None:
    offer = on_sale({"a": 10}, strategy=name, limit=2)
    answers = count_by_kind(at_once(*[lambda: buy(offer, customer, a=1).replayed] * 8))
    assert answers == {"False": 2, "OverLimit": 6}
    assert list(Allowance.objects.values_list("taken", flat=True)) == [2]
    assert_books(a=(8, 2))
    assert registry.counters().reserved() == {}


@pytest.mark.parametrize("name", fast_and_slow([*SAVING, "lua-queue"]))
def test_more_than_the_limit_is_over_limit_and_not_sold_out(customer: int, name: str) -> None:
    offer = on_sale({"a": 5, "b": 1}, strategy=name, limit=2)
    first = buy(offer, customer, key="mine", a=1)
    save_queued()
    for _ in range(2):  # The second request might find b remembered as sold out.
        with pytest.raises(OverLimit) as refused:
            buy(offer, customer, a=999, b=1)
        assert (refused.value.sku, refused.value.limit, refused.value.taken) == ("a", 2, 1)
    with pytest.raises(OverLimit):
        buy(offer, new_customer(), b=3)
    # The key is looked up first, because it may belong to an order.
    with pytest.raises(KeyReused):
        buy(offer, customer, key="mine", a=999)
    SaleItem.objects.update(limit=0)
    offers.forget(offer.sale)
    again = buy(offer, customer, key="mine", a=1)
    assert (again.order.pk, again.replayed) == (first.order.pk, True)
    assert orders_in() == 1
    assert_books(a=(4, 1), b=(1, 0))


def test_a_sale_is_open_from_opens_at_until_before_closes_at(customer: int) -> None:
    offer = offers.read(on_sale({"a": 1}).sale)
    assert offer is not None
    moment = timedelta(microseconds=1)
    assert [offer.is_open(offer.opens_at - moment), offer.is_open(offer.opens_at)] == [False, True]
    assert [offer.is_open(offer.closes_at - moment), offer.is_open(offer.closes_at)] == [True, False]


@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_a_deleted_customer_buys_nothing(customer: int, name: str) -> None:
    offer = on_sale({"a": 1}, strategy=name)
    User.objects.filter(pk=customer).delete()
    with pytest.raises(UnknownCustomer):
        buy(offer, customer, a=1)
    assert_books(a=(1, 0))


def test_a_retry_finds_its_order_when_the_sale_is_gone(customer: int) -> None:
    offer, gone = on_sale({"a": 2}), 2**62
    cart, prices = offer.cart(a=1), offer.prices
    placed = place_order(customer=customer, sale=offer.sale, quantities=cart, key="one", expected_prices=prices)
    Order.objects.update(body_hash=hash_of_body(gone, cart, prices))
    again = place_order(customer=customer, sale=gone, quantities=cart, key="one", expected_prices=prices)
    assert (again.order.pk, again.replayed) == (placed.order.pk, True)
    with pytest.raises(KeyReused):
        place_order(customer=customer, sale=gone, quantities={**cart, 2**40: 1}, key="one", expected_prices=prices)
    with pytest.raises(UnknownSale):
        place_order(customer=customer, sale=gone, quantities=cart, key="another", expected_prices=prices)
