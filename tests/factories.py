"""Helpers of the tests of stock, shop and lab: products, sales, customers, requests, and concurrent buyers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
import uuid_utils.compat
from django.db import Error, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from django.utils import timezone

from inventory import sold_out, stock
from inventory.errors import TryAgain
from inventory.requests import OrderRequest, Placement, RequestItem, Save
from inventory.strategies import registry
from inventory.strategies.base import Strategy
from shop.models import Order, Sale, default_currency
from shop.sales import offers
from shop.sales.preheat import preheat_sale
from shop.sold import saved
from tests.waiting import WAIT_TIMEOUT, wait_for

T = TypeVar("T")

SAVING = [name for name in registry.NAMES if not registry.get(name).queues]
"""Strategies that save the order before they respond. Strategies that queue the order have tests of their own."""

DISTINCT = [name for name in registry.NAMES if name not in {"file-lock", "insert-lock", "lock-table", "session-lock"}]
"""One strategy of each kind, for slow tests. `redis-lock` represents all strategies that take a lock first."""

OF_THE_SHOP = ("group-commit", "guarded-update", "lua", "lua-queue", "unit-rows")
"""One strategy of each kind that the shop treats differently. The tests of `inventory` cover how each takes stock.

The kinds, in this order: it saves orders together, it saves each order alone, it has a counter in Redis, it has a
queue, it splits the stock. A strategy with a lock takes the lock and then saves as `guarded-update` does. The tests of
`inventory` cover its lock.
"""


def slow(*values: Any) -> list[Any]:
    """Return the values as test parameters that are marked slow."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def fast_and_slow(names: Iterable[str]) -> list[Any]:
    """Return strategy names as test parameters. Names outside `OF_THE_SHOP` are marked slow."""
    return [each for name in names for each in ([name] if name in OF_THE_SHOP else slow(name))]


def new_request(
    *cart: tuple[str, int],
    customer: int = 1,
    sale: int = 1,
    key: str = "",
    limit: int | None = None,
    price: str = "9.90",
    id: UUID | None = None,  # noqa: A002 - the name of the field
) -> OrderRequest:
    """Return an order request for a cart of (sku, quantity) pairs, sorted by sku."""
    return OrderRequest(
        id=id or uuid_utils.compat.uuid7(),
        customer=customer,
        sale=sale,
        items=tuple(RequestItem(sku, quantity, Decimal(price), limit) for sku, quantity in sorted(cart)),
        key=key or str(uuid4()),
        body_hash="0" * 64,
        created_at=datetime.now(tz=UTC),
    )


NEW_CUSTOMER = """
    INSERT INTO auth_user (username, password, first_name, last_name, email, is_superuser, is_staff, is_active,
                           date_joined)
    VALUES (%s, '!', '', '', '', false, false, true, now())
    RETURNING id
"""


def new_customer(name: str = "") -> int:
    """Create a customer and return their id."""
    with connection.cursor() as cursor:
        cursor.execute(NEW_CUSTOMER, [name or f"buyer {uuid4()}"])
        customer: int = cursor.fetchone()[0]
    return customer


@dataclass(frozen=True, slots=True)
class OnSale:
    """A sale, with a dict from sku to product id, and the price of each unit."""

    sale: int
    products: Mapping[str, int]
    price: str = "9.90"

    @property
    def prices(self) -> dict[int, Decimal]:
        """The price of each product, by product id."""
        return dict.fromkeys(self.products.values(), Decimal(self.price))

    def cart(self, **units: int) -> dict[int, int]:
        """Return quantities by product id, the form of a cart that the shop expects."""
        return {self.products[sku]: quantity for sku, quantity in units.items()}


PUT_ON_SALE = """
    WITH wanted AS (
        SELECT * FROM unnest(%(skus)s::text[], %(names)s::text[], %(received)s::bigint[]) WITH ORDINALITY
                   AS wanted (sku, name, received, place)
    ), neighbour AS (
        SELECT FROM shop_saleitem JOIN shop_product ON shop_product.id = product_id WHERE sku = ANY(%(skus)s)
         UNION ALL
        SELECT FROM inventory_stockitem WHERE sku = ANY(%(skus)s) AND split_by <> ''
    ), sale AS (
        INSERT INTO shop_sale (name, opens_at, closes_at, strategy, currency, preheated_at)
        SELECT %(name)s, %(opens)s, %(closes)s, %(strategy)s, %(currency)s,
               CASE WHEN %(loaded)s AND NOT EXISTS (TABLE neighbour) AND %(closes)s > clock_timestamp()
                    THEN statement_timestamp() END
        RETURNING id, preheated_at
    ), stocked AS (
        INSERT INTO inventory_stockitem AS item (sku, received, on_hand, version, fence, fenced_by, split_by)
        SELECT sku, received, received, 0, 0, '', '' FROM wanted WHERE received > 0
            ON CONFLICT (sku) DO UPDATE SET received = item.received + excluded.received,
                                            on_hand = item.on_hand + excluded.on_hand,
                                            version = item.version + 1
    ), moved AS (
        INSERT INTO inventory_stockmovement (sku, kind, units, why, at)
        SELECT sku, 'delivered', received, '', %(now)s FROM wanted WHERE received > 0 ORDER BY place
    ), product AS (
        INSERT INTO shop_product (sku, name) SELECT sku, name FROM wanted ORDER BY place
            ON CONFLICT (sku) DO UPDATE SET sku = excluded.sku
        RETURNING id, sku
    ), offered AS (
        INSERT INTO shop_saleitem (sale_id, product_id, price, "limit")
        SELECT sale.id, product.id, %(price)s, %(limit)s
          FROM wanted JOIN product USING (sku) CROSS JOIN sale ORDER BY place
    )
    SELECT id, NOT EXISTS (TABLE neighbour), preheated_at IS NOT NULL,
           (SELECT coalesce(json_object_agg(sku, product.id ORDER BY place), '{}') FROM wanted JOIN product USING (sku))
      FROM sale
"""
"""Inserts the rows of a sale and of its stock in one statement. Most shop tests need these rows.

With one statement for each table, these inserts would be half of the queries of such a test.

If the sale is open and has no neighbour, and its strategy copies no stock, the statement also preheats the sale: it
only has to set `preheated_at`. A neighbour is another sale of the same skus, or stock that is split.
"""


def on_sale(
    units: Mapping[str, int],
    *,
    strategy: str = "guarded-update",
    limit: int | None = None,
    price: str = "9.90",
    opens: timedelta = timedelta(hours=-1),
    closes: timedelta = timedelta(hours=1),
    preheat: bool = True,
) -> OnSale:
    """Create a sale of products in stock, by default open and preheated. `opens` and `closes` are relative to now.

    `test_a_sale_for_tests_is_like_one_that_is_preheated` compares it with a sale that the shop's own code has made.
    """
    now = timezone.now()
    given = {
        "name": f"Sale by {strategy}",
        "opens": now + opens,
        "closes": now + closes,
        "strategy": strategy,
        "currency": default_currency(),
        "price": Decimal(price),
        "limit": limit,
        "now": now,
        "skus": list(units),
        "names": [sku.title() for sku in units],
        "received": list(units.values()),
        "loaded": preheat and opens < timedelta() < closes and strategy not in {*registry.COPYING, "lock-table"},
    }
    with connection.cursor() as cursor:
        cursor.execute(PUT_ON_SALE, given)
        sale, alone, loaded, products = cursor.fetchone()
    sold_out.forget()
    if preheat and opens < timedelta() < closes and not loaded:
        if alone and not registry.get(strategy).queues:
            with transaction.atomic():
                registry.get(strategy).preheat(sorted(units), saved)
                Sale.objects.filter(pk=sale).update(preheated_at=Now())
        else:
            preheat_sale(sale)
    return OnSale(sale, products, price)


def close_now(offer: OnSale) -> None:
    """End the window of a sale and drop the cached offer, so that this process notices at once."""
    now = timezone.now()
    Sale.objects.filter(pk=offer.sale).update(opens_at=now - timedelta(hours=2), closes_at=now - timedelta(hours=1))
    offers.cache.clear()


def orders_in(*states: str) -> int:
    """Count the orders in the given states; without states, count all orders."""
    return Order.objects.filter(**({"state__in": states} if states else {})).count()


def elsewhere(body: Callable[[], T]) -> T:
    """Run the body in another thread, on its own database connection, and return its result."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_on_own_connection, body).result(WAIT_TIMEOUT)


def begin(pool: ThreadPoolExecutor, body: Callable[[], T]) -> Future[T]:
    """Start the body on its own connection. Return when it has ended, or a session waits for a lock in Postgres."""
    begun = pool.submit(_on_own_connection, body)
    wait_for(lambda: begun.done() or waiting_in_postgres(), "the body to end or to wait for a lock")
    return begun


def at_once(*bodies: Callable[[], T]) -> list[T | Exception]:
    """Run every body at the same time, each in its own thread and on its own connection.

    Returns:
        The result of each body, or the exception that it raised.
    """
    start = threading.Barrier(len(bodies))

    def run(body: Callable[[], T]) -> T | Exception:
        connection.ensure_connection()
        start.wait(WAIT_TIMEOUT)
        try:
            return body()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(_on_own_connection, [partial(run, body) for body in bodies]))


_idle: list[BaseDatabaseWrapper] = []
"""Connections of bodies that have ended. For Postgres, a new session costs more than most bodies."""


def close_connections() -> None:
    """Close the connections of this thread and those in `_idle`. New sessions start with the present defaults."""
    connections.close_all()
    while _idle:
        _idle.pop().close()


def _on_own_connection(body: Callable[[], T]) -> T:
    """Run the body on a connection that no other thread has: an idle one, or a new one."""
    with suppress(IndexError, Error):
        idle = _idle.pop()
        if idle.settings_dict is connections.settings["default"]:
            idle.cursor().execute("RESET ALL")  # fails if a test has ended the session
            connections["default"] = idle
        else:  # a test of a pool or a pooler
            _idle.append(idle)
    try:
        return body()
    finally:
        own = connections["default"]
        if own.connection and own.settings_dict is connections.settings["default"] and not own.in_atomic_block:
            own.inc_thread_sharing()
            _idle.append(own)
            del connections["default"]
        connections.close_all()


def to_the_end(strategy: Strategy, request: OrderRequest, save: Save) -> Any:
    """Place an order request and retry while the strategy raises an error that says to try again."""
    while True:
        with suppress(TryAgain):
            return strategy.place(request, save)


def count_by_kind(answers: Sequence[Any]) -> dict[str, int]:
    """Count the answers by kind: the class name of an error, or COMMITTED or QUEUED for an order."""
    counts: dict[str, int] = {}
    for answer in answers:
        match answer:
            case Exception():
                name = type(answer).__name__
            case Placement():
                name = "QUEUED" if answer.place else "COMMITTED"
            case _:
                name = str(answer)
        counts[name] = counts.get(name, 0) + 1
    return counts


@contextmanager
def interleaved(action: Callable[[], Any], *, before: str = "", after: str = "") -> Iterator[None]:
    """Run the action on another connection, once, just before or after this thread's first matching statement.

    `before` or `after` is a regular expression. It is searched for in the text of the statement and its parameters.
    """
    done = False

    def step(execute: Callable[..., Any], sql: str, params: Any, *rest: Any) -> Any:
        nonlocal done
        matches = not done and re.search(before or after, f"{sql.strip()} {params}", re.DOTALL)
        if matches and before:
            done = True
            elsewhere(action)
        result = execute(sql, params, *rest)
        if matches and after:
            done = True
            elsewhere(action)
        return result

    with connection.execute_wrapper(step):
        yield
    assert done, f"no statement matched {before or after}"


def waiting_in_postgres() -> int:
    """Count the sessions that wait for a lock in Postgres, without the sessions of `locking`'s own locks."""
    with connection.cursor() as cursor:
        # Read pg_locks, too: inside a transaction, pg_stat_activity keeps showing its first snapshot.
        cursor.execute(
            "SELECT count(DISTINCT pid) FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)"
            " WHERE NOT granted AND coalesce(application_name, '') NOT LIKE %s",
            ["lock %"],
        )
        waiting: int = cursor.fetchone()[0]
    return waiting


def nobody(requests: Collection[UUID]) -> set[UUID]:
    """A `Saved` callable that finds no order for any request, for tests without requests in progress."""
    return set()


def preheated(name: str, units: Mapping[str, int]) -> Strategy:
    """Deliver stock, preheat the named strategy with it, and return the strategy."""
    for sku, received in units.items():
        stock.deliver(sku, received)
    strategy = registry.get(name)
    strategy.preheat(list(units), nobody)
    return strategy
