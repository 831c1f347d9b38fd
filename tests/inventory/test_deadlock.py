"""Why a draft is in the order of its skus: the negative control of the conformance suite's opposite carts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from inventory.draft import Draft
from inventory.strategies.guarded_update import GuardedUpdate
from tests.factories import at_once, new_draft, preheated, tally
from tests.inventory.conftest import Ledger
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


def unordered(draft: Draft) -> Draft:
    """The same cart the other way round, which a draft refuses to be made of."""
    object.__setattr__(draft, "lines", draft.lines[::-1])
    return draft


def test_opposite_carts_that_are_not_ordered_deadlock_and_one_of_them_is_not_sold(ledger: Ledger) -> None:
    preheated("guarded-update", {"a": 2, "b": 2})
    both_have_one = threading.Barrier(2)

    def buy(draft: Draft) -> Any:
        taken = 0

        def meet(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            nonlocal taken
            result = execute(sql, *rest)
            if sql.startswith("UPDATE"):
                taken += 1
                if taken == 1:
                    both_have_one.wait(PATIENCE)
            return result

        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '50ms'")
        with connection.execute_wrapper(meet):
            return GuardedUpdate().place(draft, ledger.save)

    cart = ("a", 1), ("b", 1)
    answers = at_once(lambda: buy(new_draft(*cart)), lambda: buy(unordered(new_draft(*cart))))

    assert tally(answers) == {"COMMITTED": 1, "OperationalError": 1}
    assert "deadlock detected" in str(next(answer for answer in answers if isinstance(answer, Exception)))
    ledger.assert_law(a=(1, 1), b=(1, 1))
