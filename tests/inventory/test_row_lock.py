"""`row-lock`: what was read stays true until the commit, and rows are always locked in the same order."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from inventory import stock
from inventory.models import StockItem
from tests.factories import interleaved, new_request, preheated
from tests.inventory.conftest import Ledger

pytestmark = pytest.mark.django_db(transaction=True)


def test_all_rows_are_locked_before_any_is_written(ledger: Ledger) -> None:
    strategy = preheated("row-lock", {"a": 1, "b": 1, "c": 1})
    free: list[str] = []

    def look() -> None:
        with transaction.atomic():
            rows = StockItem.objects.select_for_update(skip_locked=True).order_by("sku")
            free.extend(rows.values_list("sku", flat=True))

    with interleaved(look, before="^UPDATE"):
        strategy.place(new_request(("a", 1), ("c", 1)), ledger.save)
    assert free == ["b"]
    ledger.assert_law(a=(0, 1), b=(1, 0), c=(0, 1))


def test_rows_are_locked_in_the_order_of_python(ledger: Ledger) -> None:
    """Rows are locked in Python's sort order. Some collations put `a` before `B`, so the query names a collation."""
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        stock.lock(["a", "B"])
        assert stock.lock([]) == {}
    (query,) = [query for query in queries if "SELECT" in query["sql"]]
    assert 'ORDER BY sku COLLATE "C" FOR NO KEY UPDATE' in query["sql"]
    with pytest.raises(TransactionManagementError):
        stock.lock(["a"])
