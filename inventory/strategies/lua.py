"""`lua`: Redis admits with one script, then Postgres decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from django.db import IntegrityError, transaction
from redis import RedisError

from inventory import stock
from inventory.counters.whole import Counters
from inventory.errors import SoldOut, StockElsewhere, StockNotLoaded, StockUnavailable
from inventory.requests import OrderRequest, Placement, Save, Saved, save_one
from inventory.strategies.base import Strategy


class Lua(Strategy):
    """Check-and-decrement in Redis, noting whose units they are; then the guarded update and the order in Postgres.

    Who comes too late is refused by Redis and never waits for the hot row.

    Args:
        counters: the stock in Redis; called when it is needed, so that nothing connects at import.
    """

    name = "lua"

    def __init__(self, counters: Callable[[], Counters]) -> None:
        self.counters = counters

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        counters = self.counters()
        with self.agreed():
            counters.take(order)
        try:
            decide(order, order.skus, counters, save)
        except (SoldOut, StockElsewhere) as error:
            # Redis has admitted what is not there: it has lost its last second. The next buyer finds no counter; or, if
            # it does not answer now, is refused like this one.
            with suppress(RedisError):
                counters.unload([error.sku])
            raise
        return Placement.COMMITTED

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """For the block, in which Redis is asked: "sold out" it says only if Postgres has no more either.

        Raises:
            StockNotLoaded: it has.
        """
        try:
            yield
        except SoldOut as refused:
            try:
                admits = self.counters().admits(refused.sku)
            except RedisError as error:
                raise StockUnavailable(f"Redis did not answer: {error}") from error
            agree(refused.sku, admits)
            raise

    def preheat(self, skus: Sequence[str], saved: Saved) -> None:
        load(self.counters(), skus, saved, make=True)

    def unload(self, skus: Sequence[str]) -> None:
        self.counters().unload(skus)

    def refresh(self, skus: Sequence[str], saved: Saved) -> Mapping[str, int]:
        return load(self.counters(), skus, saved, make=False)


def agree(sku: str, admits: int | None) -> None:
    """Redis would say "sold out". It may have come back older than the truth, and have too little.

    Args:
        admits: what it may still admit and what is reserved, as of a moment before this call. Since then orders have
            made what is on hand less, and nothing has made it more but units that came back.

    Raises:
        StockNotLoaded: more is on hand. Whoever loads the stock makes Redis right again.
    """
    if admits is None or stock.on_hand(sku) > admits:
        raise StockNotLoaded(f"{sku} has more on hand than Redis knows of: preheat its sale.")


def load(counters: Counters, skus: Sequence[str], saved: Saved, *, make: bool) -> dict[str, int]:
    """Make counters agree with Postgres, also while the shop is selling.

    Args:
        make: make those that are not there, too.

    Returns:
        By how much each was wrong; a sku without a counter is left out.

    Raises:
        RedisError: Redis did not answer.
    """
    changes = {}
    with transaction.atomic():
        # While the rows are locked no order of these skus is committed, so what is noted is either an order by now or
        # still on its way.
        on_hand = stock.lock(skus)
        committed = saved(counters.requests())
        for sku in skus:
            changes[sku] = counters.load(sku, on_hand.get(sku, 0), committed, make=make)
    return {sku: change for sku, change in changes.items() if change is not None}


def decide(order: OrderRequest, taken: Sequence[str], counters: Counters, save: Save) -> None:
    """Let Postgres decide on what Redis has admitted, and tell Redis what became of it.

    Args:
        taken: what the counters are called from which each item was taken.
    """
    rolls_back = True
    try:
        with transaction.atomic(durable=True):
            for item in order.items:
                stock.take(item.sku, item.quantity)
            save_one(order, save)
            # From here on the COMMIT may have reached Postgres though its answer does not reach us. The note of
            # what is reserved then stays, and reconciling asks Postgres whether the order exists.
            rolls_back = False
    except IntegrityError:
        counters.give_back(order.id, taken)  # Postgres has answered, and the answer was no
        raise
    except BaseException:
        if rolls_back:
            counters.give_back(order.id, taken)
        raise
    counters.confirm_reservation(order.id, taken)
