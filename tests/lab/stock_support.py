"""A till for stock rungs: it sells by a rung from the lab's tables, or by a strategy from the shop's, and is audited.

A schedule drives two or three buyers step by step, and returns the invariant that is broken at its end, or None. It is
the same for a flawed rung and for what fixes it. A step is a statement, a commit, or a command to Redis.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

from django.db import connection, connections
from django.test import override_settings
from redis import Redis

from inventory.audit import Figures
from inventory.errors import InventoryError, SoldOut, StockBusy
from inventory.requests import OrderRequest, Placement
from inventory.strategies import registry
from lab import ledger
from lab.explorer.terms import Invariant
from lab.ladder.stock import RUNGS
from lab.models import RungOrder
from locking import held, local
from shop import conservation
from shop.models import Order
from shop.orders.saving import save, saved
from tests.factories import STOCK_WRITE, elsewhere, new_customer, new_request, on_sale, waiting_in_postgres
from tests.lab.rung_support import SteppedConnection
from tests.waiting import PATIENCE, wait_for

Answer = Placement | InventoryError


class Till(ABC):
    """Sells one sku, of which it has so many units."""

    def __init__(self, units: int) -> None:
        self.sku = f"sku-{uuid4().hex[:8]}"
        self.units = units

    @abstractmethod
    def request(self, quantity: int = 1, *, like: OrderRequest | None = None) -> OrderRequest:
        """What a new customer wants; or the customer of another request, with the same key."""

    @abstractmethod
    def place(self, request: OrderRequest) -> Placement: ...

    @abstractmethod
    def figures(self) -> Figures: ...

    @abstractmethod
    def unowned(self) -> int:
        """Units on hand that Redis neither offers nor keeps for anybody."""

    @abstractmethod
    def orders_of(self, request: OrderRequest) -> int:
        """How many orders there are of the request's customer and key."""

    def buy(self, quantity: int = 1) -> Answer:
        return answered(partial(self.place, self.request(quantity)))

    def law(self) -> Invariant | None:
        """The conservation law, in the tables and in Redis."""
        return None if self.figures().conserved and not self.unowned() else "conserved"

    def refuses(self, quantity: int = 1) -> Invariant | None:
        """Whether it says that it is sold out to somebody who comes alone, and has enough."""
        false = isinstance(self.buy(quantity), SoldOut) and self.figures().on_hand >= quantity
        return "no false refusal" if false else None


def answered(place: Callable[[], Placement]) -> Answer:
    try:
        return place()
    except InventoryError as error:
        return error


class RungTill(Till):
    """A rung of the lab."""

    def __init__(self, slug: str, units: int) -> None:
        super().__init__(units)
        self.rung = RUNGS[slug]
        ledger.stock_up(self.sku, units)

    def request(self, quantity: int = 1, *, like: OrderRequest | None = None) -> OrderRequest:
        return new_request((self.sku, quantity), customer=like.customer if like else 1, key=like.key if like else "")

    def place(self, request: OrderRequest) -> Placement:
        return self.rung.place(request, ledger.save)

    def figures(self) -> Figures:
        return ledger.figures(self.sku)

    def unowned(self) -> int:
        return ledger.unowned(self.sku)

    def orders_of(self, request: OrderRequest) -> int:
        return RungOrder.objects.filter(customer=request.customer, key=request.key).count()


class ShopTill(Till):
    """A strategy of the shop, with the shop's own save."""

    def __init__(self, name: str, units: int) -> None:
        super().__init__(units)
        self.strategy = registry.get(name)
        self.sale = on_sale({self.sku: units}, strategy=name).sale

    def request(self, quantity: int = 1, *, like: OrderRequest | None = None) -> OrderRequest:
        customer = like.customer if like else new_customer()
        return new_request((self.sku, quantity), customer=customer, sale=self.sale, key=like.key if like else "")

    def place(self, request: OrderRequest) -> Placement:
        return self.strategy.place(request, save)

    def figures(self) -> Figures:
        return conservation.figures([self.sku])[0]

    def unowned(self) -> int:
        counters = registry.counters()
        counter = counters.left([self.sku])[self.sku]
        if counter is None:
            return 0
        orders = saved(counters.requests())
        reserved = [item for note in counters.notes() if note.request not in orders for item in note.items]
        return max(0, self.figures().on_hand - counter - sum(units for sku, units in reserved if sku == self.sku))

    def orders_of(self, request: OrderRequest) -> int:
        return Order.objects.filter(customer=request.customer, key=request.key).count()


Sells = Callable[[int], Till]
"""Opens a new till with so many units."""


def seller(slug: str) -> Sells:
    return partial(RungTill if slug in RUNGS else ShopTill, slug)


# Steps

_thread = threading.local()


def _command(*names: str) -> None:
    _say(" ".join(names))


def _say(step: str) -> None:
    if listener := getattr(_thread, "listener", None):
        listener(step)


@contextmanager
def stepped(redis: Redis) -> Iterator[None]:
    """Let every connection of the shop's pool say what it sends."""
    pool = redis.connection_pool
    plain = pool.connection_class
    pool.disconnect()
    pool.connection_class, pool.connection_kwargs["steps"] = SteppedConnection, _command
    pool.reset()
    yield
    pool.disconnect()
    pool.connection_class = plain
    del pool.connection_kwargs["steps"]
    pool.reset()


@contextmanager
def each_step(listener: Callable[[str], object]) -> Iterator[None]:
    """Call the listener before each step of this thread."""

    def statement(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        listener(sql)
        return execute(sql, *rest)

    def commit() -> None:
        listener("COMMIT")
        plain()

    plain = connection._commit
    connection._commit = commit
    _thread.listener = listener
    try:
        with connection.execute_wrapper(statement):
            yield
    finally:
        _thread.listener = None
        del connection._commit


class NeverCame(AssertionError):
    """No step was the one that somebody should have come before."""


def blocked(redis: Redis) -> int:
    """How many wait for a lock in Redis or in Postgres."""
    return waiting_in_postgres() + sum(lock.waiters for lock in held(redis))


@contextmanager
def comes_before(step: str | Callable[[str], object], other: Callable[[], Any], redis: Redis) -> Iterator[None]:
    """Before one of this thread's steps somebody else comes, as far as he can: to his end, or to a lock of ours.

    Leaving the block waits for his end.

    Args:
        step: the first that matches this pattern, or for which this says so.
    """
    is_it = partial(re.search, step) if isinstance(step, str) else step
    with ThreadPoolExecutor(1) as pool:
        came: Any = None

        def he_can_go_no_further() -> bool:
            return came.done() or blocked(redis) > 0 or any(len(item) > 1 for item in list(local._items.values()))

        def listen(said: str) -> None:
            nonlocal came
            if came is None and is_it(said):
                came = pool.submit(elsewhere, other)
                elsewhere(lambda: wait_for(he_can_go_no_further, "the other to come"))

        with each_step(listen):
            yield
        if came is None:
            raise NeverCame(step)
        came.result(PATIENCE)


def nth_step_after(first: str, n: int) -> Callable[[str], bool]:
    """Says which is the n-th step after the first that matches."""
    seen: list[str] = []

    def is_it(said: str) -> bool:
        if seen or re.search(first, said):
            seen.append(said)
        return len(seen) == n + 1

    return is_it


def killed(body: Callable[[], object], listener: Callable[[str], object]) -> bool:
    """Run a body in a forked child whose listener may end it, by `os._exit(9)`, before any of its steps.

    Returns:
        Whether it died; otherwise the body came to its end.
    """
    connections.close_all()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(round(PATIENCE))  # a child that hangs must not outlive the test
        try:
            with each_step(listener):
                body()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), f"the child ended with {code}"
    return code == 9


def dies(body: Callable[[], object], before: int) -> bool:
    """As `killed`, before one of its steps, the first being 0."""
    steps = count()
    return killed(body, lambda _: os._exit(9) if next(steps) == before else None)


def ttl_passes(redis: Redis) -> None:
    """What the server does with the locks of those who do not renew them."""
    for key in redis.scan_iter("lock:*"):
        if key.endswith(b"}"):
            redis.delete(key)


# Schedules

Schedule = Callable[[Sells, Redis], Invariant | None]


def another_writes_first(sells: Sells, redis: Redis, units: int = 10) -> Invariant | None:
    """B buys when A has read and is about to write."""
    till = sells(units)
    with comes_before(STOCK_WRITE.pattern, till.buy, redis):
        till.buy()
    return till.law()


def another_takes_the_last_unit_first(sells: Sells, redis: Redis) -> Invariant | None:
    return another_writes_first(sells, redis, units=1)


def another_comes_before_the_commit(sells: Sells, redis: Redis) -> Invariant | None:
    """A has taken the last unit and is about to commit; B comes as far as he can."""
    till = sells(1)
    with comes_before("^COMMIT$", till.buy, redis):
        till.buy()
    return till.law()


def another_buys_before_the_lock(sells: Sells, redis: Redis) -> Invariant | None:
    """B buys the last unit when A has done all that he does before he asks for the lock."""
    till = sells(1)
    with comes_before("^EVALSHA$", till.buy, redis):
        till.buy()
    return till.law()


def another_comes_after_the_last_unit(sells: Sells, redis: Redis) -> Invariant | None:
    """A buys the last unit. Then B wants one."""
    till = sells(1)
    assert till.buy() is Placement.COMMITTED
    till.buy()
    return till.law()


def one_dies(sells: Sells, redis: Redis) -> Invariant | None:
    """A dies, before each of his steps in turn. When his TTL is over B buys, with enough for everybody."""
    for step in count():
        till = sells(8)
        died = dies(partial(till.place, till.request()), before=step)
        ttl_passes(redis)
        if broken := till.law():
            return broken
        if till.buy() is not Placement.COMMITTED:
            return "progress"
        if broken := till.law():
            return broken
        if not died:
            assert step > 2
            return None
    return None


def one_is_paused(sells: Sells, redis: Redis, units: int) -> Invariant | None:
    """Before each of A's steps in turn, once he has asked for the lock, his TTL passes and B comes."""
    for step in count(1):
        till = sells(units)
        try:
            with comes_before(nth_step_after("^EVALSHA$", step), partial(overtakes, till, redis), redis):
                till.buy()
        except NeverCame:
            assert step > 2
            return None
        if broken := till.law():
            return broken
    return None


def overtakes(till: Till, redis: Redis) -> None:
    ttl_passes(redis)
    till.buy()


def another_comes_after_a_refusal(sells: Sells, redis: Redis) -> Invariant | None:
    """A wants more than there is. Then B wants what there is."""
    till = sells(1)
    refused = till.buy(2)
    assert isinstance(refused, SoldOut)
    with override_settings(STOCK_LOCK_WAIT=0):  # nobody is inside
        return "progress" if isinstance(till.buy(), StockBusy) else None


def two_want_one_each(sells: Sells, redis: Redis) -> Invariant | None:
    """Of four units A buys one. Then B wants one."""
    till = sells(4)
    assert till.buy() is Placement.COMMITTED
    return till.refuses()


def one_wants_two(sells: Sells, redis: Redis) -> Invariant | None:
    """A wants two of four units."""
    return sells(4).refuses(2)


def another_is_faster_each_time(sells: Sells, redis: Redis) -> Invariant | None:
    """Before each of A's writes somebody else buys a unit."""
    till = sells(100)

    def somebody_else_buys(step: str) -> None:
        if STOCK_WRITE.search(step):
            assert elsewhere(till.buy) is Placement.COMMITTED

    with each_step(somebody_else_buys):
        return till.refuses()


def two_are_wanted_then_one(sells: Sells, redis: Redis) -> Invariant | None:
    """One unit is left. A wants two, then B wants one."""
    till = sells(1)
    assert isinstance(till.buy(2), SoldOut)
    return till.refuses()


def redis_forgets(sells: Sells, redis: Redis) -> Invariant | None:
    """A buys the last unit. Redis comes back as it was before that. B wants one."""
    till = sells(1)
    older = {key: redis.dump(key) for key in redis.scan_iter()}
    assert till.buy() is Placement.COMMITTED
    redis.flushdb()
    for key, value in older.items():
        redis.restore(key, 0, value)
    till.buy()
    return till.law()


def the_same_request_comes_twice(sells: Sells, redis: Redis) -> Invariant | None:
    till = sells(2)
    first = till.request()
    assert till.place(first) is Placement.COMMITTED
    answered(partial(till.place, till.request(like=first)))
    assert till.law() is None
    return "once" if till.orders_of(first) > 1 else None
