"""Why rows and locks are taken in one order: the negative controls of the conformance suite's opposite carts."""

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
from tests.factories import at_once, new_request, preheated, tally, waiting_in_postgres
from tests.inventory.conftest import Ledger
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def unordered(request: OrderRequest) -> OrderRequest:
    """The same cart the other way round, which a request refuses to be made of."""
    object.__setattr__(request, "items", request.items[::-1])
    return request


def test_opposite_carts_that_are_not_ordered_deadlock_and_one_of_them_is_not_sold(ledger: Ledger) -> None:
    preheated("guarded-update", {"a": 2, "b": 2})
    both_have_one = threading.Barrier(2)

    def buy(request: OrderRequest) -> Any:
        taken = 0

        def meet(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            nonlocal taken
            result = execute(sql, *rest)
            if sql.lstrip().startswith("UPDATE"):
                taken += 1
                if taken == 1:
                    both_have_one.wait(PATIENCE)
            return result

        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '50ms'")
        with connection.execute_wrapper(meet):
            return GuardedUpdate().place(request, ledger.save)

    cart = ("a", 1), ("b", 1)
    answers = at_once(lambda: buy(new_request(*cart)), lambda: buy(unordered(new_request(*cart))))

    assert tally(answers) == {"COMMITTED": 1, "OperationalError": 1}
    assert "deadlock detected" in str(next(answer for answer in answers if isinstance(answer, Exception)))
    ledger.assert_law(a=(1, 1), b=(1, 1))


def both_get_what_they_ask_for_first(take_everything: Callable[[], object], *buyers: Callable[[], Any]) -> list[Any]:
    """Have two buyers wait while everything is taken, and then let go of it all at once."""

    def patient(buy: Callable[[], Any]) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '50ms'")
        return buy()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            take_everything()
            answers = pool.submit(at_once, *[partial(patient, buy) for buy in buyers])
            wait_for(lambda: waiting_in_postgres() == len(buyers), "both to wait")
        return answers.result(PATIENCE)


@pytest.mark.parametrize("name", ["row-lock", "unit-rows"])
@pytest.mark.parametrize(
    ("in_order", "answers"),
    [(True, {"COMMITTED": 2}), (False, {"COMMITTED": 1, "OperationalError": 1})],
    ids=["ordered", "as named"],
)
def test_rows_locked_in_one_order_do_not_deadlock_and_rows_locked_as_named_do(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, name: str, in_order: bool, answers: dict[str, int]
) -> None:
    """Carts that are out of order, so that only the order of the locks is left. `unit-rows` sells from the pool."""
    strategy = registry.get(name)
    stock.deliver("a", 2)
    stock.deliver("b", 2)
    lock = stock.lock
    both_have_one = threading.Barrier(2)

    def lock_as_named(skus: list[str]) -> dict[str, int]:
        first, second = skus
        units = lock([first])
        both_have_one.wait(PATIENCE)
        return units | lock([second])

    if not in_order:
        monkeypatch.setattr(stock, "lock", lock_as_named)
    cart = ("a", 1), ("b", 1)
    given = both_get_what_they_ask_for_first(
        lambda: lock(["a", "b"]),
        lambda: strategy.place(new_request(*cart), ledger.save),
        lambda: strategy.place(unordered(new_request(*cart)), ledger.save),
    )
    assert tally(given) == answers
    sold = answers["COMMITTED"]
    ledger.assert_law(a=(2 - sold, sold), b=(2 - sold, sold))


@pytest.mark.parametrize(
    ("in_order", "answers"),
    [(True, {"COMMITTED": 2}), (False, {"COMMITTED": 1, "OperationalError": 1})],
    ids=["by number", "by sku"],
)
def test_where_two_skus_have_one_number_locks_in_the_order_of_numbers_do_not_deadlock(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, in_order: bool, answers: dict[str, int]
) -> None:
    """`a` and `c` have the same: in the order of skus one buyer asks for 2 and 1, the other for 1 and 2."""
    monkeypatch.setattr(advisory_lock, "key", {"a": 2, "b": 1, "c": 2}.get)
    if not in_order:
        monkeypatch.setattr(advisory_lock, "sorted", list, raising=False)
    strategy = preheated("advisory-lock", {"a": 1, "b": 2, "c": 1})

    def take_everything() -> None:
        with connection.cursor() as cursor:
            cursor.execute(LOCK, [[1, 2]])

    given = both_get_what_they_ask_for_first(
        take_everything,
        lambda: strategy.place(new_request(("a", 1), ("b", 1)), ledger.save),
        lambda: strategy.place(new_request(("b", 1), ("c", 1)), ledger.save),
    )
    assert tally(given) == answers
    assert sum(ledger.sold().values()) == 2 * answers["COMMITTED"]
    assert all(row.conserved for row in ledger.figures().values())
