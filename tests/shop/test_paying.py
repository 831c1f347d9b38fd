"""An order is paid once by its customer, or expires once; what comes back comes back once, wherever it was taken."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.db import connection, connections, transaction
from django.utils import timezone
from redis import Redis

from inventory import stock
from inventory.models import StockItem
from inventory.strategies import registry
from shop import conservation
from shop.models import Allowance, Order
from shop.orders.customer_changes import pay_order
from shop.orders.errors import NotPayable
from shop.orders.expiry import expire_unpaid
from shop.orders.place import place_order
from shop.orders.saving import return_units
from shop.runtime.celery import app
from shop.runtime.tasks import advance_sales, expire_unpaid_orders, reconcile, save_queued_orders
from tests.factories import SAVING, OnSale, close_now, interleaved, new_customer, on_sale, orders_in
from tests.shop.conftest import Gone
from tests.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def customer(db: None) -> int:
    return new_customer()


def place(offer: OnSale, customer: int, **units: int) -> UUID:
    quantities = offer.cart(**(units or {"a": 1}))
    return place_order(customer=customer, sale=offer.sale, quantities=quantities, key=str(uuid4())).order.pk


def make_due(*orders: UUID) -> None:
    """Let the time to pay be over."""
    due = timezone.now() - timedelta(seconds=settings.ORDER_TTL)
    Order.objects.filter(**({"pk__in": orders} if orders else {})).update(payable_from=due)


def state(order: UUID) -> str:
    return Order.objects.get(pk=order).state


def on_hand(sku: str = "a") -> tuple[int, int | None]:
    """In Postgres and in Redis."""
    return stock.on_hand(sku), registry.counters().left([sku])[sku]


def assert_conserved() -> None:
    assert all(row.conserved for row in conservation.figures())


# Paying


def test_paying_a_pending_order_makes_it_paid_and_paying_twice_is_paying_once(customer: int) -> None:
    order = place(on_sale({"a": 1}), customer)
    assert state(order) == "pending"
    for _ in range(2):
        assert pay_order(order, customer=customer).order.state == "paid"
        assert state(order) == "paid"
    assert_conserved()


def test_an_expired_order_cannot_be_paid(customer: int) -> None:
    order = place(on_sale({"a": 1}), customer)
    make_due()
    expire_unpaid()
    with pytest.raises(NotPayable, match="expired"):
        pay_order(order, customer=customer)
    assert state(order) == "expired"
    assert on_hand()[0] == 1


@pytest.mark.parametrize("whose", ["somebody else's", "nobody's"])
def test_only_an_order_of_the_customers_own_can_be_paid(customer: int, whose: str) -> None:
    order = place(on_sale({"a": 1}), new_customer())
    with pytest.raises(Order.DoesNotExist):
        pay_order(order if whose == "somebody else's" else uuid4(), customer=customer)
    assert state(order) == "pending"


def test_an_order_that_is_due_can_be_paid_until_it_has_expired(customer: int) -> None:
    order = place(on_sale({"a": 1}), customer)
    make_due()
    assert pay_order(order, customer=customer).order.state == "paid"
    assert expire_unpaid() == 0
    assert on_hand()[0] == 0


# Expiring


@pytest.mark.parametrize("name", SAVING)
def test_what_nobody_paid_for_comes_back_once_and_what_was_paid_stays(customer: int, name: str) -> None:
    offer = on_sale({"a": 10, "b": 10}, strategy=name, limit=9)
    due, paid, fresh = (place(offer, customer, a=units, b=1) for units in (1, 2, 4))
    pay_order(paid, customer=customer)
    make_due(due, paid)
    counted = name == "lua"
    assert on_hand() == (3, 3 if counted else None)

    assert [expire_unpaid() for _ in range(3)] == [1, 0, 0]

    assert [state(order) for order in (due, paid, fresh)] == ["expired", "paid", "pending"]
    assert on_hand() == (4, 4 if counted else None)
    assert on_hand("b") == (8, 8 if counted else None)
    assert dict(Allowance.objects.values_list("sku", "taken")) == {"a": 6, "b": 2}
    assert registry.counters().reserved() == {}
    assert_conserved()


def test_an_order_expires_at_the_end_of_its_time_and_not_before(customer: int) -> None:
    offer = on_sale({"a": 2})
    due, almost = place(offer, customer), place(offer, customer)
    now = timezone.now()
    ttl = timedelta(seconds=settings.ORDER_TTL)
    Order.objects.filter(pk=due).update(payable_from=now - ttl)
    Order.objects.filter(pk=almost).update(payable_from=now - ttl + timedelta(minutes=1))
    assert expire_unpaid() == 1
    assert (state(due), state(almost)) == ("expired", "pending")


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_more_orders_than_a_batch_all_expire(batch: int) -> None:
    offer = on_sale({"a": 5}, strategy="lua", limit=1)
    for _ in range(5):
        place(offer, new_customer())
    make_due()
    assert expire_unpaid(batch=batch) == 5
    assert orders_in("expired") == 5
    assert on_hand() == (5, 5)
    assert set(Allowance.objects.values_list("taken", flat=True)) == {0}


def test_what_came_back_can_be_bought_again_by_the_same_customer(customer: int) -> None:
    offer = on_sale({"a": 1}, strategy="lua", limit=1)
    place(offer, customer)
    make_due()
    expire_unpaid()
    place(offer, customer)
    assert on_hand() == (0, 0)
    assert_conserved()


def test_an_order_that_cannot_be_returned_does_not_keep_others_from_expiring(
    customer: int, caplog: pytest.LogCaptureFixture
) -> None:
    offer = on_sale({"a": 5, "b": 5})
    stuck = place(offer, customer, a=3)
    place(offer, customer, b=1)
    StockItem.objects.filter(sku="a").update(received=2)  # by hand: there is no room for three to come back
    make_due()
    assert expire_unpaid() == 1
    assert state(stuck) == "pending"
    assert StockItem.objects.get(sku="b").on_hand == 5
    assert f"Order {stuck} cannot be expired" in caplog.text


def test_a_retry_of_an_order_that_is_being_expired_does_not_deadlock_with_it(customer: int) -> None:
    """The order is placed again with the stock in hand, and waits for whoever has changed it."""
    offer = on_sale({"a": 2})

    def place_by_key() -> UUID:
        try:
            cart = offer.cart(a=1)
            return place_order(customer=customer, sale=offer.sale, quantities=cart, key="one").order.pk
        finally:
            connections.close_all()

    order = place_by_key()
    make_due()
    with ThreadPoolExecutor(1) as pool:
        again = []

        def start_to_retry() -> None:
            again.append(pool.submit(place_by_key))
            wait_for(somebody_waits, "the retry to wait for the stock")

        with interleaved(start_to_retry, after="inventory_stockitem"):
            assert expire_unpaid() == 1
        assert again[0].result(PATIENCE) == order
    assert on_hand()[0] == 2
    assert_conserved()


# Two workers at once


def test_two_workers_at_the_same_time_expire_each_order_once(customer: int) -> None:
    offer = on_sale({"a": 6}, strategy="lua", limit=6)
    for _ in range(6):
        place(offer, customer)
    make_due()
    counts: list[int] = []

    def second_worker() -> None:
        counts.append(expire_unpaid(batch=4))

    # The first has its four and has not committed yet; the second finds the other two.
    with interleaved(second_worker, after="FOR UPDATE SKIP LOCKED"):
        counts.append(expire_unpaid(batch=4))

    assert counts == [2, 4]
    assert orders_in("expired") == 6
    assert on_hand() == (6, 6)
    assert Allowance.objects.get().taken == 0
    assert_conserved()


def test_without_the_row_lock_two_workers_give_back_twice(customer: int) -> None:
    """The negative control: the same two workers, who look at the orders without locking them."""
    offer = on_sale({"a": 6, "other": 1})
    stock.deliver("a", 1)
    place(offer, new_customer(), a=3)
    place(offer, customer, a=1)
    # So that what comes back twice does not run into the constraints, which stand behind the lock.
    Allowance.objects.update(taken=3)
    make_due()
    Order.objects.exclude(customer=customer).update(state="paid")

    def expire_without_locking() -> None:
        with transaction.atomic():
            orders = list(Order.objects.filter(state="pending").values_list("pk", flat=True))
            return_units(orders)
            Order.objects.filter(pk__in=orders).update(state="expired")

    with interleaved(expire_without_locking, after='^SELECT "shop_order"'):
        expire_without_locking()
    figures = next(row for row in conservation.figures(["a"]))
    assert (figures.received, figures.on_hand, figures.sold, figures.drift) == (7, 5, 3, -1)


def test_an_order_that_is_being_paid_is_not_expired(customer: int) -> None:
    order = place(on_sale({"a": 1}), customer)
    make_due()
    with interleaved(lambda: expire_unpaid(), after='^UPDATE "shop_order"'):
        pay_order(order, customer=customer)
    assert state(order) == "paid"
    assert on_hand()[0] == 0
    assert_conserved()


def test_an_order_that_is_being_expired_cannot_be_paid(customer: int) -> None:
    order = place(on_sale({"a": 1}), customer)
    make_due()

    def pay() -> None:
        try:
            pay_order(order, customer=customer)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        paying = []

        def start_to_pay() -> None:
            paying.append(pool.submit(pay))
            wait_for(somebody_waits, "the payment to wait for the row")

        with interleaved(start_to_pay, after='^UPDATE "shop_order"'):
            assert expire_unpaid() == 1
        with pytest.raises(NotPayable):
            paying[0].result(PATIENCE)
    assert state(order) == "expired"
    assert on_hand()[0] == 1
    assert_conserved()


def somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return cursor.fetchone() is not None


# When something is gone


def test_without_redis_orders_expire_all_the_same(customer: int, redis_gone: Gone) -> None:
    offer = on_sale({"a": 1}, strategy="lua")
    place(offer, customer)
    make_due()
    with redis_gone():
        assert expire_unpaid() == 1
    # The counter is too low until it is reconciled: nothing is sold that is not there.
    assert on_hand() == (1, 0)
    assert_conserved()


def test_a_sale_that_is_over_gets_its_units_back_in_postgres_and_no_counter(customer: int) -> None:
    offer = on_sale({"a": 2}, strategy="lua")
    place(offer, customer)
    make_due()
    registry.counters().unload(["a"])
    assert expire_unpaid() == 1
    assert on_hand() == (2, None)


def test_what_an_earlier_sale_gives_back_can_be_sold_in_the_next_one_that_counts_in_redis(customer: int) -> None:
    """The counter copies what is on hand, whoever's units come back."""
    earlier = on_sale({"a": 3}, strategy="guarded-update")
    place(earlier, customer, a=2)
    close_now(earlier)
    on_sale({"a": 0}, strategy="lua")
    assert on_hand() == (1, 1)
    make_due()
    assert expire_unpaid() == 1
    assert on_hand() == (3, 3)


# The task


def test_the_task_expires_what_is_due(customer: int, redis: Redis) -> None:
    place(on_sale({"a": 1}), customer)
    make_due()
    assert [expire_unpaid_orders() for _ in range(2)] == [1, 0]
    assert on_hand()[0] == 1


def test_every_task_that_beat_is_told_to_start_is_there() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in app.conf.beat_schedule.values()}
    tasks = (expire_unpaid_orders, reconcile, save_queued_orders, advance_sales)
    assert scheduled == {task.name for task in tasks}
    assert scheduled <= set(app.tasks)
