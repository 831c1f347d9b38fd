"""Fixtures of the tests of stock: a ledger of what was sold, the counters in Redis, and ways to fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection
from psycopg import Error
from redis import Redis

from inventory import audit, stock
from inventory.counters.whole import Counters
from inventory.errors import Refusal
from inventory.requests import OrderRequest, Save, SaveAtOnce, Taking
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from locking import Lease, RedisLock
from tests.factories import elsewhere, nobody


def fails(error: BaseException) -> Save:
    """Return a `save` callback that raises an error."""

    def save(orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        raise error

    return save


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def fetch(statement: str, *arguments: object) -> list[Any]:
    """Return the first column of a statement's result."""
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments)
        return [row[0] for row in cursor.fetchall()]


def after(look: Callable[[], object], save: Save) -> Save:
    """Return a `save` callback that calls `look` first."""
    return lambda orders: (look(), save(orders))[1]


def in_steps(save: Save) -> Save:
    """Return a `save` callback without `at_once`, so that the strategy opens a transaction."""
    return lambda orders: save(orders)


ITEMS = """
    SELECT sku, received,
        (on_hand
            + (SELECT coalesce(sum(on_hand), 0) FROM inventory_stocksegment AS part WHERE part.sku = item.sku)
            + (SELECT count(*) FROM inventory_stockunit AS unit WHERE unit.sku = item.sku))::bigint
    FROM inventory_stockitem AS item
"""
"""For each sku, the units received and on hand: unsplit, in segments, and in unit rows."""


SOLD = "SELECT * FROM unnest(%(orders)s::uuid[], %(each_sku)s::text[], %(each_units)s::int[]) AS item (id, sku, units)"
AT_ONCE = f"""
    WITH taken AS (TAKING RETURNING true), stock AS (SELECT count(*) = %(rows)s AS is_taken FROM taken),
         sold AS (INSERT INTO tests_sold SELECT item.* FROM ({SOLD}) AS item WHERE (SELECT is_taken FROM stock))
    SELECT CASE WHEN EXISTS (SELECT FROM taken) THEN shop_all_or_nothing((SELECT is_taken FROM stock)) ELSE false END
"""


class SaveSold(SaveAtOnce):
    """A `save` callback that writes the units of orders to the table of sold units. It refuses nothing."""

    def __call__(self, orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        if orders:
            with connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO tests_sold {SOLD}", self._items(orders))
        return {}

    def at_once(self, orders: Sequence[OrderRequest], taking: Taking) -> bool:
        arguments = {**self._items(orders), **taking.arguments, "rows": taking.rows}
        try:
            with connection.cursor() as cursor:
                cursor.execute(AT_ONCE.replace("TAKING", taking.sql), arguments)
                return bool(cursor.fetchone()[0])
        except DatabaseError as error:
            if isinstance(error.__cause__, Error) and error.__cause__.sqlstate == "LU001":
                return False
            raise

    def _items(self, orders: Sequence[OrderRequest]) -> dict[str, list[object]]:
        items = [(order.id, item.sku, item.quantity) for order in orders for item in order.items]
        columns = (list(column) for column in zip(*items, strict=True))
        return dict(zip(("orders", "each_sku", "each_units"), columns, strict=True))


class Ledger:
    """A table of sold units, with callbacks that write to it."""

    def __init__(self) -> None:
        self.rejected: dict[UUID, str] = {}
        self.save = SaveSold()

    def refuse(self, refusals: Mapping[UUID, Refusal]) -> Save:
        """Return a `save` callback that refuses these orders, and writes the others."""

        def save(orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
            self.save([order for order in orders if order.id not in refusals])
            return {order.id: refusals[order.id] for order in orders if order.id in refusals}

        return save

    def lose_connection(self, orders: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        """A `save` callback that writes, and then loses its connection to the server."""
        self.save(orders)
        execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return {}

    def sold(self) -> dict[str, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT sku, sum(quantity) FROM tests_sold GROUP BY sku")
            return {sku: int(units) for sku, units in cursor.fetchall()}

    def orders(self) -> list[UUID]:
        return fetch("SELECT DISTINCT order_id FROM tests_sold ORDER BY order_id")

    def reject(self, rejected: Mapping[OrderRequest, str]) -> None:
        self.rejected.update({order.id: reason for order, reason in rejected.items()})

    def saved(self, order_ids: Collection[UUID]) -> set[UUID]:
        return set(self.orders()) & set(order_ids)

    def figures(self) -> dict[str, audit.Figures]:
        with connection.cursor() as cursor:
            cursor.execute(ITEMS)
            return {row.sku: row for row in audit.check(cursor.fetchall(), self.sold())}

    def assert_law(self, **expected: tuple[int, int]) -> None:
        """Check each sku's units on hand and sold, and the conservation law. Redis must agree and reserve nothing."""
        figures = self.figures()
        assert {sku: (row.on_hand, row.sold) for sku, row in figures.items()} == expected
        assert all(row.conserved for row in figures.values())
        counters = registry.counters()
        assert counters.reserved() == {}
        for sku, left in counters.left(list(figures)).items():
            assert left in (None, figures[sku].on_hand)
        for sku, (left, _) in registry.segment_counters().totals(list(figures)).items():
            assert left == figures[sku].on_hand


def put_on_sale(strategy: Strategy, **units: int) -> None:
    """Deliver stock, and preheat a strategy with it."""
    for sku, received in units.items():
        stock.deliver(sku, received)
    strategy.preheat(list(units), nobody)


@pytest.fixture
def ledger(transactional_db: None, redis: Redis) -> Iterator[Ledger]:
    execute("CREATE TABLE tests_sold (order_id uuid, sku text, quantity int)")
    yield Ledger()
    execute("DROP TABLE tests_sold")


def replace_in_script(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, guard: str, instead: str = "") -> None:
    """Replace a guard in a script or SQL statement of a module."""
    text = getattr(module, name)
    assert guard in text
    monkeypatch.setattr(module, name, text.replace(guard, instead))


@pytest.fixture
def counters(redis: Redis) -> Counters:
    return registry.counters()


@pytest.fixture
def no_redis(tmp_path: Path) -> Redis:
    """A client whose server does not exist."""
    return Redis.from_url(f"unix://{tmp_path}/nobody.sock", retry=None)


class PausedAfterGrant(RedisLock):
    """A lock that pauses its holder after the grant. The TTL ends, and `meanwhile` may take the lock."""

    def __init__(self, client: Redis, name: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(client, name, renew=False)
        self.meanwhile = meanwhile

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        with super().hold(timeout) as lease:
            self._client.delete(f"lock:{{{self.name}}}")  # The server does this at the end of the TTL.
            elsewhere(self.meanwhile)
            yield lease
