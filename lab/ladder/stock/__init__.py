"""The stock track of the ladder: ways of selling stock in Postgres, some with counters in Redis.

This folder has the flawed rungs, and one sound rung: `sync-standby-failover`, which only adds a Postgres setting. The
other sound rungs are the strategies in `inventory.strategies`.
"""

from lab.ladder.stock.async_standby_failover import AsyncStandbyFailover
from lab.ladder.stock.commit_after_return import CommitAfterReturn
from lab.ladder.stock.compute_and_overwrite import ComputeAndOverwrite
from lab.ladder.stock.decr_and_look_at_the_sign import DecrAndLookAtTheSign
from lab.ladder.stock.duplicate_click import DuplicateClick
from lab.ladder.stock.exception_leaves_the_lock import ExceptionLeavesTheLock
from lab.ladder.stock.lock_inside_the_transaction import LockInsideTheTransaction
from lab.ladder.stock.lock_under_the_wrong_isolation import LockUnderTheWrongIsolation
from lab.ladder.stock.lua_off_by_one import LuaOffByOne
from lab.ladder.stock.order_after_the_unlock import OrderAfterTheUnlock
from lab.ladder.stock.queue_after_decrement_as_two_calls import QueueAfterDecrementAsTwoCalls
from lab.ladder.stock.redis_loses_its_last_second import RedisLosesItsLastSecond
from lab.ladder.stock.redis_taken_then_the_process_dies import RedisTakenThenTheProcessDies
from lab.ladder.stock.refusal_swallowed import RefusalSwallowed
from lab.ladder.stock.retries_reported_as_sold_out import RetriesReportedAsSoldOut
from lab.ladder.stock.rung import StockRung
from lab.ladder.stock.segmented_keys import SegmentedKeys
from lab.ladder.stock.subtract_in_sql import SubtractInSql

__all__ = ["RUNGS", "StockRung"]

RUNGS: dict[str, StockRung] = {
    rung.slug: rung
    for rung in (
        ComputeAndOverwrite(),
        SubtractInSql(),
        LockInsideTheTransaction(),
        LockUnderTheWrongIsolation(),
        CommitAfterReturn(),
        RefusalSwallowed(),
        OrderAfterTheUnlock(),
        ExceptionLeavesTheLock(),
        SegmentedKeys(),
        AsyncStandbyFailover(),
        RetriesReportedAsSoldOut(),
        LuaOffByOne(),
        DecrAndLookAtTheSign(),
        RedisTakenThenTheProcessDies(),
        QueueAfterDecrementAsTwoCalls(),
        RedisLosesItsLastSecond(),
        DuplicateClick(),
    )
}
