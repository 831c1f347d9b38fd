"""Without a fixed order of rows and locks, orders deadlock: controls of `test_opposite_carts_do_not_deadlock`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from inventory import stock
from inventory.requests import OrderRequest
from inventory.strategies import advisory_lock, registry
from inventory.strategies.advisory_lock import LOCK
from inventory.strategies.guarded_update import GuardedUpdate
from tests.factories import at_once, count_by_kind, new_request, preheated, waiting_in_postgres
from tests.inventory.conftest import Ledger, execute, fetch, in_steps
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

CART = ("a", 1), ("b", 1)
ORDERED_OR_NOT = pytest.mark.parametrize(
    ("in_order", "answers"), [(True, {"COMMITTED": 2}), (False, {"COMMITTED": 1, "OperationalError": 1})]
)


def unordered(order: OrderRequest) -> OrderRequest:
    """Return the same order with its items reversed, bypassing the constructor, which would refuse them."""
    object.__setattr__(order, "items", order.items[::-1])
    return order


def test_unordered_items_deadlock(ledger: Ledger) -> None:
    preheated("guarded-update", {"a": 2, "b": 2})
    both_have_one = threading.Barrier(2)

    def buy(order: OrderRequest) -> Any:
        taken = 0

        def meet(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            nonlocal taken
            result = execute(sql, *rest)
            if sql.lstrip().startswith("UPDATE"):
                taken += 1
                if taken == 1:
                    both_have_one.wait(WAIT_TIMEOUT)
            return result

        execute("SET deadlock_timeout = '50ms'")
        with connection.execute_wrapper(meet):
            return GuardedUpdate().place(order, in_steps(ledger.save))

    answers = at_once(lambda: buy(new_request(*CART)), lambda: buy(unordered(new_request(*CART))))
    assert count_by_kind(answers) == {"COMMITTED": 1, "OperationalError": 1}
    assert "deadlock detected" in str(next(answer for answer in answers if isinstance(answer, Exception)))
    ledger.assert_law(a=(1, 1), b=(1, 1))


def released_at_once(take_everything: Callable[[], object], *orders: Callable[[], Any]) -> list[Any]:
    """Place two orders while everything is locked. Once both wait, release all locks at once."""

    def place(order: Callable[[], Any]) -> Any:
        execute("SET deadlock_timeout = '50ms'")
        return order()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            take_everything()
            answers = pool.submit(at_once, *[partial(place, order) for order in orders])
            wait_for(lambda: waiting_in_postgres() == len(orders), "both to wait")
        return answers.result(WAIT_TIMEOUT)


@pytest.mark.parametrize("name", ["row-lock", "unit-rows"])
@ORDERED_OR_NOT
def test_rows_locked_in_one_order_do_not_deadlock(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, name: str, in_order: bool, answers: dict[str, int]
) -> None:
    """Orders with opposite items lock rows in order of sku. Negative control: in the items' order, they deadlock."""
    strategy, lock, both_have_one = registry.get(name), stock.lock, threading.Barrier(2)
    stock.deliver("a", 2)
    stock.deliver("b", 2)

    def lock_as_named(skus: list[str]) -> dict[str, int]:
        first, second = skus
        units = lock([first])
        both_have_one.wait(WAIT_TIMEOUT)
        return units | lock([second])

    if not in_order:
        monkeypatch.setattr(stock, "lock", lock_as_named)
    given = released_at_once(
        lambda: lock(["a", "b"]),
        lambda: strategy.place(new_request(*CART), ledger.save),
        lambda: strategy.place(unordered(new_request(*CART)), ledger.save),
    )
    assert count_by_kind(given) == answers
    sold = answers["COMMITTED"]
    ledger.assert_law(a=(2 - sold, sold), b=(2 - sold, sold))


@ORDERED_OR_NOT
def test_keys_locked_in_one_order_do_not_deadlock(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, in_order: bool, answers: dict[str, int]
) -> None:
    """Advisory locks are taken in the order of their keys. Several skus may share a key, here `a` and `c`.

    Negative control: in the order of skus, one order locks the keys 2 and 1, and the other locks 1 and 2.
    """
    monkeypatch.setattr(advisory_lock, "key", {"a": 2, "b": 1, "c": 2}.get)
    if not in_order:
        monkeypatch.setattr(advisory_lock, "sorted", list, raising=False)
    strategy = preheated("advisory-lock", {"a": 1, "b": 2, "c": 1})

    given = released_at_once(
        lambda: fetch(LOCK, [1, 2]),
        lambda: strategy.place(new_request(*CART), ledger.save),
        lambda: strategy.place(new_request(("b", 1), ("c", 1)), ledger.save),
    )
    assert count_by_kind(given) == answers
    assert sum(ledger.sold().values()) == 2 * answers["COMMITTED"]
    assert all(row.conserved for row in ledger.figures().values())
