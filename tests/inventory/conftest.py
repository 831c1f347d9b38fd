"""What the tests of stock share: a ledger for what was sold, and the counters in Redis."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from uuid import UUID

import pytest
from django.db import connection
from redis import Redis

from inventory import audit, stock
from inventory.counters.whole import Counters
from inventory.errors import Refusal
from inventory.models import StockItem
from inventory.requests import OrderRequest
from inventory.strategies import registry


class Ledger:
    """A Save of the tests' own: it writes what was sold, in the open transaction, and refuses nothing."""

    def __init__(self) -> None:
        self.rejected: dict[UUID, str] = {}

    def save(self, requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        items = [(request.id, item.sku, item.quantity) for request in requests for item in request.items]
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO tests_sold SELECT * FROM unnest(%s::uuid[], %s::text[], %s::int[])",
                [list(column) for column in zip(*items, strict=True)],
            )
        return {}

    def sold(self) -> dict[str, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT sku, sum(quantity) FROM tests_sold GROUP BY sku")
            return {sku: int(units) for sku, units in cursor.fetchall()}

    def orders(self) -> list[UUID]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT DISTINCT request FROM tests_sold ORDER BY request")
            return [row[0] for row in cursor.fetchall()]

    def reject(self, refused: Mapping[OrderRequest, str]) -> None:
        self.rejected.update({request.id: why for request, why in refused.items()})

    def forget(self, units: int) -> None:
        """Units of orders that stand no longer."""
        with connection.cursor() as cursor:
            cursor.execute("UPDATE tests_sold SET quantity = quantity - %s", [units])

    def saved(self, requests: Collection[UUID]) -> set[UUID]:
        return set(self.orders()) & set(requests)

    def figures(self) -> dict[str, audit.Figures]:
        items = StockItem.objects.values_list("sku", "received", stock.all_on_hand())
        return {row.sku: row for row in audit.check(items, self.sold())}

    def assert_law(self, **expected: tuple[int, int]) -> None:
        """Each sku has so many units on hand and sold, the law holds, and so does Redis' own law at rest."""
        figures = self.figures()
        assert {sku: (row.on_hand, row.sold) for sku, row in figures.items()} == expected
        assert all(row.conserved for row in figures.values())
        counters = registry.counters()
        assert counters.reserved() == {}
        for sku, left in counters.left(list(figures)).items():
            assert left in (None, figures[sku].on_hand)
        for sku, (left, _) in registry.segment_counters().sums(list(figures)).items():
            assert left == figures[sku].on_hand


@pytest.fixture
def ledger(transactional_db: None, redis: Redis) -> Iterator[Ledger]:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE tests_sold (request uuid, sku text, quantity int)")
    yield Ledger()
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE tests_sold")


@pytest.fixture
def counters(redis: Redis) -> Counters:
    return registry.counters()
