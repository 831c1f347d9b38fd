"""`lua`: one script admits the order in Redis, then Postgres decides on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from django.db import IntegrityError, transaction
from redis import RedisError

from inventory import stock
from inventory.counters.whole import UNENDED, Counters, Unended
from inventory.errors import SoldOut, StockElsewhere, StockNotLoaded
from inventory.requests import OrderRequest, Placement, Save, Saved, save_one, saved_among
from inventory.strategies.base import Strategy


class Lua(Strategy):
    """Check and decrement a counter in Redis, and reserve the units for the order; then save as `guarded-update` does.

    Guarantees: Redis never decides alone. Postgres refuses units that a restarted Redis offers again, "sold out" is
    checked there too, and the reservation tells whose units were taken when a process dies.
    Costs: two additional round trips to Redis, and a copy of the stock that must be preheated and reconciled. Admitted
    customers still wait for each other at the row.
    Choose it: when far more customers come than there are units. Redis refuses late customers, who never reach the row.

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
        counters.take(order)
        try:
            save_admitted(order, order.skus, counters, save)
        except (SoldOut, StockElsewhere) as error:
            # Postgres refused units that Redis had admitted, for example because Redis lost its last second of writes.
            # The counter is wrong, so delete it: the next order finds none and loads it. If this fails, the next order
            # is refused here like this one.
            with suppress(RedisError):
                counters.unload([error.sku])
            raise
        return Placement.COMMITTED

    def _verify_sold_out(self, refused: SoldOut, saved: Saved) -> None:
        # The units left include those reserved, so orders that are saved meanwhile only lower the units on hand.
        verify_sold_out(refused.sku, refused.left)

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        load(self.counters(), skus, saved, make=True)

    def unload(self, skus: Sequence[str]) -> None:
        self.counters().unload(skus)

    def refresh(self, skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
        # Lock no row of a sku without a counter: its sale needs no Redis, and must not wait for it. A counter that is
        # made later includes what is committed already.
        counters = self.counters()
        counted = counters.counted(skus)
        return load(counters, counted, saved, make=False) if counted else {}


def verify_sold_out(sku: str, left: int) -> None:
    """Check with Postgres before "sold out" is answered: a Redis that was restored may have too small a counter.

    Args:
        left: counter plus reserved units in Redis at the moment of the refusal. If they were read later, the counter
            could have been corrected in between: it would agree with Postgres, and the refusal would stand. Since then
            orders have only lowered the units on hand, unless units came back.

    Raises:
        StockNotLoaded: more units are on hand. Loading the stock corrects Redis.
    """
    if stock.on_hand(sku) > left:
        raise StockNotLoaded(f"{sku} has more units on hand than Redis counts: preheat its sale.")


def load(counters: Counters, skus: Sequence[str], saved: Saved, *, make: bool) -> dict[str, int]:
    """Set counters from the units on hand in Postgres. Safe while the shop is selling.

    Args:
        make: create missing counters too.

    Returns:
        Units by which each counter was wrong; a sku without a counter is missing.

    Raises:
        RedisError: Redis did not answer.
    """
    changes = {}
    with transaction.atomic():
        # While the rows are locked, no order of these skus is committed: each reserved order is either saved, and in
        # `committed`, or still to come.
        on_hand = stock.lock(skus)
        committed = saved_among(saved, counters.order_ids())
        for sku in skus:
            changes[sku] = counters.load(sku, on_hand.get(sku, 0), committed, make=make)
    return {sku: change for sku, change in changes.items() if change is not None}


def save_admitted(order: OrderRequest, names: Sequence[str], counters: Counters, save: Save) -> None:
    """Save an order that Redis has admitted, and end its reservation.

    Args:
        names: counters from which the items were taken.
    """
    rolls_back = True
    try:
        with transaction.atomic(durable=True):
            for item in order.items:
                stock.take(item.sku, item.quantity)
            save_one(order, save)
            # From here on, COMMIT may have reached Postgres although its answer does not reach us. The reservation
            # then stays, and reconciliation asks Postgres whether the order exists.
            rolls_back = False
    except IntegrityError:
        counters.give_back(order.id, names)  # Postgres answered, so the order was not committed.
        raise
    except BaseException:
        if rolls_back:
            counters.give_back(order.id, names)
        raise
    counters.confirm_reservation(order.id, names)
