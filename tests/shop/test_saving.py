"""Orders are saved, rejected or returned in few statements. Keys and limits hold in concurrent transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis import Redis

from inventory.errors import Duplicate, OverLimit, Refusal, SaleClosed, UnknownCustomer
from inventory.requests import OrderRequest
from shop.models import Allowance, Order, OrderItem, Sale
from shop.orders import saving
from shop.orders.saving import reject, save
from tests.factories import OnSale, at_once, begin, interleaved, new_customer, new_request, on_sale
from tests.waiting import WAIT_TIMEOUT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

T = TypeVar("T")


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 9, "b": 9}, strategy="lua")


Make = Callable[..., OrderRequest]


@pytest.fixture
def make(offer: OnSale, customer: int) -> Make:
    """Make an order request of the customer: one unit of `a`, or the given cart."""
    return lambda *cart, **more: new_request(
        *(cart or (("a", 1),)), **{"customer": customer, "sale": offer.sale, **more}
    )


def saved(*requests: OrderRequest) -> Mapping[UUID, Refusal]:
    """Save the requests, and commit."""
    with transaction.atomic():
        return save(requests)


def existing(refusals: Mapping[UUID, Refusal]) -> dict[UUID, UUID]:
    """Return the existing order of each refused request. Check that all refusals are duplicates."""
    assert all(isinstance(refusal, Duplicate) for refusal in refusals.values())
    return {request: refusal.existing for request, refusal in refusals.items()}  # type: ignore[attr-defined]


def kinds(refusals: Mapping[UUID, Refusal]) -> dict[UUID, type[Refusal]]:
    return {request: type(refusal) for request, refusal in refusals.items()}


def taken() -> dict[tuple[int, str], int]:
    return {(row.customer_id, row.sku): row.taken for row in Allowance.objects.all()}


@contextmanager
def open_transaction() -> Iterator[list[str]]:
    """Open a transaction, and collect the first word of each statement in it."""
    words: list[str] = []
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        yield words
    words += [query["sql"].split()[0] for query in queries]


@pytest.mark.parametrize("orders", [1, 100])
@pytest.mark.parametrize("limit", [None, 200])
def test_saving_needs_one_statement(make: Make, customer: int, orders: int, limit: int | None) -> None:
    requests = [make(("a", 1), ("b", 1), limit=limit) for _ in range(orders)]
    with open_transaction() as statements:
        assert save(requests) == {}
    assert statements == ["WITH"]
    assert (Order.objects.count(), OrderItem.objects.count()) == (orders, 2 * orders)
    assert taken() == {(customer, "a"): orders, (customer, "b"): orders}


def test_used_keys_and_limits_need_two_statements_each(make: Make) -> None:
    first = make(limit=3)
    saved(first)
    again = [make(limit=3, key=first.key) for _ in range(20)]
    fresh = [make(limit=3) for _ in range(20)]
    with open_transaction() as statements:
        refusals = save(again + fresh)
    assert statements == ["WITH", "SELECT", "SELECT", "WITH", "UPDATE"]
    over = {request.id: OverLimit for request in fresh[2:]}
    assert kinds(refusals) == {**{request.id: Duplicate for request in again}, **over}
    assert set(Order.objects.values_list("id", flat=True)) == {first.id, fresh[0].id, fresh[1].id}


def test_a_used_key_is_a_duplicate(make: Make, customer: int) -> None:
    first = make(("a", 2), limit=2)
    saved(first)
    again, over = make(("b", 5), key=first.key), make(("a", 2), key=first.key, limit=2)
    assert existing(saved(first, again, over)) == dict.fromkeys((first.id, again.id, over.id), first.id)
    assert list(OrderItem.objects.values_list("order", "product", "quantity")) == [(first.id, "a", 2)]
    assert taken() == {(customer, "a"): 2}
    User.objects.filter(pk=customer).update(is_active=False)
    assert existing(saved(again)) == {again.id: first.id}


def test_keys_belong_to_one_customer(make: Make) -> None:
    assert saved(make(key="mine"), make(key="mine", customer=new_customer())) == {}
    assert Order.objects.count() == 2


def test_of_requests_with_one_key_the_first_is_saved(make: Make) -> None:
    first, *others = [make(key="one") for _ in range(3)]
    refusals = saved(first, *others)
    assert list(OrderItem.objects.values_list("order", flat=True)) == [first.id]
    assert existing(refusals) == {request.id: first.id for request in others}


def while_another_waits(other: Callable[[], T], *, before: Any, after: Any = None) -> T:
    """Call `before` in a transaction, start `other` in another one, which has to wait, call `after`, and commit."""
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            before()
            waiting = begin(pool, other)
            assert not waiting.done()
            if after is not None:
                after()
        return waiting.result(WAIT_TIMEOUT)


@pytest.mark.parametrize("arrival", [("1", "2"), ("2", "1")], ids=str)
def test_batches_write_keys_in_one_order(make: Make, arrival: tuple[str, str]) -> None:
    """Batches write keys in sorted order, so they cannot deadlock."""
    first, second = (partial(save, [make(key=key)]) for key in ("1", "2"))
    batch = partial(saved, *(make(key=key) for key in arrival))
    refusals = while_another_waits(batch, before=first, after=second)
    assert list(kinds(refusals).values()) == [Duplicate, Duplicate]
    assert Order.objects.count() == 2


@pytest.mark.parametrize("gone", ["deleted", "deactivated", "never there"])
def test_without_an_active_customer_nothing_is_written(make: Make, customer: int, gone: str) -> None:
    other = new_customer()
    if gone == "deleted":
        User.objects.filter(pk=customer).delete()
    elif gone == "deactivated":
        User.objects.filter(pk=customer).update(is_active=False)
    else:
        customer = 2**62
    mine, others = make(customer=customer, limit=1), make(customer=other, limit=1)
    assert kinds(saved(mine, others)) == {mine.id: UnknownCustomer}
    assert list(OrderItem.objects.values_list("order", flat=True)) == [others.id]
    assert taken() == {(other, "a"): 1}


def test_a_sale_that_is_not_open_takes_no_order(make: Make) -> None:
    closed, postponed = on_sale({"c": 1}), on_sale({"d": 1})
    Sale.objects.filter(pk=closed.sale).update(closes_at=timezone.now())
    Sale.objects.filter(pk=postponed.sale).update(opens_at=timezone.now() + timedelta(minutes=30))
    late, early, never = make(("c", 1), sale=closed.sale), make(("d", 1), sale=postponed.sale), make(sale=2**62)
    in_time = make()
    assert kinds(saved(late, early, never, in_time)) == dict.fromkeys((late.id, early.id, never.id), SaleClosed)
    assert list(Order.objects.values_list("id", flat=True)) == [in_time.id]


def test_the_limit_counts_the_orders_of_a_batch_in_their_order(make: Make, customer: int) -> None:
    other = new_customer()
    first, second, third, fourth = (make(("a", quantity), limit=3) for quantity in (1, 3, 2, 1))
    others = make(("a", 3), customer=other, limit=3)
    refusals = saved(first, second, others, third, fourth)
    assert kinds(refusals) == {second.id: OverLimit, fourth.id: OverLimit}
    assert str(refusals[second.id]) == "a: at most 3 per customer, 1 taken already"
    assert str(refusals[fourth.id]) == "a: at most 3 per customer, 3 taken already"
    assert set(Order.objects.values_list("id", flat=True)) == {first.id, third.id, others.id}
    assert OrderItem.objects.count() == 3
    assert taken() == {(customer, "a"): 3, (other, "a"): 3}


def test_a_cart_over_one_limit_counts_for_nothing(make: Make, customer: int) -> None:
    cart = make(("a", 1), ("b", 3), limit=2)
    refusals = saved(cart)
    assert str(refusals[cart.id]) == "b: at most 2 per customer, 0 taken already"
    assert (Order.objects.count(), OrderItem.objects.count()) == (0, 0)
    assert taken() == {(customer, "a"): 0, (customer, "b"): 0}


def test_limits_belong_to_one_sale(offer: OnSale, customer: int) -> None:
    another = on_sale({"a": 0}, preheat=False)
    for sale in (offer.sale, another.sale):
        assert saved(new_request(("a", 2), customer=customer, sale=sale, limit=2)) == {}
    assert sorted(Allowance.objects.values_list("sale", "taken")) == sorted([(offer.sale, 2), (another.sale, 2)])


def test_without_the_locked_count_they_exceed_it(
    make: Make, offer: OnSale, customer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: if the count is read without a lock, two concurrent orders exceed the limit."""
    counting = saving.INSERT[
        saving.INSERT.index("INSERT INTO shop_allowance") : saving.INSERT.index("SELECT id, sku, taken")
    ]
    reading = """
        SELECT sale_id, customer_id, shop_allowance.sku, (taken + quantity)::int AS taken
          FROM shop_allowance JOIN placed USING (sale_id, customer_id) JOIN item ON request = placed.id
    )
    """
    monkeypatch.setattr(saving, "INSERT", saving.INSERT.replace(counting, reading))
    Allowance.objects.create(sale_id=offer.sale, customer_id=customer, sku="a", taken=2)
    first, second = (make(limit=3) for _ in range(2))
    with interleaved(lambda: saved(second), after=r"WITH\s+request AS"):
        assert saved(first) == {}
    assert Order.objects.count() == 2


def test_batches_of_the_same_customers_do_not_deadlock(make: Make) -> None:
    customers = [new_customer() for _ in range(6)]

    def batch(customers: Sequence[int]) -> Mapping[UUID, Refusal]:
        return saved(*(make(("a", 1), ("b", 1), customer=customer, limit=8) for customer in customers))

    answers = at_once(*[partial(batch, customers), partial(batch, customers[::-1])] * 4)
    assert answers == [{}] * 8
    assert set(taken().values()) == {8}


def rejected(refused: Mapping[OrderRequest, str]) -> int:
    """Reject the requests, commit, and return the number of statements."""
    with open_transaction() as statements:
        reject(refused)
    return len(statements)


@pytest.mark.parametrize("orders", [0, 1, 100])
def test_rejecting_needs_one_statement(make: Make, orders: int) -> None:
    requests = [make(("a", 1), ("b", 1)) for _ in range(orders)]
    assert rejected(dict.fromkeys(requests, "no")) == min(orders, 1)
    assert Order.objects.filter(state="rejected", reason="no").count() == orders
    assert OrderItem.objects.count() == 2 * orders


def test_rejecting_again_changes_nothing(make: Make, customer: int) -> None:
    request, placed = make(), make()
    saved(placed)
    for reason in ("x" * 300, "the second"):
        rejected({request: reason, placed: reason})
    assert (Order.objects.get(pk=request.id).reason, Order.objects.get(pk=placed.id).state) == ("x" * 200, "pending")
    assert OrderItem.objects.count() == 2
    assert kinds(saved(request)) == {request.id: Duplicate}
    assert taken() == {(customer, "a"): 1}


def test_rejected_orders_with_a_used_key_have_their_ids_as_keys(make: Make) -> None:
    first, second, third = (make(key="one") for _ in range(3))
    saved(first)
    for _ in range(2):
        rejected({second: "already placed", third: "already placed"})
    assert set(Order.objects.values_list("pk", "state", "key")) == {
        (first.id, "pending", "one"), (second.id, "rejected", str(second.id)), (third.id, "rejected", str(third.id))
    }  # fmt: skip


def test_a_rejection_waits_for_an_uncommitted_order_with_the_key(make: Make) -> None:
    first, second = (make(key="mine") for _ in range(2))
    while_another_waits(partial(rejected, {second: "no"}), before=partial(save, [first]))
    assert dict(Order.objects.values_list("pk", "state")) == {first.id: "pending", second.id: "rejected"}
    assert OrderItem.objects.filter(order=second.id).count() == 1


def test_rejected_orders_share_no_key(make: Make) -> None:
    first, second = (make(key="one") for _ in range(2))
    rejected({second: "no", first: "no"})
    assert dict(Order.objects.values_list("pk", "key")) == {first.id: "one", second.id: str(second.id)}


def test_deleted_customers_and_sales_do_not_stop_rejections(make: Make, offer: OnSale, customer: int) -> None:
    kept = make(("a", 1), ("gone", 1))
    rejected(dict.fromkeys([kept, make(customer=customer + 1000), make(sale=offer.sale + 1000)], "no"))
    assert Order.objects.get().pk == kept.id
    assert [str(item) for item in OrderItem.objects.all()] == ["1 × a"]
