"""`advisory-lock`: until the commit, an order holds a lock on a number that each process computes from the sku."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import OperationalError, transaction

from inventory.errors import SoldOut
from inventory.models import StockItem
from inventory.strategies import advisory_lock, registry
from inventory.strategies.advisory_lock import key
from locking.postgres.names import advisory_key
from tests.factories import elsewhere, interleaved, new_request, preheated
from tests.inventory.conftest import Ledger, execute, fetch

pytestmark = pytest.mark.django_db(transaction=True)


def is_free(sku: str) -> bool:
    return fetch("SELECT pg_try_advisory_xact_lock_shared(%s)", key(sku)) == [True]


def test_the_lock_is_held_from_check_to_commit(ledger: Ledger) -> None:
    strategy = preheated("advisory-lock", {"a": 1, "b": 1, "c": 1})
    seen: list[list[bool]] = []

    def look() -> None:
        seen.append([is_free(sku) for sku in "abc"])

    with interleaved(look, before='^SELECT "inventory_stockitem'), interleaved(look, before="^INSERT"):
        strategy.place(new_request(("a", 1), ("c", 1)), ledger.save)
    elsewhere(look)
    assert seen == [[False, True, False], [False, True, False], [True, True, True]]


def test_a_refused_order_waits_for_no_row(ledger: Ledger) -> None:
    preheated("advisory-lock", {"a": 1})

    def buy(name: str) -> None:
        execute("SET lock_timeout = '100ms'")
        registry.get(name).place(new_request(("a", 2)), ledger.save)

    with transaction.atomic():
        StockItem.objects.select_for_update().get(sku="a")
        with pytest.raises(SoldOut, match="a: 2 wanted, 1 left"):
            elsewhere(partial(buy, "advisory-lock"))
        with pytest.raises(OperationalError, match="lock timeout"):
            elsewhere(partial(buy, "row-lock"))
    ledger.assert_law(a=(1, 0))


def test_a_key_is_the_same_in_every_process() -> None:
    assert (key("a"), key("a" * 64)) == (7444073993926074189, -8167838426030671072)
    assert key("a") != advisory_key("a"), "a lock of that name"


def test_two_skus_with_the_same_key(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisory_lock, "key", lambda sku: 1)
    preheated("advisory-lock", {"a": 1, "b": 1}).place(new_request(("a", 1), ("b", 1)), ledger.save)
    ledger.assert_law(a=(0, 1), b=(0, 1))
