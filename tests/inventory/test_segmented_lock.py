"""`segmented-lock`: a row and a fence a segment, and a pool that is sold too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction
from redis import Redis

from inventory import stock
from inventory.errors import Refusal, SoldOut, StockBusy
from inventory.models import StockItem, StockSegment
from inventory.requests import OrderRequest, Placement
from inventory.strategies import registry, segmented_lock
from inventory.strategies.registry import stock_lock
from inventory.strategies.segmented import Segmented
from locking import Lease, RedisLock
from tests.factories import elsewhere, interleaved, new_request, nobody
from tests.inventory.conftest import Ledger
from tests.inventory.segments_support import make, put_on_sale, units_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def strategy(ledger: Ledger) -> Segmented:
    """Ten units of `a` in five segments."""
    made: Segmented = make("segmented-lock")
    put_on_sale(made, a=10)
    return made


def fences() -> list[int]:
    return list(StockSegment.objects.order_by("number").values_list("fence", flat=True))


# The lock and the commit


def test_the_lock_of_the_segment_is_held_at_the_commit_and_free_after_the_answer(
    strategy: Segmented, ledger: Ledger
) -> None:
    seen = []

    def look() -> None:
        lease = stock_lock("a", 0).acquire(blocking=False)
        seen.append((lease is not None and lease.release(), len(ledger.orders())))

    def save(requests: Sequence[OrderRequest]) -> Mapping[UUID, Refusal]:
        elsewhere(look)
        transaction.on_commit(lambda: elsewhere(look))
        return ledger.save(requests)

    strategy.place(new_request(("a", 1)), save)
    look()
    assert seen == [(False, 0), (False, 1), (True, 1)]


# Who was overtaken


class PausedAfterTheGrant(RedisLock):
    """The lock of a holder who is paused as soon as he has it, for so long that it ends and others come by."""

    def __init__(self, client: Redis, name: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(client, name, renew=False)
        self.meanwhile = meanwhile

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        with super().hold(timeout) as lease:
            self._client.delete(f"lock:{{{self.name}}}")  # what the server does at the end of the TTL
            elsewhere(self.meanwhile)
            yield lease


@pytest.fixture
def paused(strategy: Segmented, ledger: Ledger, redis: Redis) -> Segmented:
    """Places an order with a pause after the grant of segment 0, in which a rival buys one unit of it."""

    def lock(sku: str, number: int) -> RedisLock:
        if number:
            return stock_lock(sku, number)
        return PausedAfterTheGrant(
            redis, stock_lock(sku, 0).name, lambda: make("segmented-lock").place(new_request((sku, 1)), ledger.save)
        )

    made: Segmented = make("segmented-lock", make_lock=lock)
    return made


@pytest.mark.parametrize("wanted", [1, 5], ids=["one segment", "gathers"])
def test_a_holder_who_was_overtaken_changes_nothing(paused: Segmented, ledger: Ledger, wanted: int) -> None:
    with pytest.raises(StockBusy, match=r"a / 0: fence .* overtaken"):
        paused.place(new_request(("a", wanted)), ledger.save)
    assert units_of(paused, "a") == [1, 2, 2, 2, 2]
    assert len(ledger.orders()) == 1
    ledger.assert_law(a=(9, 1))


def test_without_the_fence_of_the_segment_he_writes(
    paused: Segmented, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    guard = " AND fence < %(fence)s"
    assert guard in segmented_lock.CLAIM
    monkeypatch.setattr(segmented_lock, "CLAIM", segmented_lock.CLAIM.replace(guard, ""))
    assert paused.place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
    assert units_of(paused, "a") == [0, 2, 2, 2, 2]


def test_without_the_claim_of_all_segments_he_gathers(
    paused: Segmented, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(segmented_lock, "claim_all", lambda segments, leases: None)
    assert paused.place(new_request(("a", 5)), ledger.save) is Placement.COMMITTED
    ledger.assert_law(a=(4, 6))


def test_who_gathers_claims_every_segment(strategy: Segmented, ledger: Ledger) -> None:
    strategy.place(new_request(("a", 5)), ledger.save)
    first = fences()
    assert all(first)
    strategy.place(new_request(("a", 5)), ledger.save)
    assert all(before < after for before, after in zip(first, fences(), strict=True))


@pytest.mark.parametrize("between", ["fewer segments", "unloaded"])
def test_a_segment_that_is_not_used_for_a_while_remembers_its_fence(
    strategy: Segmented, ledger: Ledger, between: str
) -> None:
    strategy.place(new_request(("a", 5)), ledger.save)
    before = fences()
    if between == "unloaded":
        strategy.unload(["a"])
    else:
        make("segmented-lock", segments=2).preheat(["a"], nobody)
    strategy.preheat(["a"], nobody)
    assert fences() == before


def test_a_lock_without_a_fence_is_a_mistake_of_the_caller(strategy: Segmented, ledger: Ledger, redis: Redis) -> None:
    class Fenceless(RedisLock):
        @contextmanager
        def hold(self, timeout: float | None = None) -> Iterator[Lease]:
            with super().hold(timeout) as lease:
                lease.fence = None
                yield lease

    fenceless = make("segmented-lock", make_lock=lambda sku, number: Fenceless(redis, f"{sku}:{number}"))
    with pytest.raises(ValueError, match="gives a fence"):
        fenceless.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(10, 0))


# The guard


def test_without_the_guard_the_constraint_refuses(
    strategy: Segmented, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the guarded decrement."""
    guard = " AND on_hand >= %(quantity)s"
    assert guard in segmented_lock.CLAIM
    monkeypatch.setattr(segmented_lock, "CLAIM", segmented_lock.CLAIM.replace(guard, ""))
    strategy._look("a")
    StockSegment.objects.filter(number=0).update(on_hand=0)
    StockItem.objects.update(on_hand=2)
    with pytest.raises(IntegrityError, match="segment_on_hand_not_negative"):
        strategy.place(new_request(("a", 1)), ledger.save)
    ledger.assert_law(a=(10, 0))


# The pool


def test_the_pool_is_empty_while_the_sale_runs_and_has_everything_when_it_was_unloaded(
    strategy: Segmented, ledger: Ledger
) -> None:
    assert StockItem.objects.get().on_hand == 0
    strategy.place(new_request(("a", 1)), ledger.save)
    strategy.unload(["a"])
    assert (StockItem.objects.get().on_hand, units_of(strategy, "a")) == (9, [0, 0, 0, 0, 0])
    registry.get("guarded-update").place(new_request(("a", 9)), ledger.save)
    ledger.assert_law(a=(0, 10))


def test_stock_that_was_never_split_is_sold_from_the_pool(ledger: Ledger) -> None:
    """It may be another sale's by now: who preheats splits it."""
    stock.deliver("a", 6)
    strategy = make("segmented-lock")
    strategy.place(new_request(("a", 1)), ledger.save)
    assert (StockItem.objects.get().on_hand, units_of(strategy, "a")) == (5, [])
    ledger.assert_law(a=(5, 1))


def test_what_is_in_the_pool_counts_before_anybody_is_refused(strategy: Segmented, ledger: Ledger) -> None:
    stock.deliver("a", 3)
    with pytest.raises(SoldOut, match="a: 14 wanted, 13 left"):
        strategy.place(new_request(("a", 14)), ledger.save)
    strategy.place(new_request(("a", 13)), ledger.save)
    ledger.assert_law(a=(0, 13))


def test_segments_that_appear_after_the_locks_were_taken_are_not_left_out(strategy: Segmented, ledger: Ledger) -> None:
    """Somebody splits into more of them at the last moment: whoever gathers looks again, and locks those too."""

    def splits() -> None:
        make("segmented-lock", segments=8).preheat(["a"], nobody)

    with interleaved(splits, before="FOR NO KEY UPDATE"):
        assert strategy.place(new_request(("a", 10)), ledger.save) is Placement.COMMITTED
    assert StockSegment.objects.count() == 8
    ledger.assert_law(a=(0, 10))


def test_a_unit_that_moves_between_the_look_and_the_count_is_not_lost_from_sight(
    strategy: Segmented, ledger: Ledger
) -> None:
    """Everything goes from the segments to the pool after the buyer has looked at them, and before he counts."""
    with interleaved(lambda: strategy.unload(["a"]), after="SELECT .*number"):
        assert strategy.place(new_request(("a", 5)), ledger.save) is Placement.COMMITTED
    ledger.assert_law(a=(5, 5))


def test_while_the_stock_is_split_nobody_else_writes_its_rows(strategy: Segmented, ledger: Ledger) -> None:
    free = []

    def look() -> None:
        with transaction.atomic():
            for rows in (StockItem.objects.all(), StockSegment.objects.all()):
                free.append(len(rows.select_for_update(skip_locked=True)))

    with interleaved(look, before="INSERT INTO .inventory_stocksegment"):
        strategy.preheat(["a"], nobody)
    assert free == [0, 0]


def test_split_without_the_rows_being_locked_a_unit_that_is_sold_meanwhile_appears_again(
    strategy: Segmented, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""

    def only_read(sku: str) -> tuple[StockItem, list[StockSegment]]:
        return StockItem.objects.get(sku=sku), list(StockSegment.objects.filter(item=sku))

    monkeypatch.setattr(segmented_lock, "locked", only_read)
    other = make("segmented-lock")
    with interleaved(lambda: other.place(new_request(("a", 1)), ledger.save), before="UPDATE .?inventory_stockitem"):
        strategy.preheat(["a"], nobody)
    assert ledger.figures()["a"].drift == -1


def test_preheating_skus_that_nobody_received_makes_nothing(strategy: Segmented, ledger: Ledger) -> None:
    strategy.preheat(["a", "unknown"], nobody)
    strategy.unload(["unknown"])
    assert set(StockSegment.objects.values_list("item", flat=True)) == {"a"}
    ledger.assert_law(a=(10, 0))
