"""Cancelling, late payments, concurrent changes: an order ends in one state, and its units are counted once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError, connection

from inventory import stock
from inventory.counters.whole import Counters
from inventory.errors import OverLimit, SoldOut
from shop import conservation
from shop.models import Allowance, Order, Payment, SaleItem
from shop.orders import payments, saving, states
from shop.orders.customer_changes import cancel_order, pay_order
from shop.orders.errors import OrderError
from shop.orders.expiry import expire_unpaid
from shop.orders.saving import retake_units
from tests.factories import (
    SAVING,
    OnSale,
    at_once,
    count_by_kind,
    fast_and_slow,
    interleaved,
    new_customer,
    on_sale,
    slow,
)
from tests.shop.conftest import Gone, assert_conserved, buy, make_due, on_hand, race, state, taken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def place(offer: OnSale, customer: int, **units: int) -> UUID:
    return buy(offer, customer, **units).order.pk


def expired(offer: OnSale, customer: int, **units: int) -> UUID:
    order = place(offer, customer, **units)
    make_due()
    assert expire_unpaid() == 1
    return order


def pays(order: UUID, reference: str = "pay_1") -> payments.ReceivedPayment:
    """Report a payment of the whole order, as the provider does."""
    return payments.receive_payment(reference, order=order, amount=Order.objects.get(pk=order).total)


@pytest.mark.parametrize("name", fast_and_slow(SAVING))
def test_a_cancelled_order_returns_its_units_once(customer: int, name: str) -> None:
    offer = on_sale({"a": 10, "b": 10}, strategy=name, limit=9)
    order, other = place(offer, customer, a=2, b=1), place(offer, customer, a=4)
    seen = [cancel_order(order, customer=customer) for _ in range(3)]
    assert [(each.order.state, each.replayed) for each in seen] == [
        ("cancelled", again) for again in (False, True, True)
    ]
    assert (state(order), state(other)) == ("cancelled", "pending")
    counted = name == "lua"
    assert (on_hand("a"), on_hand("b")) == ((6, 6 if counted else None), (10, 10 if counted else None))
    assert taken() == {"a": 4, "b": 0}
    assert_conserved()
    make_due()
    assert expire_unpaid() == 1, "only the other one"
    assert on_hand("a")[0] == 10


@pytest.mark.parametrize("change", ["cancel", "expire"])
def test_without_redis_an_order_is_cancelled_or_expires(customer: int, redis_gone: Gone, change: str) -> None:
    order = place(on_sale({"a": 1}, strategy="lua"), customer, a=1)
    make_due()
    with redis_gone():
        assert act(change, order) == ALONE[change]
    # Until it is reconciled, the counter is too low, so nothing is sold twice.
    assert on_hand() == (1, 0)
    assert_conserved()


@pytest.mark.parametrize(("name", "asks"), [("group-commit", False), ("lua", True)])
def test_returned_units_lock_no_row_for_redis_if_it_has_no_counter(
    customer: int, monkeypatch: pytest.MonkeyPatch, name: str, asks: bool
) -> None:
    """Without a counter, a return of units does not use Redis under a row lock. The control has a counter.

    So a Redis that hangs does not stop a sale that needs only Postgres.
    """
    order = place(on_sale({"a": 1}, strategy=name), customer, a=1)
    locked: list[bool] = []
    original = Counters.order_ids

    def order_ids(counters: Counters) -> set[UUID]:
        locked.append(connection.in_atomic_block)
        return original(counters)

    monkeypatch.setattr(Counters, "order_ids", order_ids)
    cancel_order(order, customer=customer)
    assert any(locked) is asks
    assert on_hand() == (1, 1 if asks else None)


def test_redis_gets_units_back_and_loses_them_again_after_the_commit(customer: int) -> None:
    order = place(on_sale({"a": 1}, strategy="lua"), customer, a=1)
    seen: list[tuple[int, int | None]] = []
    with interleaved(lambda: seen.append(on_hand()), after='^UPDATE "shop_order"'):
        cancel_order(order, customer=customer)
    assert (seen, on_hand()) == ([(0, 0)], (1, 1))
    with interleaved(lambda: seen.append(on_hand()), after='^INSERT INTO "shop_payment"'):
        pays(order)
    assert (seen[1:], on_hand()) == ([(1, 1)], (0, 0))


@pytest.mark.parametrize("name", fast_and_slow(SAVING))
@pytest.mark.parametrize("ended", ["cancelled", *slow("expired")])
def test_a_late_payment_takes_units_and_allowance_again(customer: int, name: str, ended: str) -> None:
    offer = on_sale({"a": 10, "b": 10}, strategy=name, limit=2)
    order = place(offer, customer, a=2, b=1)
    if ended == "cancelled":
        cancel_order(order, customer=customer)
    make_due()
    expire_unpaid()
    assert (state(order), taken()) == (ended, {"a": 0, "b": 0})

    first, again = pays(order), pays(order)

    assert (first.payment, first.replayed, again.payment, again.replayed) == (again.payment, False, first.payment, True)
    assert first.payment.outcome == "paid"
    assert first.payment.note == f"The order was {ended}. Its units were taken again."
    assert state(order) == "paid"
    counted = name == "lua"
    assert (on_hand("a"), on_hand("b")) == ((8, 8 if counted else None), (9, 9 if counted else None))
    assert taken() == {"a": 2, "b": 1}
    assert expire_unpaid() == 0
    assert_conserved()


def test_a_late_payment_takes_the_whole_cart_or_nothing(customer: int) -> None:
    offer = on_sale({"a": 2, "b": 1}, strategy="lua", limit=2)
    order = expired(offer, customer, a=2, b=1)
    place(offer, new_customer(), b=1)
    refused = pays(order).payment
    assert (refused.outcome, state(order)) == ("refund_due", "expired")
    assert refused.note == "The order is expired. b: 1 wanted, 0 left"
    assert (on_hand("a"), on_hand("b")) == ((2, 2), (0, 0))
    assert dict(Allowance.objects.filter(customer=customer).values_list("sku", "taken")) == {"a": 0, "b": 0}
    assert_conserved()
    # Units that are returned later do not change the outcome of this payment.
    Order.objects.exclude(pk=order).update(state="cancelled")
    stock.give_back([("b", 1)])
    assert pays(order).payment == refused
    assert pays(order, "pay_2").payment.outcome == "paid"


@pytest.mark.parametrize("checked", [True, False], ids=["", "without the check"])
def test_a_late_payment_keeps_to_the_limit(customer: int, monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    offer = on_sale({"a": 9, "b": 9}, strategy="lua", limit=2)
    order = expired(offer, customer, a=1, b=2)
    place(offer, customer, a=1, b=1)
    if not checked:
        monkeypatch.setattr(saving, "COUNT_AGAIN", saving.COUNT_AGAIN.replace('taken > "limit"', "false"))
        assert pays(order).payment.outcome == "paid"
        assert taken() == {"a": 2, "b": 3}
        return
    refused = pays(order).payment
    assert (refused.outcome, state(order)) == ("refund_due", "expired")
    assert "b: at most 2 per customer, 1 taken already" in refused.note
    assert (on_hand("a"), on_hand("b")) == ((8, 8), (8, 8))
    assert taken() == {"a": 1, "b": 1}
    SaleItem.objects.update(limit=3)
    assert pays(order, "pay_2").payment.outcome == "paid"
    assert taken() == {"a": 2, "b": 3}
    assert_conserved()


def test_without_a_limit_a_late_payment_is_counted(customer: int) -> None:
    order = expired(on_sale({"a": 9}), customer, a=2)
    SaleItem.objects.all().delete()
    assert pays(order).payment.outcome == "paid"
    assert taken() == {"a": 2}


def test_without_redis_a_late_payment_takes_units_in_postgres(customer: int, redis_gone: Gone) -> None:
    offer = on_sale({"a": 1}, strategy="lua")
    order = expired(offer, customer, a=1)
    with redis_gone():
        assert pays(order).payment.outcome == "paid"
    # Redis still counts the unit, but the guard in Postgres refuses it.
    assert on_hand() == (0, 1)
    with pytest.raises(SoldOut):
        place(offer, new_customer(), a=1)
    assert_conserved()


SAME = ["pay_1"] * 8
DIFFERENT = [f"pay_{number}" for number in range(8)]


@pytest.mark.parametrize("was", ["pending", "expired"])
@pytest.mark.parametrize(
    ("references", "outcomes"), [(SAME, {"paid": 8}), (DIFFERENT, {"paid": 1, "refund_due": 7})], ids=["one", "many"]
)
def test_reports_at_once_pay_once(customer: int, references: list[str], outcomes: dict[str, int], was: str) -> None:
    offer = on_sale({"a": 64}, strategy="lua", limit=64)
    order = expired(offer, customer, a=2) if was == "expired" else place(offer, customer, a=2)
    answers = at_once(*(partial(pays, order, reference) for reference in references))
    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    assert count_by_kind([str(answer.payment.outcome) for answer in answers]) == outcomes  # type: ignore[union-attr]
    assert state(order) == "paid"
    assert (on_hand(), taken()) == ((62, 62), {"a": 2})
    assert Payment.objects.count() == len(set(references))
    assert Payment.objects.filter(outcome="paid").count() == 1
    notes = set(Payment.objects.filter(outcome="refund_due").values_list("note", flat=True))
    assert notes <= {"The order is already paid."}
    assert_conserved()


def unlocked(order: UUID, **filters: Any) -> Order:
    return Order.objects.prefetch_related("items__product").get(pk=order, **filters)


def unguarded(order: Order, new: Order.State) -> None:
    Order.objects.filter(pk=order.pk).update(state=new)
    order.state = new


@pytest.fixture
def without_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "locked", unlocked)


@pytest.fixture
def without_guard(without_lock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the lock and the guard."""
    monkeypatch.setattr(states, "change", unguarded)


class TestSecondPaymentDuringTheFirst:
    """A second payment comes between reading and changing the order. Lock, guard and unique index each prevent harm."""

    @pytest.fixture
    def order(self, customer: int) -> UUID:
        return expired(on_sale({"a": 9}), customer, a=1)

    def pay_twice(self, order: UUID) -> None:
        with interleaved(lambda: pays(order, "pay_2"), before="inventory_stockitem.*FOR NO KEY UPDATE"):
            pays(order, "pay_1")

    def test_without_the_lock_the_guard_refuses(self, order: UUID, without_lock: None) -> None:
        with pytest.raises(states.StateConflict):
            self.pay_twice(order)
        assert (on_hand()[0], state(order)) == (8, "paid")
        assert_conserved()
        assert pays(order, "pay_1").payment.outcome == "refund_due"

    def test_without_lock_and_guard_the_index_refuses(self, order: UUID, without_guard: None) -> None:
        with pytest.raises(IntegrityError, match="payment_pays_an_order_once"):
            self.pay_twice(order)
        assert on_hand()[0] == 8
        assert_conserved()

    def test_without_all_three_the_order_is_paid_twice(self, order: UUID, without_guard: None) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'payment_pays_an_order_once'")
            (index,) = cursor.fetchone()
            cursor.execute("DROP INDEX payment_pays_an_order_once")
            try:
                self.pay_twice(order)
                assert Payment.objects.filter(outcome="paid").count() == 2
                (figures,) = conservation.figures()
                assert (figures.on_hand, figures.sold, figures.drift) == (7, 1, 1)
            finally:
                Payment.objects.all().delete()
                cursor.execute(index)


THEN = {
    "cancelled": {"cancel": "cancelled", "expire": "0 expired", "pay": "NotPayable", "provider": "paid"},
    "expired": {"cancel": "NotCancellable", "expire": "0 expired", "pay": "NotPayable", "provider": "paid"},
    "paid": {"cancel": "NotCancellable", "expire": "0 expired", "pay": "paid", "provider": "refund_due"},
}
"""Results of changing an order that has ended, by state and change."""
ALONE = {"cancel": "cancelled", "expire": "1 expired", "pay": "paid", "provider": "paid"}
"""Results of changing a pending order."""
ENDS = {"cancel": "cancelled", "expire": "expired", "pay": "paid", "provider": "paid"}

POINTS = {
    "lock": "FOR (NO KEY )?UPDATE",
    "stock": "^UPDATE .?inventory_stockitem",
    "state": '^UPDATE "shop_order"',
    "payment": '^INSERT INTO "shop_payment"',
}
PASSES = {
    "cancel": ("lock", "stock", "state"),
    "expire": ("lock", "stock", "state"),
    "pay": ("lock", "state", "payment"),
    "provider": ("lock", "state", "payment"),
}


@pytest.fixture
def contested(customer: int) -> UUID:
    """A pending order of two units whose time to pay is over. Its customer has paid for three other units."""
    offer = on_sale({"a": 13}, strategy="lua", limit=5)
    pay_order(place(offer, customer, a=3), customer=customer)
    order = place(offer, customer, a=2)
    make_due()
    return order


def act(name: str, order: UUID, reference: str = "pay_1") -> str:
    """Change the order, and return the result as a short text."""
    customer = Order.objects.values_list("customer", flat=True).get(pk=order)
    try:
        match name:
            case "cancel":
                return cancel_order(order, customer=customer).order.state
            case "expire":
                return f"{expire_unpaid()} expired"
            case "pay":
                return pay_order(order, customer=customer).order.state
            case _:
                return str(pays(order, reference).payment.outcome)
    except OrderError as refused:
        return type(refused).__name__


def assert_ended_once(order: UUID) -> None:
    """Check that state, stock, counter, limit per customer and payments agree."""
    paid = state(order) == "paid"
    assert on_hand() == ((8, 8) if paid else (10, 10))
    assert taken() == {"a": 5 if paid else 3}
    assert Payment.objects.filter(order=order, outcome="paid").count() == paid
    assert_conserved()


@pytest.mark.parametrize("second", ALONE)
@pytest.mark.parametrize(
    ("first", "point"),
    [
        pytest.param(name, point, marks=() if point == "state" and name != "provider" else pytest.mark.slow)
        for name in PASSES
        for point in PASSES[name]
    ],
)
def test_the_holder_of_an_order_ends_it(contested: UUID, first: str, point: str, second: str) -> None:
    answers = race(partial(act, first, contested), partial(act, second, contested, "pay_2"), after=POINTS[point])
    assert answers == (ALONE[first], THEN[ENDS[first]][second])
    assert state(contested) == ("paid" if second == "provider" else ENDS[first])
    assert_ended_once(contested)


@pytest.mark.parametrize("second", ALONE)
@pytest.mark.parametrize("first", ["cancel", "provider", *slow("expire", "pay")])
def test_a_change_before_the_lock_wins(contested: UUID, first: str, second: str) -> None:
    answers = race(partial(act, first, contested), partial(act, second, contested, "pay_2"), before=POINTS["lock"])
    assert answers == (THEN[ENDS[second]][first], ALONE[second])
    assert_ended_once(contested)


@pytest.mark.parametrize("second", ["cancel", "expire", "pay", "provider"])
def test_without_the_lock_the_guard_undoes_a_cancellation(contested: UUID, second: str, without_lock: None) -> None:
    with pytest.raises(states.StateConflict):
        race(partial(act, "cancel", contested), partial(act, second, contested), before='^SELECT .*"shop_orderitem"')
    assert state(contested) == ENDS[second]
    assert_ended_once(contested)


@pytest.mark.parametrize("second", ["pay", "provider"])
def test_without_lock_and_guard_paid_units_are_sold_again(contested: UUID, second: str, without_guard: None) -> None:
    """Negative control: without lock and guard, paid units are sold again."""
    race(partial(act, "cancel", contested), partial(act, second, contested), before="^UPDATE .?inventory_stockitem")
    assert (state(contested), Payment.objects.filter(order=contested, outcome="paid").count()) == ("cancelled", 1)
    with pytest.raises(AssertionError):
        assert_ended_once(contested)


@pytest.mark.parametrize("names", [list(ALONE), ["cancel", "expire", "pay"]], ids=["", "without the provider"])
@pytest.mark.parametrize("round_", [0, *slow(1, 2, 3)])
def test_all_changes_at_once_end_an_order_once(contested: UUID, round_: int, names: list[str]) -> None:
    names = names * 4
    answers = at_once(*(partial(act, name, contested) for name in names))
    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    if "provider" in names:
        assert state(contested) == "paid", "the provider comes last, or takes the units again"
    else:
        told = {ENDS[name] for name, answer in zip(names, answers, strict=True) if answer == ALONE[name]}
        assert told == {state(contested)}
    assert_ended_once(contested)


def test_an_order_during_a_late_payment_keeps_to_the_limit(customer: int) -> None:
    offer = on_sale({"a": 9}, limit=2)
    order = expired(offer, customer, a=2)
    with pytest.raises(OverLimit):
        race(partial(pays, order), partial(place, offer, customer, a=1), after="INSERT INTO shop_allowance")
    assert (state(order), taken()) == ("paid", {"a": 2})
    assert_conserved()


@pytest.mark.parametrize("point", ["lock", "stock", "state"])
@pytest.mark.parametrize("change", ["cancel", "expire", "provider"], ids=["cancel", "expire", "late payment"])
def test_a_retry_does_not_deadlock_with_a_change(customer: int, change: str, point: str) -> None:
    """A retry, which holds the stock row and waits for a change of its order, causes no deadlock."""
    by_key = partial(buy, on_sale({"a": 3}), customer, "one", a=1)
    order = by_key().order.pk
    make_due()
    if change == "provider":
        cancel_order(order, customer=customer)
    answer, again = race(partial(act, change, order), by_key, after=POINTS[point])
    assert (answer, again.order.pk, again.replayed) == (ALONE[change], order, True)
    assert on_hand()[0] == (2 if change == "provider" else 3)
    assert_conserved()


def test_with_the_state_before_the_stock_it_deadlocks(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a late payment deadlocks if it writes the order before the stock."""
    by_key = partial(buy, on_sale({"a": 3}), customer, "one", a=1)
    order = by_key().order.pk
    cancel_order(order, customer=customer)

    def state_first(late: Order) -> None:
        states.change(late, Order.State.PAID)
        retake_units(late)

    monkeypatch.setattr(payments, "retake_units", state_first)
    with pytest.raises(OperationalError, match="deadlock"):
        race(partial(act, "provider", order), by_key, after='^UPDATE "shop_order"')


def test_orders_cancellations_expiry_and_payments_do_not_deadlock() -> None:
    offer = on_sale({"a": 200, "b": 200, "c": 200}, limit=50)
    late = [place(offer, new_customer(), **cart) for cart in [{"a": 1, "c": 2}, {"c": 1, "b": 1}, {"b": 2, "a": 1}] * 2]
    for order in late:
        cancel_order(order, customer=Order.objects.get(pk=order).customer_id)
    due = [place(offer, new_customer(), b=1, c=1, a=1) for _ in range(4)]
    make_due()
    fresh = [place(offer, new_customer(), c=1, a=1) for _ in range(4)]
    buyers = [new_customer() for _ in range(4)]
    bodies: list[Callable[[], Any]] = [
        *(partial(pays, order, f"late {order}") for order in late),
        *(partial(act, "cancel", order) for order in fresh),
        *(partial(place, offer, buyer, b=1, a=1) for buyer in buyers),
        *[partial(expire_unpaid, batch=2)] * 2,
    ]
    answers = at_once(*bodies)
    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    assert Order.objects.filter(pk__in=due, state="expired").count() == len(due)
    assert Order.objects.filter(pk__in=late, state="paid").count() == len(late)
    assert_conserved()
