"""An order ends in one way, whoever else is changing it: paid, cancelled or expired, and its units are in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.utils import timezone

from inventory import stock
from inventory.errors import OverLimit, SoldOut
from inventory.models import StockMovement
from inventory.strategies import registry
from shop import conservation
from shop.models import Allowance, Order, Payment, SaleItem
from shop.orders import payments, saving, states
from shop.orders.customer_changes import cancel_order, pay_order
from shop.orders.errors import NotCancellable, OrderError
from shop.orders.expiry import expire_unpaid
from shop.orders.place import place_order
from shop.orders.saving import reject, take_again
from tests.factories import SAVING, OnSale, at_once, interleaved, new_customer, new_request, on_sale, tally
from tests.shop.conftest import Gone
from tests.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def customer(db: None) -> int:
    return new_customer()


def place(offer: OnSale, customer: int, **units: int) -> UUID:
    cart = offer.cart(**units)
    return place_order(customer=customer, sale=offer.sale, quantities=cart, key=str(uuid4())).order.pk


def make_due() -> None:
    """Let the time to pay be over."""
    Order.objects.update(payable_from=timezone.now() - timedelta(seconds=settings.ORDER_TTL))


def expired(offer: OnSale, customer: int, **units: int) -> UUID:
    order = place(offer, customer, **units)
    make_due()
    assert expire_unpaid() == 1
    return order


def pays(order: UUID, reference: str = "pay_1") -> payments.Received:
    """The provider reports a payment of the whole order."""
    return payments.receive(reference, order=order, amount=Order.objects.get(pk=order).total)


def state(order: UUID) -> str:
    return Order.objects.get(pk=order).state


def on_hand(sku: str = "a") -> tuple[int, int | None]:
    """In Postgres and in Redis."""
    return stock.on_hand(sku), registry.counters().left([sku])[sku]


def taken() -> dict[str, int]:
    return dict(Allowance.objects.values_list("sku", "taken"))


def assert_conserved() -> None:
    assert all(row.conserved for row in conservation.figures())


# Cancelling


@pytest.mark.parametrize("name", SAVING)
def test_what_is_cancelled_comes_back_once_however_often(customer: int, name: str) -> None:
    offer = on_sale({"a": 10, "b": 10}, strategy=name, limit=9)
    order, other = place(offer, customer, a=2, b=1), place(offer, customer, a=4)
    seen = [cancel_order(order, customer=customer) for _ in range(3)]
    assert [(each.order.state, each.replayed) for each in seen] == [
        ("cancelled", False),
        ("cancelled", True),
        ("cancelled", True),
    ]
    assert (state(order), state(other)) == ("cancelled", "pending")
    counted = name == "lua"
    assert (on_hand("a"), on_hand("b")) == ((6, 6 if counted else None), (10, 10 if counted else None))
    assert taken() == {"a": 4, "b": 0}
    assert_conserved()
    make_due()
    assert expire_unpaid() == 1, "the other one alone"
    assert on_hand("a")[0] == 10


@pytest.mark.parametrize("ended", ["paid", "expired", "rejected"])
def test_only_a_pending_order_is_cancelled(customer: int, ended: str) -> None:
    offer = on_sale({"a": 10}, limit=9)
    match ended:
        case "paid":
            pay_order(order := place(offer, customer, a=2), customer=customer)
        case "expired":
            order = expired(offer, customer, a=2)
        case _:
            request = new_request(("a", 2), customer=customer, sale=offer.sale)
            with transaction.atomic():
                reject({request: "no"})
            order = request.id
    with pytest.raises(NotCancellable, match=f"The order is {ended}."):
        cancel_order(order, customer=customer)
    assert state(order) == ended
    assert on_hand()[0] == (8 if ended == "paid" else 10)
    assert_conserved()


def test_nobody_cancels_the_order_of_somebody_else(customer: int) -> None:
    order = place(on_sale({"a": 1}), customer, a=1)
    for whose, which in ((new_customer(), order), (customer, uuid4())):
        with pytest.raises(Order.DoesNotExist):
            cancel_order(which, customer=whose)
    assert (state(order), on_hand()[0]) == ("pending", 0)


def test_without_redis_an_order_is_cancelled_all_the_same(customer: int, redis_gone: Gone) -> None:
    order = place(on_sale({"a": 1}, strategy="lua"), customer, a=1)
    with redis_gone():
        cancel_order(order, customer=customer)
    # The counter is too low until it is reconciled: nothing is sold that is not there.
    assert on_hand() == (1, 0)
    assert_conserved()


def test_in_redis_nothing_comes_back_before_the_commit(customer: int) -> None:
    order = place(on_sale({"a": 1}, strategy="lua"), customer, a=1)
    seen: list[tuple[int, int | None]] = []
    with interleaved(lambda: seen.append(on_hand()), after='^UPDATE "shop_order"'):
        cancel_order(order, customer=customer)
    assert (seen, on_hand()) == ([(0, 0)], (1, 1))


# A payment that comes late


@pytest.mark.parametrize("name", SAVING)
@pytest.mark.parametrize("ended", ["cancelled", "expired"])
def test_a_late_payment_takes_units_and_allowance_again_once(customer: int, name: str, ended: str) -> None:
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
    assert first.payment.note == f"The order was {ended}; its units were taken again."
    assert state(order) == "paid"
    counted = name == "lua"
    assert (on_hand("a"), on_hand("b")) == ((8, 8 if counted else None), (9, 9 if counted else None))
    assert taken() == {"a": 2, "b": 1}
    assert expire_unpaid() == 0
    assert_conserved()


def test_of_a_cart_whose_units_are_gone_nothing_is_taken_again(customer: int) -> None:
    offer = on_sale({"a": 2, "b": 1}, strategy="lua", limit=2)
    order = expired(offer, customer, a=2, b=1)
    place(offer, new_customer(), b=1)
    said = pays(order).payment
    assert (said.outcome, state(order)) == ("refund_due", "expired")
    assert said.note == "The order is expired; b: 1 wanted, 0 left"
    assert (on_hand("a"), on_hand("b")) == ((2, 2), (0, 0))
    assert dict(Allowance.objects.filter(customer=customer).values_list("sku", "taken")) == {"a": 0, "b": 0}
    assert_conserved()
    # What comes back later changes nothing: the provider has been told.
    Order.objects.exclude(pk=order).update(state="cancelled")
    stock.give_back([("b", 1)])
    assert pays(order).payment == said
    assert pays(order, "pay_2").payment.outcome == "paid"


def test_a_late_payment_goes_beyond_no_limit(customer: int) -> None:
    offer = on_sale({"a": 9, "b": 9}, strategy="lua", limit=2)
    order = expired(offer, customer, a=1, b=2)
    place(offer, customer, a=1, b=1)
    said = pays(order).payment
    assert (said.outcome, state(order)) == ("refund_due", "expired")
    assert "b: at most 2 per customer, 1 taken already" in said.note
    assert (on_hand("a"), on_hand("b")) == ((8, 8), (8, 8))
    assert taken() == {"a": 1, "b": 1}
    SaleItem.objects.update(limit=3)
    assert pays(order, "pay_2").payment.outcome == "paid"
    assert taken() == {"a": 2, "b": 3}
    assert_conserved()


def test_without_a_limit_a_late_payment_counts_what_was_bought_all_the_same(customer: int) -> None:
    order = expired(on_sale({"a": 9}), customer, a=2)
    SaleItem.objects.all().delete()
    assert pays(order).payment.outcome == "paid"
    assert taken() == {"a": 2}


def test_a_payment_for_a_rejected_order_is_due_for_refund(customer: int) -> None:
    request = new_request(("a", 2), customer=customer, sale=on_sale({"a": 9}).sale)
    with transaction.atomic():
        reject({request: "no"})
    said = pays(request.id).payment
    assert (said.outcome, said.note, state(request.id)) == ("refund_due", "The order is rejected.", "rejected")
    assert on_hand()[0] == 9


def test_in_redis_nothing_is_taken_again_before_the_commit(customer: int) -> None:
    order = expired(on_sale({"a": 2}, strategy="lua"), customer, a=1)
    seen: list[tuple[int, int | None]] = []
    with interleaved(lambda: seen.append(on_hand()), after='^INSERT INTO "shop_payment"'):
        pays(order)
    assert (seen, on_hand()) == ([(2, 2)], (1, 1))


def test_without_redis_a_late_payment_takes_again_in_postgres(customer: int, redis_gone: Gone) -> None:
    offer = on_sale({"a": 1}, strategy="lua")
    order = expired(offer, customer, a=1)
    with redis_gone():
        assert pays(order).payment.outcome == "paid"
    # Redis admits a unit that is not there any more; the guard in Postgres refuses it.
    assert on_hand() == (0, 1)
    with pytest.raises(SoldOut):
        place(offer, new_customer(), a=1)
    assert_conserved()


# Many at once


def deliver(order: UUID, references: list[str]) -> dict[str, int]:
    """Let the provider report all of these at the same moment, and count the outcomes."""
    answers = at_once(*(partial(pays, order, reference) for reference in references))
    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    return tally([str(answer.payment.outcome) for answer in answers])  # type: ignore[union-attr]


SAME = ["pay_1"] * 16
DIFFERENT = [f"pay_{number}" for number in range(16)]


@pytest.mark.parametrize("was", ["pending", "expired"])
@pytest.mark.parametrize(
    ("references", "outcomes"),
    [
        pytest.param(SAME, {"paid": 16}, id="one reference"),
        pytest.param(DIFFERENT, {"paid": 1, "refund_due": 15}, id="sixteen references"),
    ],
)
def test_sixteen_deliveries_at_once_pay_once_and_take_once(
    customer: int, references: list[str], outcomes: dict[str, int], was: str
) -> None:
    offer = on_sale({"a": 64}, strategy="lua", limit=64)
    order = expired(offer, customer, a=2) if was == "expired" else place(offer, customer, a=2)
    assert deliver(order, references) == outcomes
    assert state(order) == "paid"
    assert (on_hand(), taken()) == ((62, 62), {"a": 2})
    assert Payment.objects.count() == len(set(references))
    assert Payment.objects.filter(outcome="paid").count() == 1
    notes = set(Payment.objects.filter(outcome="refund_due").values_list("note", flat=True))
    assert notes <= {"The order was paid already."}
    assert_conserved()


def test_of_sixteen_late_payments_of_as_many_orders_those_are_honoured_that_stock_is_there_for() -> None:
    offer = on_sale({"a": 16}, strategy="lua")
    orders = [place(offer, new_customer(), a=1) for _ in range(16)]
    make_due()
    expire_unpaid()
    stock.move("a", StockMovement.Kind.CORRECTED, -11)
    answers = at_once(*(partial(pays, order, f"for {order}") for order in orders))
    outcomes = tally([str(answer.payment.outcome) for answer in answers])  # type: ignore[union-attr]
    assert outcomes == {"paid": 5, "refund_due": 11}
    assert Order.objects.filter(state="paid").count() == 5
    assert on_hand()[0] == 0
    assert_conserved()


def test_a_reference_for_two_orders_at_the_same_moment_pays_one_of_them(customer: int) -> None:
    offer = on_sale({"a": 4})
    first, second = place(offer, customer, a=1), place(offer, customer, a=1)

    with interleaved(lambda: pays(second), before='^INSERT INTO "shop_payment"'), pytest.raises(IntegrityError):
        pays(first)

    assert (state(first), state(second)) == ("pending", "paid")
    with pytest.raises(payments.ReferenceReused):
        pays(first)


# The guards, and what happens without them


def unlocked(order: UUID, **whose: Any) -> Order:
    return Order.objects.prefetch_related("items__product").get(pk=order, **whose)


def unguarded(order: Order, new: Order.State) -> None:
    Order.objects.filter(pk=order.pk).update(state=new)
    order.state = new


@contextmanager
def paid_any_number_of_times() -> Iterator[None]:
    """The payments' table as it would be without its unique index."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'payment_pays_an_order_once'")
        (index,) = cursor.fetchone()
        cursor.execute("DROP INDEX payment_pays_an_order_once")
        try:
            yield
        finally:
            Payment.objects.all().delete()
            cursor.execute(index)


class TestASecondPaymentBetweenTheLookAtAnOrderAndItsChange:
    """The schedule that a lock on the order, a guard in the update and a unique index each make harmless."""

    @pytest.fixture
    def order(self, customer: int) -> UUID:
        return expired(on_sale({"a": 9}), customer, a=1)

    def pay_twice(self, order: UUID) -> None:
        with interleaved(lambda: pays(order, "pay_2"), before="inventory_stockitem.*FOR NO KEY UPDATE"):
            pays(order, "pay_1")

    def test_without_the_lock_the_guard_refuses(self, order: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(states, "locked", unlocked)
        with pytest.raises(states.Overtaken):
            self.pay_twice(order)
        assert (on_hand()[0], state(order)) == (8, "paid")
        assert_conserved()
        assert pays(order, "pay_1").payment.outcome == "refund_due"

    def test_without_lock_and_guard_the_index_refuses(self, order: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(states, "locked", unlocked)
        monkeypatch.setattr(states, "change", unguarded)
        with pytest.raises(IntegrityError, match="payment_pays_an_order_once"):
            self.pay_twice(order)
        assert on_hand()[0] == 8
        assert_conserved()

    def test_without_all_three_it_is_paid_and_taken_twice(self, order: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(states, "locked", unlocked)
        monkeypatch.setattr(states, "change", unguarded)
        with paid_any_number_of_times():
            self.pay_twice(order)
            assert Payment.objects.filter(outcome="paid").count() == 2
            (figures,) = conservation.figures()
            assert (figures.on_hand, figures.sold, figures.drift) == (7, 1, 1)


@pytest.mark.parametrize("looked_at", [True, False], ids=["held against the limit", "counted only"])
def test_a_late_payment_counts_under_the_limit(customer: int, monkeypatch: pytest.MonkeyPatch, looked_at: bool) -> None:
    """The negative control beside it: a statement that counts and compares with nothing."""
    offer = on_sale({"a": 9}, limit=2)
    order = expired(offer, customer, a=2)
    place(offer, customer, a=2)
    if not looked_at:
        monkeypatch.setattr(saving, "COUNT_AGAIN", saving.COUNT_AGAIN.replace('taken > "limit"', "false"))
    assert pays(order).payment.outcome == ("refund_due" if looked_at else "paid")
    assert taken() == {"a": 2 if looked_at else 4}


# Races for one order

THEN = {
    ("cancelled", "cancel"): "cancelled",
    ("cancelled", "expire"): "0 expired",
    ("cancelled", "pay"): "NotPayable",
    ("cancelled", "provider"): "paid",
    ("expired", "cancel"): "NotCancellable",
    ("expired", "expire"): "0 expired",
    ("expired", "pay"): "NotPayable",
    ("expired", "provider"): "paid",
    ("paid", "cancel"): "NotCancellable",
    ("paid", "expire"): "0 expired",
    ("paid", "pay"): "paid",
    ("paid", "provider"): "refund_due",
}
"""What each is answered that finds an order ended."""
ALONE = {"cancel": "cancelled", "expire": "1 expired", "pay": "paid", "provider": "paid"}
"""What each is answered that finds the order pending."""
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
    """An order of two units that is pending, and due; beside it the customer has three that are paid for."""
    offer = on_sale({"a": 13}, strategy="lua", limit=5)
    pay_order(place(offer, customer, a=3), customer=customer)
    order = place(offer, customer, a=2)
    make_due()
    return order


def act(name: str, order: UUID, reference: str = "pay_1") -> str:
    """Do it, and return the answer in a word."""
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


def race(first: Callable[[], Any], second: Callable[[], Any], **at: str) -> tuple[Any, Any]:
    """Start the second elsewhere when the first is there, and let the first go on once the other is done or waits.

    Args:
        at: `before` or `after`, see `interleaved`.
    """
    with ThreadPoolExecutor(1) as pool:
        started: list[Any] = []

        def closing() -> Any:
            try:
                return second()
            finally:
                connections.close_all()

        def start() -> None:
            started.append(pool.submit(closing))
            wait_for(lambda: started[0].done() or somebody_waits(), "the second to be done, or to wait")

        with interleaved(start, **at):
            answer = first()
        return answer, started[0].result(PATIENCE)


def somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return cursor.fetchone() is not None


def assert_ended_once(order: UUID) -> None:
    """State, stock, counter, allowance and payments all tell the same."""
    stands = state(order) == "paid"
    assert on_hand() == ((8, 8) if stands else (10, 10))
    assert taken() == {"a": 5 if stands else 3}
    assert Payment.objects.filter(order=order, outcome="paid").count() == stands
    assert_conserved()


@pytest.mark.parametrize("second", ALONE)
@pytest.mark.parametrize(("first", "point"), [(name, point) for name in PASSES for point in PASSES[name]])
def test_whoever_has_the_order_ends_it_and_the_other_finds_it_ended(
    contested: UUID, first: str, point: str, second: str
) -> None:
    answers = race(partial(act, first, contested), partial(act, second, contested, "pay_2"), after=POINTS[point])
    assert answers == (ALONE[first], THEN[ENDS[first], second])
    assert state(contested) == ("paid" if second == "provider" else ENDS[first])
    assert_ended_once(contested)


@pytest.mark.parametrize("second", ALONE)
@pytest.mark.parametrize("first", ALONE)
def test_whoever_comes_before_the_lock_ends_the_order_and_the_first_finds_it_ended(
    contested: UUID, first: str, second: str
) -> None:
    answers = race(partial(act, first, contested), partial(act, second, contested, "pay_2"), before=POINTS["lock"])
    assert answers == (THEN[ENDS[second], first], ALONE[second])
    assert_ended_once(contested)


@pytest.mark.parametrize("second", ["cancel", "expire", "pay", "provider"])
def test_without_the_lock_the_guard_undoes_what_a_cancellation_gave_back(
    contested: UUID, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "locked", unlocked)
    with pytest.raises(states.Overtaken):
        race(partial(act, "cancel", contested), partial(act, second, contested), before='^SELECT .*"shop_orderitem"')
    assert state(contested) == ENDS[second]
    assert_ended_once(contested)


@pytest.mark.parametrize("second", ["pay", "provider"])
def test_without_lock_and_guard_an_order_is_paid_and_its_units_are_sold_again(
    contested: UUID, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the whole table."""
    monkeypatch.setattr(states, "locked", unlocked)
    monkeypatch.setattr(states, "change", unguarded)
    race(partial(act, "cancel", contested), partial(act, second, contested), before="^UPDATE .?inventory_stockitem")
    assert (state(contested), Payment.objects.filter(order=contested, outcome="paid").count()) == ("cancelled", 1)
    with pytest.raises(AssertionError):
        assert_ended_once(contested)


@pytest.mark.parametrize("round_", range(4))
def test_all_at_once_end_an_order_once(contested: UUID, round_: int) -> None:
    bodies = [partial(act, name, contested) for name in ALONE for _ in range(4)]
    answers = at_once(*bodies)
    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    assert state(contested) == "paid", "the provider comes last, or takes the units again"
    assert_ended_once(contested)


@pytest.mark.parametrize("round_", range(4))
def test_all_at_once_without_a_provider_end_an_order_once(contested: UUID, round_: int) -> None:
    names = [name for name in ("cancel", "expire", "pay") for _ in range(5)]
    answers = at_once(*(partial(act, name, contested) for name in names))
    told = {ENDS[name] for name, answer in zip(names, answers, strict=True) if answer == ALONE[name]}
    assert told == {state(contested)}
    assert_ended_once(contested)


def test_an_order_beside_a_late_payment_keeps_to_the_limit(customer: int) -> None:
    offer = on_sale({"a": 9}, limit=2)
    order = expired(offer, customer, a=2)
    with pytest.raises(OverLimit):
        race(partial(pays, order), partial(place, offer, customer, a=1), after="INSERT INTO shop_allowance")
    assert (state(order), taken()) == ("paid", {"a": 2})
    assert_conserved()


# Nobody waits in a circle


@pytest.mark.parametrize("point", ["FOR NO KEY UPDATE", "^UPDATE .?inventory_stockitem", '^UPDATE "shop_order"'])
@pytest.mark.parametrize("change", ["cancel", "late payment"])
def test_a_retry_of_an_order_that_is_being_changed_does_not_deadlock_with_it(
    customer: int, change: str, point: str
) -> None:
    """The order is placed again with the stock in hand, and waits for whoever has written it."""
    offer = on_sale({"a": 3})
    by_key = partial(place_order, customer=customer, sale=offer.sale, quantities=offer.cart(a=1), key="one")
    order = by_key().order.pk
    if change == "late payment":
        cancel_order(order, customer=customer)
    name = "provider" if change == "late payment" else "cancel"
    answer, again = race(partial(act, name, order), by_key, after=point)
    assert (answer, again.order.pk, again.replayed) == (ALONE[name], order, True)
    assert on_hand()[0] == (2 if change == "late payment" else 3)
    assert_conserved()


def test_with_the_state_before_the_stock_it_does(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the same late payment, which writes the order and then wants its stock."""
    offer = on_sale({"a": 3})
    by_key = partial(place_order, customer=customer, sale=offer.sale, quantities=offer.cart(a=1), key="one")
    order = by_key().order.pk
    cancel_order(order, customer=customer)

    def state_first(late: Order) -> None:
        states.change(late, Order.State.PAID)
        take_again(late)

    monkeypatch.setattr(payments, "take_again", state_first)
    with pytest.raises(OperationalError, match="deadlock"):
        race(partial(act, "provider", order), by_key, after='^UPDATE "shop_order"')


def test_carts_that_are_placed_cancelled_expired_and_paid_late_wait_for_each_other_in_no_circle() -> None:
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
