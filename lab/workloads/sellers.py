"""The sellers of stock experiments: the lab's ways of selling on the lab's tables, and strategies on the shop's tables.

A seller also reports the contents of its tables at the end: it implements `lab.checkers.stock.Records`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import gettempdir
from typing import Any, cast

from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from inventory.audit import Figures
from inventory.models import StockItem
from inventory.queue.stream import Queue
from inventory.requests import Save
from inventory.strategies import locks, registry
from inventory.strategies.advisory_lock import AdvisoryLockStrategy
from inventory.strategies.base import Strategy
from inventory.strategies.group_commit import GroupCommit
from inventory.strategies.guarded_update import GuardedUpdate
from inventory.strategies.locked import Locked
from inventory.strategies.lua import Lua
from inventory.strategies.lua_queue import LuaQueue
from inventory.strategies.optimistic import Optimistic
from inventory.strategies.row_lock import RowLockStrategy
from inventory.strategies.segmented_lock import SegmentedLock
from inventory.strategies.segmented_redis import SegmentedRedis
from inventory.strategies.unit_rows import UnitRows
from lab.checkers import ledger
from lab.explorer.history import History
from lab.ladder.catalogue import LadderEntry
from lab.ladder.stock import StockRung
from lab.ladder.stock.segmented_keys import SegmentedKeys
from lab.models import RungOrder, RungStock
from lab.sandbox.local_locks import SteppingProcessLock
from lab.workloads.base import NAMES
from shop import conservation
from shop.models import Order, OrderItem, Product, Sale, SaleItem
from shop.orders.saving import reject, save
from shop.reconcile import reconcile
from shop.sold import saved

SKU = "unit"
KEY = "key of "
"""Beginning of the idempotency key of a client's request. The client's name follows."""
WAIT = 60.0
"""Seconds of real time for which a client waits for a lock. No schedule takes as long."""
SEGMENTS = 2


class Seller(ABC):
    """Sells the units of one sku.

    Args:
        entry: the rung.
        units: number of units in stock.
        history: the history of the run.
    """

    repairs = False
    """Whether the shop repairs the damage of a crashed process. If so, `repair` does so."""

    def __init__(self, entry: LadderEntry, units: int, history: History) -> None:
        self.entry = entry
        self.units = units
        self.history = history

    @abstractmethod
    def open(self) -> tuple[Strategy, Save]:
        """Fill the stock and open the sale. Return the strategy, and the function with which it saves orders."""

    @abstractmethod
    def load(self) -> None:
        """Copy the stock to Redis, if the strategy sells from there."""

    def repair(self) -> None:
        """Repair the damage of a crash, as the running shop does."""

    @abstractmethod
    def figures(self) -> Figures:
        """Return the figures of the sku that the conservation law compares: units received, on hand and sold."""

    @abstractmethod
    def unowned(self, on_hand: int) -> int:
        """Return how many of the units on hand cannot be bought, because Redis neither offers nor reserves them."""

    @abstractmethod
    def order_keys(self) -> Iterable[str]:
        """Return the idempotency key of each order."""

    @abstractmethod
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return what Postgres stores, as text for people."""


class RungSeller(Seller):
    """Sells with a rung: a way of selling of the lab, on the lab's tables."""

    def open(self) -> tuple[Strategy, Save]:
        RungOrder.objects.all().delete()
        RungStock.objects.all().delete()
        RungStock.objects.create(sku=SKU, received=self.units, on_hand=self.units)
        self.rung = self.make_rung()
        self.load()
        return self.rung, ledger.save

    def make_rung(self) -> StockRung:
        """Create the object of the rung, without state of an earlier run."""
        return cast("StockRung", self.entry.code())

    def load(self) -> None:
        self.rung.preheat([SKU], lambda requests: set())

    def figures(self) -> Figures:
        return ledger.figures(SKU)

    def unowned(self, on_hand: int) -> int:
        copy = self.rung.copy(SKU)
        return 0 if copy is None else max(0, on_hand - copy)

    def order_keys(self) -> Iterable[str]:
        return RungOrder.objects.values_list("key", flat=True)

    def rows(self) -> Sequence[Mapping[str, Any]]:
        stock = RungStock.objects.get(sku=SKU)
        orders = RungOrder.objects.order_by("pk").values_list("key", "quantity")
        shown = [f"{quantity} for {key.removeprefix(KEY)}" for key, quantity in orders]
        return [_row("stock", f"{stock.on_hand} on hand"), _row("orders", shown)]


class OneSegmentSeller(RungSeller):
    """Sells from segmented stock, always from the first segment: a schedule cannot repeat a random choice."""

    def make_rung(self) -> StockRung:
        rung = cast("SegmentedKeys", super().make_rung())
        rung.pick = lambda: 0  # type: ignore[method-assign]
        return rung


CLEAR = """
    DELETE FROM shop_orderitem;
    DELETE FROM shop_order;
    DELETE FROM shop_allowance;
    DELETE FROM inventory_stocksegment;
    DELETE FROM inventory_stockunit;
    DELETE FROM inventory_stockmovement;
    UPDATE inventory_stockitem SET received = 0, on_hand = 0, version = 0, fence = 0, fenced_by = '';
"""


DELIVERED = "INSERT INTO inventory_stockmovement (sku, kind, units, why, at) VALUES (%s, 'delivered', %s, '', now())"


class StrategySeller(Seller):
    """Sells through a strategy of the shop, on the shop's tables."""

    repairs = True

    def open(self) -> tuple[Strategy, Save]:
        if not Sale.objects.filter(pk=1).exists():
            _create_sale()
        with connection.cursor() as cursor:
            cursor.execute(CLEAR)
            cursor.execute(
                "UPDATE inventory_stockitem SET received = %s, on_hand = %s WHERE sku = %s",
                [self.units, self.units, SKU],
            )
            cursor.execute(DELIVERED, [SKU, self.units])
        self.strategy = STRATEGIES[self.entry.slug]()
        self.load()
        return self.strategy, save

    def load(self) -> None:
        self.strategy.preheat([SKU], saved)

    def repair(self) -> None:
        # A strategy without a copy of the stock has nothing to repair. Skip `reconcile` for it: the call would take a
        # quarter of the time of each schedule with a crash.
        if self.history.crashed and self.entry.slug in registry.COPYING:
            reconcile(grace=0)

    def figures(self) -> Figures:
        return conservation.figures([SKU])[0]

    def unowned(self, on_hand: int) -> int:
        counters = registry.counters()
        counter = counters.left([SKU])[SKU]
        if counter is None:
            return 0
        orders = saved(counters.order_ids())
        reserved = [item for note in counters.reservations() if note.order_id not in orders for item in note.items]
        return max(0, on_hand - counter - sum(units for sku, units in reserved if sku == SKU))

    def order_keys(self) -> Iterable[str]:
        return Order.objects.values_list("key", flat=True)

    def rows(self) -> Sequence[Mapping[str, Any]]:
        item = StockItem.objects.get(sku=SKU)
        items = OrderItem.objects.order_by("order__created_at").values_list("order__key", "quantity", "order__state")
        shown = [f"{quantity} for {key.removeprefix(KEY)}, {state}" for key, quantity, state in items]
        return [_row("stock", f"{item.on_hand} on hand, fence {item.fence}"), _row("orders", shown)]


class QueueSeller(StrategySeller):
    """Sells through the strategy that queues orders in Redis."""

    def repair(self) -> None:
        """Let a new worker take over the entries of a crashed worker, and save all queued orders."""
        taking_over = Queue(registry.queue().client, dead=0.0)
        LuaQueue(registry.counters, lambda: taking_over).work(save, reject, saved)
        reconcile(grace=0)

    def work(self) -> str:
        """Save the queued orders, as a worker does. Return a description of this work."""
        strategy = cast("LuaQueue", STRATEGIES[self.entry.slug]())
        return f"took {strategy.work(save, reject, saved)} off the queue"


def _create_sale() -> None:
    now = timezone.now()
    for place, name in enumerate(NAMES):
        User.objects.create(pk=place + 1, username=name)
    sale = Sale.objects.create(
        pk=1,
        name="The lab's sale",
        opens_at=now - timedelta(days=1),
        closes_at=now + timedelta(days=36500),
        preheated_at=now,
    )
    product = Product.objects.create(sku=SKU, name="The last unit")
    SaleItem.objects.create(sale=sale, product=product, price=Decimal("9.90"))
    StockItem.objects.create(sku=SKU, received=0, on_hand=0)


def _row(name: str, value: Any) -> Mapping[str, Any]:
    return {"where": "postgres", "name": name, "value": value, "ttl": None}


def _file_lock(sku: str) -> SteppingProcessLock:
    # Use the whole address of the database: in two checkouts, the lab's databases have the same name.
    database = "{HOST}:{PORT}/{NAME}".format_map(connection.settings_dict)
    name = hashlib.sha256(f"{database}/{sku}".encode()).hexdigest()
    return SteppingProcessLock(Path(gettempdir()), f"last-unit-lab-{name}")


def _first(sku: str, segments: int) -> int:
    return 0


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "file-lock": lambda: Locked("file-lock", _file_lock, wait=WAIT),
    "redis-lock": lambda: Locked("redis-lock", locks.stock_lock, wait=WAIT),
    "segmented-redis": lambda: SegmentedRedis(
        registry.segment_counters, locks.stock_lock, wait=WAIT, segments=SEGMENTS, start=_first
    ),
    "segmented-lock": lambda: SegmentedLock(locks.stock_lock, wait=WAIT, segments=SEGMENTS, start=_first),
    "row-lock": RowLockStrategy,
    "advisory-lock": AdvisoryLockStrategy,
    "guarded-update": GuardedUpdate,
    "unit-rows": UnitRows,
    "optimistic": lambda: Optimistic(backoff=0.0),
    "lua": lambda: Lua(registry.counters),
    "lua-queue": lambda: LuaQueue(registry.counters, registry.queue),
    "group-commit": GroupCommit,
}
"""Functions that create a strategy without state of an earlier run, by slug."""
