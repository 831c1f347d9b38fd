"""Clients that each place one order for the same sku."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import uuid_utils.compat

from inventory.errors import InventoryError, SoldOut, StockNotLoaded, StockUnavailable
from inventory.requests import OrderRequest, Placement, RequestItem
from lab.checkers.stock import QUEUED, REFUSED, SOLD, SOLD_OUT
from lab.explorer.history import History
from lab.explorer.terms import Job
from lab.ladder.catalogue import LadderEntry
from lab.ladder.stock import lock_inside_the_transaction
from lab.sandbox.clock import TTL
from lab.sandbox.local_locks import SteppingThreadLock
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.stand_ins import StandIns
from lab.workloads.base import NAMES, Workload
from lab.workloads.sellers import KEY, SKU, QueueSeller, Seller
from shop.sold import saved

WORKER = "W"
"""The name, in schedules, of the worker that saves queued orders."""
IN_THE_RUNG = StandIns((lock_inside_the_transaction, "ThreadLock", SteppingThreadLock))


@dataclass(frozen=True)
class Demand:
    """The units in stock, and the units that the clients want.

    Attributes:
        units: number of units in stock.
        quantities: number of units that each client wants.
        same_request: whether all clients are one customer who sends the same request.
    """

    units: int = 1
    quantities: tuple[int, ...] = (1,) * len(NAMES)
    same_request: bool = False

    def quantity(self, name: str) -> int:
        """Return how many units a client wants."""
        return self.quantities[NAMES.index(name)]

    def key(self, name: str) -> str:
        """Return the idempotency key of a client's request."""
        return f"{KEY}{NAMES[0] if self.same_request else name}"

    def customer(self, name: str) -> int:
        """Return the customer id of a client."""
        return 1 + (0 if self.same_request else NAMES.index(name))


LAST_UNIT = Demand()
"""One unit is in stock, and every client wants it."""


class StockWorkload(Workload):
    """Each client places one order.

    Args:
        seller: sells through a rung or a strategy.
        demand: the units in stock, and the units that the clients want.
    """

    def __init__(
        self,
        entry: LadderEntry,
        sandbox: Sandbox,
        names: Sequence[str],
        history: History,
        seller: Seller,
        demand: Demand,
    ) -> None:
        super().__init__(entry, sandbox, names, history)
        self.seller = seller
        self.demand = demand
        self.interchangeable = len({demand.quantity(name) for name in names}) == 1

    def prepare(self) -> Mapping[str, Job]:
        with self.sandbox.as_default():
            self.strategy, self.save = self.seller.open()
            self.sandbox.save_snapshot()
        return {name: self.job(name) for name in self.names}

    def job(self, name: str) -> Job:
        """Return the job of one client."""

        def job() -> str:
            self.sandbox.connect_thread(name)
            answer = self._order(name)
            # A restart of Redis drops the client's connection. The error says to try again, so try again once per
            # fault.
            for _ in range(self.history.faults):
                if answer == f"{REFUSED}{StockUnavailable.__name__}":
                    answer = self._order(name)
            return answer

        return job

    def _order(self, name: str) -> str:
        request = OrderRequest(
            id=uuid_utils.compat.uuid7(),
            customer=self.demand.customer(name),
            sale=1,
            items=(RequestItem(SKU, self.demand.quantity(name), Decimal("9.90"), None),),
            key=self.demand.key(name),
            body_hash="0" * 64,
            created_at=datetime.now(tz=UTC),
        )
        try:
            placement = self.strategy.place(request, self.save, saved)
        except SoldOut:
            return SOLD_OUT
        except InventoryError as error:
            return f"{REFUSED}{type(error).__name__}"
        return SOLD if placement == Placement.COMMITTED else QUEUED

    def finish(self, answers: Mapping[str, str]) -> Mapping[str, str]:
        """Let the shop repair the damage of a crash. Then let refused clients order again, one at a time."""
        with self.sandbox.as_default():
            self.seller.repair()
            refused = [name for name, answer in answers.items() if answer.startswith(REFUSED)]
            if not refused:
                return answers
            self.sandbox.pass_time(1.01 * TTL)  # the lock of a holder that has crashed expires
            again = {name: self._order_again(name) for name in refused}
            self.seller.repair()
            return {**answers, **again}

    def _order_again(self, name: str) -> str:
        try:
            if (answer := self._order(name)) == f"{REFUSED}{StockNotLoaded.__name__}":
                self.seller.load()  # the shop also loads the stock when it meets this error
                answer = self._order(name)
            return answer
        except Exception as error:
            return f"{REFUSED}{type(error).__name__}"

    def state(self) -> tuple[Mapping[str, Any], ...]:
        with self.sandbox.as_default():
            return (*super().state(), *self.seller.rows())


class ThreadLockWorkload(StockWorkload):
    """Each client places one order. Acquiring and releasing the lock in memory are steps."""

    def prepare(self) -> Mapping[str, Job]:
        IN_THE_RUNG.enter(self)
        return super().prepare()

    def clean_up(self) -> None:
        IN_THE_RUNG.leave(self)


class QueueWorkload(StockWorkload):
    """Each client places one order, and a worker saves the orders that are queued."""

    seller: QueueSeller

    def prepare(self) -> Mapping[str, Job]:
        return {**super().prepare(), WORKER: self._work}

    def _work(self) -> str:
        self.sandbox.connect_thread(WORKER)
        return self.seller.work()
