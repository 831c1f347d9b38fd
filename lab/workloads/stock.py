"""Clients who buy the last units of a sku, from the lab's tables by a rung or from the shop's by a strategy."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import gettempdir
from typing import Any, cast

import uuid_utils.compat
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from inventory.audit import Figures
from inventory.errors import InventoryError, SoldOut, StockNotLoaded, StockUnavailable
from inventory.models import StockItem
from inventory.queue.stream import Queue
from inventory.requests import OrderRequest, Placement, RequestItem, Save
from inventory.strategies import registry
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
from lab import ledger
from lab.explorer.terms import Fault
from lab.ladder.catalogue import LadderEntry
from lab.ladder.stock import StockRung
from lab.ladder.stock.segmented_keys import SegmentedKeys
from lab.models import RungOrder, RungStock
from lab.sandbox.sandbox import Sandbox
from lab.workloads.base import NAMES, TTL, Broken, Trial
from locking import ProcessLock
from shop import conservation
from shop.models import Order, OrderItem, Product, Sale, SaleItem
from shop.orders.saving import reject, save, saved
from shop.reconcile import reconcile

SKU = "unit"
SOLD, SOLD_OUT, QUEUED, REFUSED = "sold", "sold out", "queued", "refused: "
WAIT = 60.0
"""Seconds that a buyer waits for a lock: more than any schedule takes of the real time."""
SEGMENTS = 2


class StockTrial(Trial):
    """Each client places one order, on the last units unless the rung needs it otherwise."""

    works_unseen = True
    units = 1
    quantities: tuple[int, ...] = (1, 1, 1, 1, 1, 1)
    one_click_each = True
    mends = False
    """Whether somebody puts right what a dead process has left: see `repair`."""

    def __init__(self, entry: LadderEntry, stage: Sandbox, clients: int) -> None:
        super().__init__(entry, stage, clients)
        self.units, self.quantities, self.one_click_each = SCENES.get(entry.slug, SCENES[""])
        self.alike = len(set(self.quantities[:clients])) == 1

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        with self.stage.ours():
            self.seller, self.write = self.open()
            self.stage.note()
        return {name: self._job(name) for name in self.names}

    @abstractmethod
    def open(self) -> tuple[Strategy, Save]:
        """Stock up and begin to sell. Returns who sells, and how he saves."""

    @abstractmethod
    def load(self) -> None:
        """Copy the stock to Redis anew."""

    @abstractmethod
    def figures(self) -> Figures:
        """The conservation law at the end."""

    @abstractmethod
    def unowned(self, on_hand: int) -> int:
        """How many of the units on hand Redis neither offers nor keeps for anybody."""

    @abstractmethod
    def order_keys(self) -> Iterable[str]:
        """The key of each order."""

    def customer(self, place: int) -> int:
        """Who the client at this place is."""
        return place + 1

    def _job(self, name: str) -> Callable[[], str]:
        def job() -> str:
            self.stage.sit(name)
            answer = self._ask(name)
            # A server that restarts hangs up on him, once each time, and he asks again, as he is told to.
            for _ in range(self.events):
                if answer == f"{REFUSED}{StockUnavailable.__name__}":
                    answer = self._ask(name)
            return answer

        return job

    def _ask(self, name: str) -> str:
        place = NAMES.index(name)
        request = OrderRequest(
            id=uuid_utils.compat.uuid7(),
            customer=self.customer(place if self.one_click_each else 0),
            sale=1,
            items=(RequestItem(SKU, self.quantities[place], Decimal("9.90"), None),),
            key=self._key(name),
            body_hash="0" * 64,
            created_at=datetime.now(tz=UTC),
        )
        try:
            placement = self.seller.place(request, self.write)
        except SoldOut:
            return SOLD_OUT
        except InventoryError as error:
            return f"{REFUSED}{type(error).__name__}"
        return SOLD if placement == Placement.COMMITTED else QUEUED

    def _key(self, name: str) -> str:
        return f"key of {name if self.one_click_each else NAMES[0]}"

    def offers(self, event: Fault, who: str = "") -> bool:
        """See `Trial.offers`."""
        return event == "restart" or super().offers(event, who)

    def happens(self, event: Fault, who: str = "") -> None:
        """See `Trial.happens`."""
        if event == "restart":
            self.events += 1
            self.stage.restart()
        else:
            super().happens(event, who)

    def verdict(self, answers: Mapping[str, str]) -> Sequence[Broken]:
        with self.stage.ours():
            self.repair()
            return list(self._broken(self._at_rest(answers)))

    def _at_rest(self, answers: Mapping[str, str]) -> Mapping[str, str]:
        """What each was told in the end: who was refused for the moment asks again when nobody is in his way."""
        refused = [name for name, answer in answers.items() if answer.startswith(REFUSED)]
        if not refused:
            return answers
        self.stage.pass_time(1.01 * TTL)  # the lock of a holder who has died
        again = {name: self._ask_at_rest(name) for name in refused}
        self.repair()
        return {**answers, **again}

    def _ask_at_rest(self, name: str) -> str:
        try:
            if (answer := self._ask(name)) == f"{REFUSED}{StockNotLoaded.__name__}":
                self.load()  # as the shop does then
                answer = self._ask(name)
            return answer
        except Exception as error:
            return f"{REFUSED}{type(error).__name__}"

    def _broken(self, answers: Mapping[str, str]) -> Iterator[Broken]:
        law = self.figures()
        unowned, orders = self.unowned(law.on_hand), Counter(self.order_keys())
        if not law.conserved:
            yield "conserved", f"{law.received} were received; {law.on_hand} are on hand and {law.sold} are sold."
        if unowned:
            yield "conserved", f"{law.on_hand} are on hand, and {unowned} of them nobody can buy."
        if not self.one_click_each and (clicks := orders[self._key(NAMES[0])]) > 1:
            yield "once", f"One customer clicked twice and has {clicks} orders."
        for name, answer in answers.items():
            wanted = self.quantities[NAMES.index(name)]
            if answer == SOLD_OUT and law.on_hand >= wanted:
                yield "no false refusal", f"{name} wanted {wanted}, was told sold out, and {law.on_hand} are left."
            if answer in (SOLD, QUEUED) and not orders[self._key(name)]:
                yield "once", f"{name} was told {answer}, and has no order."
            if answer.startswith(REFUSED) and (self.mends or not self.crashed):
                why = answer.removeprefix(REFUSED)
                yield "progress", f"{name} is refused ({why}), also when nobody is in the way."

    def repair(self) -> None:
        """What the shop does by itself when somebody has died."""

    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        with self.stage.ours():
            law = self.figures()
        return {"received": law.received, "on hand": law.on_hand, "sold": law.sold}

    def state(self) -> tuple[Mapping[str, Any], ...]:
        with self.stage.ours():
            return (*super().state(), *self.rows())

    @abstractmethod
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """What Postgres keeps, for people."""


SCENES: dict[str, tuple[int, tuple[int, ...], bool]] = {
    "": (1, (1, 1, 1, 1, 1, 1), True),
    "compute-and-overwrite": (10, (1, 1, 1), True),
    "exception-leaves-the-lock": (1, (2, 1, 1), True),
    "segmented-keys": (4, (1, 1, 1), True),
    "retries-reported-as-sold-out": (10, (1, 1, 1, 1), True),
    "decr-and-look-at-the-sign": (1, (2, 1, 1), True),
    "segmented-redis": (2, (1, 1, 2), True),
    "segmented-lock": (2, (1, 1, 2), True),
    "duplicate-click": (2, (1, 1, 1), False),
}
"""Units, what each client wants, and whether each is another customer: where it is not the last unit for all."""


class RungTrial(StockTrial):
    """A rung of the lab, on the lab's tables."""

    def open(self) -> tuple[Strategy, Save]:
        RungOrder.objects.all().delete()
        RungStock.objects.all().delete()
        RungStock.objects.create(sku=SKU, received=self.units, on_hand=self.units)
        self.rung = cast("StockRung", self.entry.code())
        if isinstance(self.rung, SegmentedKeys):
            # Everybody is sent to the same segment: who is sent where is a matter of luck, and not of the schedule.
            self.rung.pick = lambda: 0  # type: ignore[method-assign]
        self.load()
        return self.rung, ledger.save

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
        return [
            {"where": "postgres", "name": "stock", "value": f"{stock.on_hand} on hand", "ttl": None},
            {
                "where": "postgres",
                "name": "orders",
                "value": [f"{quantity} for {key.removeprefix('key of ')}" for key, quantity in orders],
                "ttl": None,
            },
        ]


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


class StrategyTrial(StockTrial):
    """A strategy of the shop, on the shop's tables."""

    mends = True

    def open(self) -> tuple[Strategy, Save]:
        if not Sale.objects.filter(pk=1).exists():
            self._furnish()
        with connection.cursor() as cursor:
            cursor.execute(CLEAR)
            cursor.execute(
                "UPDATE inventory_stockitem SET received = %s, on_hand = %s WHERE sku = %s",
                [self.units, self.units, SKU],
            )
            cursor.execute(DELIVERED, [SKU, self.units])
        self.strategy = NEW[self.entry.slug]()
        self.load()
        return self.strategy, save

    def load(self) -> None:
        self.strategy.preheat([SKU], saved)

    def _furnish(self) -> None:
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

    def repair(self) -> None:
        if self.crashed or self.entry.slug == "lua-queue":
            reconcile(grace=0)

    def figures(self) -> Figures:
        return conservation.figures([SKU])[0]

    def unowned(self, on_hand: int) -> int:
        counters = registry.counters()
        counter = counters.left([SKU])[SKU]
        if counter is None:
            return 0
        orders = saved(counters.requests())
        reserved = [item for note in counters.notes() if note.request not in orders for item in note.items]
        return max(0, on_hand - counter - sum(units for sku, units in reserved if sku == SKU))

    def order_keys(self) -> Iterable[str]:
        return Order.objects.values_list("key", flat=True)

    def rows(self) -> Sequence[Mapping[str, Any]]:
        item = StockItem.objects.get(sku=SKU)
        items = OrderItem.objects.order_by("order__created_at").values_list("order__key", "quantity", "order__state")
        said = [f"{quantity} for {key.removeprefix('key of ')}, {state}" for key, quantity, state in items]
        return [
            {"where": "postgres", "name": "stock", "value": f"{item.on_hand} on hand, fence {item.fence}", "ttl": None},
            {"where": "postgres", "name": "orders", "value": said, "ttl": None},
        ]


def _file_lock(sku: str) -> ProcessLock:
    return ProcessLock(Path(gettempdir()), f"last-unit-lab-{connection.settings_dict['NAME']}-{sku}")


def _first(sku: str, segments: int) -> int:
    return 0


NEW: dict[str, Callable[[], Strategy]] = {
    "file-lock": lambda: Locked("file-lock", _file_lock, wait=WAIT),
    "redis-lock": lambda: Locked("redis-lock", registry.stock_lock, wait=WAIT),
    "segmented-redis": lambda: SegmentedRedis(
        registry.segment_counters, registry.stock_lock, wait=WAIT, segments=SEGMENTS, start=_first
    ),
    "segmented-lock": lambda: SegmentedLock(registry.stock_lock, wait=WAIT, segments=SEGMENTS, start=_first),
    "row-lock": RowLockStrategy,
    "advisory-lock": AdvisoryLockStrategy,
    "guarded-update": GuardedUpdate,
    "unit-rows": UnitRows,
    "optimistic": lambda: Optimistic(backoff=0.0),
    "lua": lambda: Lua(registry.counters),
    "lua-queue": lambda: LuaQueue(registry.counters, registry.queue),
    "group-commit": GroupCommit,
}
"""A strategy that remembers nothing of an earlier schedule, by slug."""


class QueueTrial(StrategyTrial):
    """Buyers whose orders are queued, and a worker who saves them."""

    alike = False

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        jobs = dict(super().prepare())

        def work() -> str:
            self.stage.sit("W")
            strategy = cast("LuaQueue", NEW["lua-queue"]())
            return f"took {strategy.work(save, reject, saved)} off the queue"

        return jobs | {"W": work}

    def repair(self) -> None:
        """Another worker takes over what a dead one has left, and saves what is queued."""
        taking_over = Queue(registry.queue().client, dead=0.0)
        LuaQueue(registry.counters, lambda: taking_over).work(save, reject, saved)
        super().repair()

    def verdict(self, answers: Mapping[str, str]) -> Sequence[Broken]:
        return super().verdict({name: answer for name, answer in answers.items() if name != "W"})
