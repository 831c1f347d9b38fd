"""Save: many orders in few statements, each key once, each limit kept, and nothing left of what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from functools import partial
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis import Redis

from inventory.errors import Duplicate, OverLimit, Refusal, SaleClosed, UnknownCustomer
from inventory.models import StockItem
from inventory.requests import OrderRequest
from inventory.strategies import registry
from shop import conservation
from shop.models import Allowance, Order, OrderItem, Sale
from shop.orders import saving
from shop.orders.saving import reject, return_units, save
from tests.factories import OnSale, at_once, begin, interleaved, new_customer, new_request, on_sale
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 9, "b": 9}, strategy="lua")


@pytest.fixture
def customer(db: None) -> int:
    return new_customer()


def saved(*requests: OrderRequest) -> Mapping[UUID, Refusal]:
    """Save in a transaction that is committed."""
    with transaction.atomic():
        return save(requests)


def kinds(refusals: Mapping[UUID, Refusal]) -> dict[UUID, type[Refusal]]:
    return {request: type(refusal) for request, refusal in refusals.items()}


def taken() -> dict[tuple[int, str], int]:
    return {(row.customer_id, row.sku): row.taken for row in Allowance.objects.all()}


# What is written


def test_an_order_is_written_as_it_was_requested(offer: OnSale, customer: int) -> None:
    request = new_request(("a", 2), ("b", 1), customer=customer, sale=offer.sale, price="12.34")
    assert saved(request) == {}
    order = Order.objects.get()
    assert (order.id, order.customer_id, order.sale_id, order.state) == (request.id, customer, offer.sale, "pending")
    assert (order.key, order.body_hash, order.created_at) == (request.key, request.body_hash, request.created_at)
    items = order.items.order_by("product").values_list("product__sku", "quantity", "price")
    assert list(items) == [("a", 2, Decimal("12.34")), ("b", 1, Decimal("12.34"))]
    assert taken() == {(customer, "a"): 2, (customer, "b"): 1}


def test_save_takes_no_stock(offer: OnSale, customer: int) -> None:
    saved(new_request(("a", 2), customer=customer, sale=offer.sale))
    assert StockItem.objects.get(sku="a").on_hand == 9


@pytest.mark.parametrize("orders", [1, 100])
@pytest.mark.parametrize("limit", [None, 200])
def test_however_many_orders_it_needs_as_many_statements(
    offer: OnSale, customer: int, orders: int, limit: int | None
) -> None:
    requests = [new_request(("a", 1), ("b", 1), customer=customer, sale=offer.sale, limit=limit) for _ in range(orders)]
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        assert save(requests) == {}
    assert " ".join(query["sql"].split()[0] for query in queries) == "WITH"
    assert (Order.objects.count(), OrderItem.objects.count()) == (orders, 2 * orders)
    assert taken() == {(customer, "a"): orders, (customer, "b"): orders}


def test_keys_used_before_need_two_statements_more_and_limits_that_refuse_two_more(
    offer: OnSale, customer: int
) -> None:
    first = new_request(("a", 1), customer=customer, sale=offer.sale, limit=3)
    saved(first)
    again = [new_request(("a", 1), customer=customer, sale=offer.sale, limit=3, key=first.key) for _ in range(20)]
    fresh = [new_request(("a", 1), customer=customer, sale=offer.sale, limit=3) for _ in range(20)]
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        refusals = save(again + fresh)
    assert " ".join(query["sql"].split()[0] for query in queries) == "WITH SELECT SELECT WITH UPDATE"
    assert kinds(refusals) == {
        **{request.id: Duplicate for request in again},
        **{request.id: OverLimit for request in fresh[2:]},
    }
    assert set(Order.objects.values_list("id", flat=True)) == {first.id, fresh[0].id, fresh[1].id}


# Keys


def test_a_key_that_the_customer_has_used_is_a_duplicate_of_that_order(offer: OnSale, customer: int) -> None:
    first = new_request(("a", 1), customer=customer, sale=offer.sale)
    again = new_request(("b", 5), customer=customer, sale=offer.sale, key=first.key)
    saved(first)
    refusals = saved(again)
    assert kinds(refusals) == {again.id: Duplicate}
    assert refusals[again.id].existing == first.id  # type: ignore[attr-defined]
    assert list(OrderItem.objects.values_list("order", "product", "quantity")) == [(first.id, "a", 1)]


def test_the_same_request_again_is_a_duplicate_of_itself(offer: OnSale, customer: int) -> None:
    request = new_request(("a", 1), customer=customer, sale=offer.sale)
    saved(request)
    refusals = saved(request)
    assert kinds(refusals) == {request.id: Duplicate}
    assert refusals[request.id].existing == request.id  # type: ignore[attr-defined]
    assert OrderItem.objects.count() == 1


def test_another_customer_may_use_the_same_key(offer: OnSale, customer: int) -> None:
    requests = [new_request(("a", 1), customer=who, sale=offer.sale, key="mine") for who in (customer, new_customer())]
    assert saved(*requests) == {}
    assert Order.objects.count() == 2


def test_of_twins_in_one_batch_the_first_becomes_the_order(offer: OnSale, customer: int) -> None:
    first, *others = [new_request(("a", 1), customer=customer, sale=offer.sale, key="one") for _ in range(3)]
    refusals = saved(first, *others)
    assert list(OrderItem.objects.values_list("order", flat=True)) == [first.id]
    assert kinds(refusals) == {request.id: Duplicate for request in others}
    assert {refusal.existing for refusal in refusals.values()} == {first.id}  # type: ignore[attr-defined]


@pytest.mark.parametrize("arrival", [("1", "2"), ("2", "1")], ids=str)
def test_batches_write_their_keys_in_one_order_for_everybody_so_that_they_cannot_deadlock(
    offer: OnSale, customer: int, arrival: tuple[str, str]
) -> None:
    """While it waits for the lower key a batch holds no higher one: who has the lower may go on to it."""

    def order(key: str) -> OrderRequest:
        return new_request(("a", 1), customer=customer, sale=offer.sale, key=key)

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert save([order("1")]) == {}
            batch = started(pool, *(order(key) for key in arrival))
            assert save([order("2")]) == {}
        refusals = batch.result(PATIENCE)

    assert list(kinds(refusals).values()) == [Duplicate, Duplicate]
    assert Order.objects.count() == 2


def test_a_duplicate_comes_before_the_limit(offer: OnSale, customer: int) -> None:
    first = new_request(("a", 2), customer=customer, sale=offer.sale, limit=2)
    again = new_request(("a", 2), customer=customer, sale=offer.sale, limit=2, key=first.key)
    saved(first)
    assert kinds(saved(again)) == {again.id: Duplicate}
    assert taken() == {(customer, "a"): 2}


@pytest.mark.parametrize("commits", [True, False])
def test_a_twin_that_is_still_being_written_is_waited_for(offer: OnSale, customer: int, commits: bool) -> None:
    first, second = (new_request(("a", 1), customer=customer, sale=offer.sale, key="one") for _ in range(2))

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            save([first])
            answer = started(pool, second)
            assert not answer.done()
            transaction.set_rollback(not commits)
        refusals = answer.result(PATIENCE)

    if commits:
        assert kinds(refusals) == {second.id: Duplicate}
        assert refusals[second.id].existing == first.id  # type: ignore[attr-defined]
    else:
        assert refusals == {}
    assert list(Order.objects.values_list("id", flat=True)) == [first.id if commits else second.id]


def started(pool: ThreadPoolExecutor, *requests: OrderRequest) -> Future[Mapping[UUID, Refusal]]:
    """A save in another transaction, which waits for one that is open here."""
    pid: list[int] = []

    def run() -> Mapping[UUID, Refusal]:
        try:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_backend_pid()")
                    pid.append(cursor.fetchone()[0])
                return save(requests)
        finally:
            connections.close_all()

    def waits() -> bool:
        if not pid:
            return False
        with connection.cursor() as cursor:
            cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", pid)
            return bool(cursor.fetchone()[0])

    answer = pool.submit(run)
    wait_for(waits, "the second save to wait for the first")
    return answer


# Customers


@pytest.mark.parametrize("gone", ["deleted", "deactivated", "never there"])
def test_without_an_active_customer_nothing_is_written(offer: OnSale, customer: int, gone: str) -> None:
    there = new_customer()
    if gone == "deleted":
        User.objects.filter(pk=customer).delete()
    elif gone == "deactivated":
        User.objects.filter(pk=customer).update(is_active=False)
    else:
        customer = 2**62
    mine = new_request(("a", 1), customer=customer, sale=offer.sale, limit=1)
    others = new_request(("a", 1), customer=there, sale=offer.sale, limit=1)
    assert kinds(saved(mine, others)) == {mine.id: UnknownCustomer}
    assert list(OrderItem.objects.values_list("order", flat=True)) == [others.id]
    assert taken() == {(there, "a"): 1}


def test_a_retry_by_a_customer_who_was_deactivated_is_still_a_duplicate(offer: OnSale, customer: int) -> None:
    first = new_request(("a", 1), customer=customer, sale=offer.sale)
    saved(first)
    User.objects.filter(pk=customer).update(is_active=False)
    again = new_request(("a", 1), customer=customer, sale=offer.sale, key=first.key)
    assert kinds(saved(again)) == {again.id: Duplicate}


def test_a_sale_that_was_closed_postponed_or_deleted_meanwhile_takes_no_order(offer: OnSale, customer: int) -> None:
    closed, postponed, open_still = on_sale({"c": 1}), on_sale({"d": 1}), offer
    Sale.objects.filter(pk=closed.sale).update(closes_at=timezone.now())
    Sale.objects.filter(pk=postponed.sale).update(opens_at=timezone.now() + timedelta(minutes=30))
    late = new_request(("c", 1), customer=customer, sale=closed.sale)
    early = new_request(("d", 1), customer=customer, sale=postponed.sale)
    never = new_request(("a", 1), customer=customer, sale=2**62)
    fine = new_request(("a", 1), customer=customer, sale=open_still.sale)
    assert kinds(saved(late, early, never, fine)) == dict.fromkeys((late.id, early.id, never.id), SaleClosed)
    assert list(Order.objects.values_list("id", flat=True)) == [fine.id]


# Limits


def test_the_limit_counts_across_a_customers_orders_of_one_batch_in_order_of_arrival(
    offer: OnSale, customer: int
) -> None:
    other = new_customer()
    first, second, third, fourth = (
        new_request(("a", quantity), customer=customer, sale=offer.sale, limit=3) for quantity in (1, 3, 2, 1)
    )
    others = new_request(("a", 3), customer=other, sale=offer.sale, limit=3)
    refusals = saved(first, second, others, third, fourth)
    assert kinds(refusals) == {second.id: OverLimit, fourth.id: OverLimit}
    assert str(refusals[second.id]) == "a: at most 3 per customer, 1 taken already"
    assert str(refusals[fourth.id]) == "a: at most 3 per customer, 3 taken already"
    assert set(Order.objects.values_list("id", flat=True)) == {first.id, third.id, others.id}
    assert OrderItem.objects.count() == 3
    assert taken() == {(customer, "a"): 3, (other, "a"): 3}


def test_a_cart_over_the_limit_of_one_sku_counts_for_none(offer: OnSale, customer: int) -> None:
    cart = new_request(("a", 1), ("b", 3), customer=customer, sale=offer.sale, limit=2)
    refusals = saved(cart)
    assert str(refusals[cart.id]) == "b: at most 2 per customer, 0 taken already"
    assert (Order.objects.count(), OrderItem.objects.count()) == (0, 0)
    assert taken() == {(customer, "a"): 0, (customer, "b"): 0}


def test_the_limit_of_one_sale_does_not_count_in_another(offer: OnSale, customer: int) -> None:
    another = on_sale({"a": 0}, preheat=False)
    for sale in (offer.sale, another.sale):
        assert saved(new_request(("a", 2), customer=customer, sale=sale, limit=2)) == {}
    assert sorted(Allowance.objects.values_list("sale", "taken")) == sorted([(offer.sale, 2), (another.sale, 2)])


def test_orders_of_one_customer_in_two_transactions_share_the_limit(offer: OnSale, customer: int) -> None:
    requests = [new_request(("a", 1), customer=customer, sale=offer.sale, limit=3) for _ in range(8)]
    answers = at_once(*[partial(saved, request) for request in requests])
    refused = [kinds(answer) for answer in answers if isinstance(answer, dict) and answer]
    assert (answers.count({}), [list(kind.values()) for kind in refused]) == (3, [[OverLimit]] * 5)
    assert Order.objects.count() == 3
    assert taken() == {(customer, "a"): 3}


def test_without_the_row_they_would_share_they_do_not(
    offer: OnSale, customer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: what was taken is read, not locked and counted, and another order comes in between."""
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
    first, second = (new_request(("a", 1), customer=customer, sale=offer.sale, limit=3) for _ in range(2))
    with interleaved(lambda: saved(second), after="WITH request AS"):
        assert saved(first) == {}
    assert Order.objects.count() == 2


def test_batches_of_opposite_customers_do_not_deadlock(offer: OnSale) -> None:
    customers = [new_customer() for _ in range(6)]

    def batch(whose: Sequence[int]) -> Mapping[UUID, Refusal]:
        return saved(*(new_request(("a", 1), ("b", 1), customer=who, sale=offer.sale, limit=8) for who in whose))

    answers = at_once(*[lambda: batch(customers), lambda: batch(customers[::-1])] * 4)
    assert answers == [{}] * 8
    assert set(taken().values()) == {8}


# Giving back


def place_two(offer: OnSale, customer: int) -> list[UUID]:
    """Two orders of one customer: an `a` and a `b`, and two of `a`."""
    requests = [
        new_request(("a", 1), ("b", 1), customer=customer, sale=offer.sale, limit=5),
        new_request(("a", 2), customer=customer, sale=offer.sale, limit=5),
    ]
    for request in requests:
        registry.get("lua").place(request, save)
    assert taken() == {(customer, "a"): 3, (customer, "b"): 1}
    return [request.id for request in requests]


def books() -> dict[str, tuple[int, int | None]]:
    """On hand in Postgres and in Redis."""
    on_hand = dict(StockItem.objects.values_list("sku", "on_hand"))
    left = registry.counters().left(list(on_hand))
    return {sku: (units, left[sku]) for sku, units in on_hand.items()}


def test_units_allowances_and_the_counter_in_redis_come_back_with_the_commit(offer: OnSale, customer: int) -> None:
    orders = place_two(offer, customer)
    assert books() == {"a": (6, 6), "b": (8, 8)}
    with transaction.atomic():
        return_units(orders)
        assert registry.counters().left(["a", "b"]) == {"a": 6, "b": 8}
    assert books() == {"a": (9, 9), "b": (9, 9)}
    assert taken() == {(customer, "a"): 0, (customer, "b"): 0}


def test_nothing_comes_back_when_the_transaction_rolls_back(offer: OnSale, customer: int) -> None:
    orders = place_two(offer, customer)
    with transaction.atomic():
        return_units(orders)
        transaction.set_rollback(True)
    assert books() == {"a": (6, 6), "b": (8, 8)}
    assert taken() == {(customer, "a"): 3, (customer, "b"): 1}


def test_only_the_units_of_the_orders_that_are_named_come_back(offer: OnSale, customer: int) -> None:
    first, _ = place_two(offer, customer)
    with transaction.atomic():
        return_units([first])
        return_units([])
    assert books() == {"a": (7, 7), "b": (9, 9)}
    assert taken() == {(customer, "a"): 2, (customer, "b"): 0}


def test_units_of_an_order_without_a_limit_come_back_too(offer: OnSale, customer: int) -> None:
    registry.get("lua").place(new_request(("a", 4), customer=customer, sale=offer.sale), save)
    with transaction.atomic():
        return_units(list(Order.objects.values_list("pk", flat=True)))
    assert books() == {"a": (9, 9), "b": (9, 9)}
    assert taken() == {(customer, "a"): 0}


def test_a_limit_that_comes_later_counts_what_was_bought_before(offer: OnSale, customer: int) -> None:
    before = new_request(("a", 2), customer=customer, sale=offer.sale)
    registry.get("lua").place(before, save)
    late = new_request(("a", 1), customer=customer, sale=offer.sale, limit=2)
    assert kinds(saved(late)) == {late.id: OverLimit}
    with transaction.atomic():
        return_units([before.id])
    assert saved(late) == {}
    assert taken() == {(customer, "a"): 1}


@pytest.mark.parametrize("commits", [True, False])
def test_an_order_that_comes_while_units_come_back_waits_for_the_allowance(
    offer: OnSale, customer: int, commits: bool
) -> None:
    orders = place_two(offer, customer)
    request = new_request(("a", 5), customer=customer, sale=offer.sale, limit=5)

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            return_units(orders)
            answer = started(pool, request)
            transaction.set_rollback(not commits)
        refusals = answer.result(PATIENCE)

    assert kinds(refusals) == ({} if commits else {request.id: OverLimit})
    assert taken() == {(customer, "a"): 5 if commits else 3, (customer, "b"): 0 if commits else 1}


# What is rejected


def rejected(refused: Mapping[OrderRequest, str]) -> int:
    """Reject in a transaction that is committed, and return the number of statements."""
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        reject(refused)
    return len(queries)


def test_a_rejected_order_has_its_reason_and_its_items_and_takes_nothing(offer: OnSale, customer: int) -> None:
    request = new_request(("a", 2), ("b", 1), customer=customer, sale=offer.sale, price="12.34")
    rejected({request: "a: 2 wanted, 0 left"})
    order = Order.objects.get()
    assert (order.pk, order.customer_id, order.sale_id, order.key) == (request.id, customer, offer.sale, request.key)
    assert (order.state, order.reason) == ("rejected", "a: 2 wanted, 0 left")
    assert (order.body_hash, order.created_at) == (request.body_hash, request.created_at)
    items = order.items.order_by("product").values_list("product__sku", "quantity", "price")
    assert list(items) == [("a", 2, Decimal("12.34")), ("b", 1, Decimal("12.34"))]
    assert taken() == {}
    assert StockItem.objects.get(sku="a").on_hand == 9
    assert [(row.sold, row.conserved) for row in conservation.figures()] == [(0, True)] * 2


@pytest.mark.parametrize("orders", [0, 1, 100])
def test_however_many_are_rejected_it_is_one_statement(offer: OnSale, customer: int, orders: int) -> None:
    requests = [new_request(("a", 1), ("b", 1), customer=customer, sale=offer.sale) for _ in range(orders)]
    assert rejected(dict.fromkeys(requests, "no")) == min(orders, 1)
    assert Order.objects.filter(state="rejected", reason="no").count() == orders
    assert OrderItem.objects.count() == 2 * orders


def test_rejecting_again_changes_nothing_not_even_the_reason(offer: OnSale, customer: int) -> None:
    request = new_request(("a", 1), customer=customer, sale=offer.sale)
    for reason in ("the first", "the second"):
        rejected({request: reason})
    assert (Order.objects.get().reason, OrderItem.objects.count()) == ("the first", 1)
    assert kinds(saved(request)) == {request.id: Duplicate}


def test_what_is_an_order_by_now_is_not_rejected(offer: OnSale, customer: int) -> None:
    request = new_request(("a", 1), customer=customer, sale=offer.sale)
    saved(request)
    rejected({request: "no"})
    assert (Order.objects.get().state, OrderItem.objects.count()) == ("pending", 1)
    assert taken() == {(customer, "a"): 1}


def test_what_is_rejected_for_its_key_is_found_under_its_own_id(offer: OnSale, customer: int) -> None:
    """202 was answered to each of them, so each of them gets an outcome."""
    first, second, third = (new_request(("a", 1), customer=customer, sale=offer.sale, key="one") for _ in range(3))
    saved(first)
    for _ in range(2):
        rejected({second: "already placed", third: "already placed"})
    states = dict(Order.objects.values_list("pk", "state"))
    assert states == {first.id: "pending", second.id: "rejected", third.id: "rejected"}
    assert Order.objects.get(key="one").pk == first.id


def test_what_is_rejected_while_the_order_that_has_its_key_is_not_committed_yet_has_its_row(
    offer: OnSale, customer: int
) -> None:
    first, second = (new_request(("a", 1), customer=customer, sale=offer.sale, key="mine") for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert save([first]) == {}
            rejecting = begin(pool, partial(rejected, {second: "no"}))
            assert not rejecting.done()
        rejecting.result(PATIENCE)
    states = dict(Order.objects.values_list("pk", "state"))
    assert states == {first.id: "pending", second.id: "rejected"}
    assert OrderItem.objects.filter(order=second.id).count() == 1


def test_twins_that_are_rejected_together_share_no_key(offer: OnSale, customer: int) -> None:
    first, second = (new_request(("a", 1), customer=customer, sale=offer.sale, key="one") for _ in range(2))
    rejected({second: "no", first: "no"})
    assert dict(Order.objects.values_list("pk", "key")) == {first.id: "one", second.id: str(second.id)}


def test_who_is_gone_keeps_nobody_elses_rejection_from_being_written(offer: OnSale, customer: int) -> None:
    here = new_request(("a", 1), ("gone", 1), customer=customer, sale=offer.sale)
    of_nobody = new_request(("a", 1), customer=customer + 1000, sale=offer.sale)
    of_no_sale = new_request(("a", 1), customer=customer, sale=offer.sale + 1000)
    rejected({here: "no", of_nobody: "no", of_no_sale: "no"})
    assert Order.objects.get().pk == here.id
    assert [str(item) for item in OrderItem.objects.all()] == ["1 × a"]


def test_a_long_reason_is_cut(offer: OnSale, customer: int) -> None:
    rejected({new_request(("a", 1), customer=customer, sale=offer.sale): "x" * 300})
    assert Order.objects.get().reason == "x" * 200
