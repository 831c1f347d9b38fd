"""`redis-lock`: the lock is let go after the commit, busy is not sold out, and who was overtaken changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from django.db import transaction
from redis import Redis

from inventory import stock
from inventory.errors import Refusal, SoldOut, StockBusy, StockUnavailable
from inventory.models import StockItem
from inventory.requests import OrderRequest, Placement, Save, save_one
from inventory.strategies import locked, registry
from inventory.strategies.base import Strategy
from inventory.strategies.locked import Locked
from inventory.strategies.registry import stock_lock
from locking import Lease, RedisLock
from tests.factories import elsewhere, interleaved, new_request
from tests.inventory.conftest import Ledger

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def strategy() -> Strategy:
    return registry.get("redis-lock")


def is_free(sku: str) -> bool:
    lease = stock_lock(sku).acquire(blocking=False)
    return lease is not None and lease.release()


# The lock and the commit


def test_the_lock_is_held_in_save_and_at_the_commit_and_free_after_the_answer(
    strategy: Strategy, ledger: Ledger
) -> None:
    stock.deliver("a", 1)
    seen: dict[str, tuple[bool, int]] = {}

    def look(moment: str) -> None:
        seen[moment] = is_free("a"), len(ledger.orders())

    def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        elsewhere(lambda: look("in save"))
        transaction.on_commit(lambda: elsewhere(lambda: look("just committed")))
        return ledger.save(requests)

    strategy.place(new_request(("a", 1)), save)
    look("answered")
    assert seen == {"in save": (False, 0), "just committed": (False, 1), "answered": (True, 1)}


def test_the_other_way_round_the_lock_is_free_before_the_commit(ledger: Ledger) -> None:
    """The negative control: the lock inside of the transaction, the oldest bug on the ladder."""

    class UnlocksFirst(Strategy):
        name = "unlocks-first"

        def _place(self, order: OrderRequest, save: Save) -> Placement:
            with transaction.atomic(durable=True):
                with stock_lock(order.items[0].sku).hold():
                    stock.take(order.items[0].sku, order.items[0].quantity)
                    save_one(order, save)
                seen.append((elsewhere(lambda: is_free("a")), elsewhere(ledger.orders)))
            return Placement.COMMITTED

    seen: list[tuple[bool, list[UUID]]] = []
    stock.deliver("a", 1)
    UnlocksFirst().place(new_request(("a", 1)), ledger.save)
    assert seen == [(True, [])]


@pytest.mark.parametrize("error", [KeyError("ours"), SoldOut("a", wanted=1, left=0)])
def test_the_lock_is_let_go_when_the_order_fails(strategy: Strategy, ledger: Ledger, error: Exception) -> None:
    stock.deliver("a", 1)

    def fail(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        raise error

    with pytest.raises(type(error)):
        strategy.place(new_request(("a", 1)), fail)
    assert is_free("a")
    ledger.assert_law(a=(1, 0))


# Busy is not sold out


@pytest.mark.parametrize("left", [1, 0])
def test_given_somebody_holds_the_lock_the_answer_is_busy_whatever_is_left(ledger: Ledger, left: int) -> None:
    stock.deliver("a", 1)
    if not left:
        registry.get("guarded-update").place(new_request(("a", 1)), ledger.save)
    with stock_lock("a").hold(), pytest.raises(StockBusy, match="stock:a"):
        Locked("impatient", stock_lock, wait=0.01).place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(left, 1 - left))


def test_given_the_lock_of_the_second_sku_is_held_the_first_is_let_go_and_nothing_is_taken(ledger: Ledger) -> None:
    stock.deliver("a", 1)
    stock.deliver("b", 1)
    with stock_lock("b").hold(), pytest.raises(StockBusy, match="stock:b"):
        Locked("impatient", stock_lock, wait=0.01).place(new_request(("a", 1), ("b", 1)), ledger.save)
    assert is_free("a")
    ledger.assert_law(a=(1, 0), b=(1, 0))


def test_given_no_lock_server_it_is_unavailable_and_nothing_is_taken(ledger: Ledger, tmp_path: Path) -> None:
    nobody = Redis.from_url(f"unix://{tmp_path}/nobody.sock")
    strategy = Locked("down", lambda sku: RedisLock(nobody, sku), wait=0.01)
    stock.deliver("a", 1)
    with pytest.raises(StockUnavailable):
        strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1, 0))


# Who was overtaken


class PausedAfterTheGrant(RedisLock):
    """The lock of a holder who is paused as soon as he has it, for so long that it ends and others come by."""

    def __init__(self, client: Redis, sku: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(client, f"stock:{sku}", renew=False)
        self.meanwhile = meanwhile

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        with super().hold(timeout) as lease:
            self._client.delete(f"lock:{{{self.name}}}")  # what the server does at the end of the TTL
            elsewhere(self.meanwhile)
            yield lease


@pytest.fixture
def paused(strategy: Strategy, ledger: Ledger, redis: Redis) -> Locked:
    """Places an order with a pause after the grant, in which a rival buys one unit."""

    def rival() -> None:
        strategy.place(new_request(("a", 1)), ledger.save)

    return Locked("redis-lock", lambda sku: PausedAfterTheGrant(redis, sku, rival), wait=5)


def test_a_holder_who_was_overtaken_changes_nothing(paused: Locked, ledger: Ledger) -> None:
    stock.deliver("a", 2)
    with pytest.raises(StockBusy, match="overtaken"):
        paused.place(new_request(("a", 1)), ledger.save)
    assert len(ledger.orders()) == 1
    assert StockItem.objects.get(sku="a").version == 1
    ledger.assert_law(a=(1, 1))


def test_without_the_fence_he_writes_though_he_holds_no_lock(
    paused: Locked, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the same pause, the fence neither claimed nor asked for."""
    monkeypatch.setattr(locked, "check_and_decrement", lambda item, lease, kind: stock.take(item.sku, item.quantity))
    stock.deliver("a", 2)
    paused.place(new_request(("a", 1)), ledger.save)
    assert len(ledger.orders()) == 2
    ledger.assert_law(a=(0, 2))


def test_a_holder_who_trusts_the_lock_and_is_paused_between_read_and_write_loses_the_rivals_update(
    strategy: Strategy, ledger: Ledger, redis: Redis
) -> None:
    """The other negative control: no fence, and a write of what was computed from the read."""

    class TrustsTheLock(Strategy):
        name = "trusts-the-lock"

        def _place(self, order: OrderRequest, save: Save) -> Placement:
            (item,) = order.items
            with stock_lock(item.sku).hold(), transaction.atomic(durable=True):
                left = StockItem.objects.get(sku=item.sku).on_hand
                StockItem.objects.filter(sku=item.sku).update(on_hand=left - item.quantity)
                save_one(order, save)
            return Placement.COMMITTED

    def the_lock_ends_and_a_rival_buys() -> None:
        redis.delete("lock:{stock:a}")
        strategy.place(new_request(("a", 1)), ledger.save)

    stock.deliver("a", 2)
    with interleaved(the_lock_ends_and_a_rival_buys, after="^SELECT .*inventory_stockitem"):
        TrustsTheLock().place(new_request(("a", 1)), ledger.save)
    figures = ledger.figures()["a"]
    assert (figures.on_hand, figures.sold, figures.drift) == (1, 2, -1)


@pytest.mark.parametrize(("ahead", "sold"), [(-1, 1), (0, 0), (1, 0)])
def test_a_fence_must_be_higher_than_the_last_that_claimed_the_row(ledger: Ledger, ahead: int, sold: int) -> None:
    stock.deliver("a", 1)

    class ClaimedMeanwhile(RedisLock):
        @contextmanager
        def hold(self, timeout: float | None = None) -> Iterator[Lease]:
            with super().hold(timeout) as lease:
                assert lease.fence is not None
                StockItem.objects.update(fence=lease.fence + ahead, fenced_by="redis-lock")
                yield lease

    strategy = Locked("redis-lock", lambda sku: ClaimedMeanwhile(registry.counters().client, sku), wait=1)
    if sold:
        strategy.place(new_request(("a", 1)), ledger.save)
    else:
        with pytest.raises(StockBusy, match="overtaken"):
            strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(1 - sold, sold))


def test_the_fence_of_the_last_holder_stays_on_the_row(strategy: Strategy, ledger: Ledger) -> None:
    stock.deliver("a", 2)
    fences = []
    for _ in range(2):
        strategy.place(new_request(("a", 1)), ledger.save)
        fences.append(StockItem.objects.get(sku="a").fence)
    assert 0 < fences[0] < fences[1]


def test_a_refusal_leaves_the_claim_undone_with_the_rest(strategy: Strategy, ledger: Ledger) -> None:
    stock.deliver("a", 1)
    with pytest.raises(SoldOut):
        strategy.place(new_request(("a", 2)), ledger.save)
    assert StockItem.objects.get(sku="a").fence == 0


def test_whoever_else_writes_the_row_waits_for_the_commit(strategy: Strategy, ledger: Ledger) -> None:
    stock.deliver("a", 1)
    seen: list[bool] = []

    def try_to_lock_the_row() -> None:
        with transaction.atomic():
            seen.append(StockItem.objects.select_for_update(skip_locked=True).filter(sku="a").exists())

    with interleaved(try_to_lock_the_row, after="fence < "):
        strategy.place(new_request(("a", 1)), ledger.save)
    assert seen == [False]
    ledger.assert_law(a=(0, 1))
