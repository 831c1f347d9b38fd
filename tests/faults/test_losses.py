"""Every loss that a round may show is shown: by a sale that has it, beside one that has not."""

from __future__ import annotations

from uuid import uuid4

import pytest
import uuid_utils.compat

from inventory.audit import Figures
from inventory.counters.segmented import name_of
from inventory.counters.whole import Counters
from inventory.models import StockItem
from inventory.strategies import registry
from shop.models import Order
from shop.orders.place import place_order
from tests.factories import OnSale, new_customer, new_request, on_sale
from tests.faults.buyers import Wish
from tests.faults.rounds import drift_in_redis, losses_in_tables, losses_of, units_reserved

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

NONE_IN_TABLES = {"missing": 0, "untold": 0, "two orders for one key": 0, "unconserved": []}
NONE_SEEN = {"unanswered": 0, "queued for ever": 0, "wrong answers": [], "two answers for one key": 0}


@pytest.fixture
def offer() -> OnSale:
    return on_sale({"a": 5})


@pytest.fixture
def wish(offer: OnSale) -> Wish:
    """A wish that has become an order, and been answered so."""
    made = Wish(new_customer(), str(uuid4()), offer.sale, [(offer.products["a"], 2)])
    placed = place_order(customer=made.customer, sale=made.sale, quantities=dict(made.cart), key=made.key)
    made.orders.add(str(placed.order.pk))
    made.answered = True
    return made


def in_tables(offer: OnSale, *wishes: Wish) -> dict[str, object]:
    return losses_in_tables(offer.sale, offer.products, wishes)


def test_an_order_that_was_answered_and_is_there_is_no_loss(offer: OnSale, wish: Wish) -> None:
    assert in_tables(offer, wish) == NONE_IN_TABLES
    assert losses_of([wish]) == NONE_SEEN


def test_an_order_that_was_answered_and_is_not_there_is_missing(offer: OnSale, wish: Wish) -> None:
    wish.orders = {str(uuid4())}
    assert in_tables(offer, wish) == NONE_IN_TABLES | {"missing": 1, "untold": 1}


def test_an_order_that_nobody_was_told_of_is_untold(offer: OnSale, wish: Wish) -> None:
    wish.orders = set()
    assert in_tables(offer, wish) == NONE_IN_TABLES | {"untold": 1}


def test_a_customer_with_two_orders_for_his_one_key(offer: OnSale, wish: Wish) -> None:
    second = Order.objects.get()
    second.pk, second.key = uuid_utils.compat.uuid7(), "another"
    second.save(force_insert=True)
    wish.orders.add(str(second.pk))
    assert in_tables(offer, wish) == NONE_IN_TABLES | {"two orders for one key": 1}
    assert losses_of([wish]) == NONE_SEEN | {"two answers for one key": 1}


def test_units_that_neither_an_order_has_nor_the_stock(offer: OnSale, wish: Wish) -> None:
    StockItem.objects.update(on_hand=2)
    assert in_tables(offer, wish)["unconserved"] == [str(Figures("a", 5, 2, 2))]


def test_what_buyers_saw_go_wrong() -> None:
    served = Wish(1, "1", 1, [], answered=True, refusals={"sold-out"})
    left = Wish(2, "2", 1, [], gave_up=True)
    queued = Wish(3, "3", 1, [], gave_up=True, queued=True)
    refused = Wish(4, "4", 1, [], answered=True, refusals={"sold-out", "invalid"})
    assert losses_of([served, left, queued, refused]) == NONE_SEEN | {
        "unanswered": 2,
        "queued for ever": 1,
        "wrong answers": ["invalid"],
    }


@pytest.mark.parametrize("strategy", ["lua", "segmented-redis"])
def test_units_in_redis_that_are_nobodys(strategy: str) -> None:
    offer = on_sale({"a": 10, "b": 10}, strategy=strategy)
    counters = registry.counters()
    a, b = ("a", "b") if strategy == "lua" else (name_of("a", 3), name_of("b", 0))
    request = new_request((a, 2), (b, 1))
    assert (units_reserved(offer.products), drift_in_redis(offer.products)) == (0, 0)
    counters.take(request)
    # Reserved by somebody, who may be dead.
    assert (units_reserved(offer.products), drift_in_redis(offer.products)) == (3, 0)

    counters.confirm_reservation(request.id, request.skus)
    assert (units_reserved(offer.products), drift_in_redis(offer.products)) == (0, 3)


@pytest.mark.parametrize("strategy", ["lua", "segmented-redis"])
def test_what_is_noted_for_an_order_that_is_saved_is_sold(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    offer = on_sale({"a": 10}, strategy=strategy)
    monkeypatch.setattr(Counters, "confirm_reservation", lambda *_: False)  # the process dies before
    place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=2), key="1")

    assert units_reserved(offer.products) == 2
    assert drift_in_redis(offer.products) == 0
