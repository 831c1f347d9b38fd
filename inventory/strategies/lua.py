"""`lua`: a script in Redis reserves the units of an order, then Postgres decides whether it is sold."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from django.db import DatabaseError, connection, transaction
from redis import RedisError

from inventory import stock
from inventory.counters.whole import UNENDED, Counters, Unended
from inventory.errors import SoldOut, StockElsewhere, StockNotLoaded
from inventory.requests import OrderRequest, Placement, Save, Saved, save_at_once, save_one, was_rolled_back
from inventory.strategies.base import Strategy

MOST_ENDED = 50
"""Maximum number of ended sessions that an order replaces: more than a pool holds. Without a maximum, a thread would
never stop if a pooler accepts and then closes each connection."""


class Lua(Strategy):
    """Take the units from a counter in Redis and reserve them for the order; then save as `guarded-update` does.

    Guarantees: Redis never decides alone. Postgres refuses units that a restarted Redis offers again, and confirms each
    "sold out". If a process dies, its reservation tells which order has taken the units.
    Costs: two additional round trips to Redis, and a copy of the stock that must be preheated and reconciled. Orders
    that Redis admits still wait for each other's lock of the stock row.
    Choose it: when far more customers come than there are units. Redis refuses late customers, so they never reach the
    row.

    Args:
        counters: returns the counters in Redis. Called for each order, so that nothing connects at import.
    """

    name = "lua"

    def __init__(self, counters: Callable[[], Counters]) -> None:
        self.counters = counters
        self.unended: Unended = deque(maxlen=UNENDED)

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        counters = self.counters()
        counters.unended = self.unended
        counters.end_again()
        leave_ended_session()
        counters.take(order)
        try:
            save_admitted(order, order.skus, counters, save)
        except (SoldOut, StockElsewhere) as error:
            # Postgres refused units that Redis had admitted, for example because Redis lost its last second of writes.
            # Delete the wrong counter in Redis, so that the next order loads it again. If the deletion fails, Postgres
            # refuses the next order, too.
            with suppress(RedisError):
                counters.unload([error.sku])
            raise
        return Placement.COMMITTED

    def _verify_sold_out(self, refused: SoldOut, saved: Saved) -> None:
        # `refused.left` includes reserved units. Orders saved since then can only lower the units on hand, so the
        # comparison raises no false alarm.
        verify_sold_out(refused.sku, refused.left)

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        load(self.counters(), skus, saved, make=True)

    def unload(self, skus: Sequence[str]) -> None:
        self.counters().unload(skus)

    def refresh(self, skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
        # Lock no row of a sku without a counter: its sale needs no Redis, and must not wait for Redis.
        # A counter that is created in Redis later includes all changes that are committed now.
        counters = self.counters()
        counted = counters.counted(skus)
        return load(counters, counted, saved, make=False) if counted else {}


def verify_sold_out(sku: str, left: int) -> None:
    """Check with Postgres that a sku is sold out. The counter may be too low after Redis was restored.

    Args:
        left: counter plus reserved units in Redis, read at the moment of the refusal. After a correction of Redis, a
            later reading would hide that the refusal was wrong. Postgres may be read later: orders in between only
            lower its units on hand. Only returned units raise them.

    Raises:
        StockNotLoaded: more units are on hand. Loading the stock corrects Redis.
    """
    if stock.on_hand(sku) > left:
        raise StockNotLoaded(f"{sku} has more units on hand than Redis counts: preheat its sale.")


def load(counters: Counters, skus: Sequence[str], saved: Saved, *, make: bool) -> dict[str, int]:
    """Set counters from the units on hand in Postgres. Safe while the shop is selling.

    Args:
        make: whether to create missing counters, too.

    Returns:
        Units by which each counter was wrong. A sku without a counter is left out.

    Raises:
        RedisError: Redis did not answer.
    """
    changes = {}
    with transaction.atomic():
        # The row locks keep orders from committing. Each reserved order is in `committed`, or is not saved yet.
        on_hand = stock.lock(skus)
        committed = saved(counters.order_ids())
        for sku in skus:
            changes[sku] = counters.load(sku, on_hand.get(sku, 0), committed, make=make)
    return {sku: change for sku, change in changes.items() if change is not None}


def leave_ended_session() -> None:
    """Replace the connection if Postgres has ended it. Call this function before units are taken in Redis.

    It asks the socket whether the connection has ended, which takes no round trip.

    After a restart of Postgres, the first statement on each old connection of the pool fails. If an order failed there,
    it would be unknown whether it was committed, and its units would stay reserved until reconciliation.
    """
    for _ in range(MOST_ENDED):
        connection.ensure_connection()
        if not _has_ended():
            break
        connection.connection.close()
        connection.close()


def _has_ended() -> bool:
    session = connection.connection
    if session.closed:  # an earlier query of this request has lost the connection
        return True
    poll = select.poll()  # select.select() accepts no file descriptor above 1023.
    poll.register(session.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))  # An idle session has nothing to read, unless Postgres has ended it.


def save_admitted(order: OrderRequest, names: Sequence[str], counters: Counters, save: Save) -> None:
    """Save an order that Redis has admitted, and end its reservation.

    Args:
        names: counters from which the items were taken.
    """
    # If the answer to COMMIT is lost, the order may still be committed. Then the reservation stays, and reconciliation
    # looks the order up in Postgres.
    may_be_committed = True  # `save_at_once` commits by itself.
    try:
        if not save_at_once([order], save, stock.taking(order.units)):
            may_be_committed = False
            with transaction.atomic(durable=True):
                for item in order.items:
                    stock.take(item.sku, item.quantity)
                save_one(order, save)
                may_be_committed = True
    except BaseException as error:
        if not may_be_committed or (isinstance(error, DatabaseError) and was_rolled_back(error)):
            counters.give_back(order.id, names)
        raise
    counters.confirm_reservation(order.id, names)
