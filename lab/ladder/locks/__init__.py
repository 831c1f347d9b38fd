"""The locks track of the ladder: locks that people ship, in order. Each flawed lock names the rung that fixes it.

`LOCKS` lists the flawed rungs, one file each. `SOUND` names the code of the sound locks. Two sound rungs are also in
this folder: `fence` is a part of the store and not a lock, and `redisson-watchdog` shows how another library waits. All
other sound locks may be used in production.
"""

from kazoo.recipe.lock import Lock as KazooRecipe

from lab.ladder.locks.answer_not_read import AnswerNotRead
from lab.ladder.locks.busy_as_success import BusyAsSuccess
from lab.ladder.locks.chain_of_freed_locks import ChainOfFreedLocks
from lab.ladder.locks.dead_head import DeadHead
from lab.ladder.locks.fence import Fence
from lab.ladder.locks.fence_on_write_only import FenceOnWriteOnly
from lab.ladder.locks.for_update_without_the_row import ForUpdateWithoutTheRow
from lab.ladder.locks.get_compare_del import GetCompareDel
from lab.ladder.locks.get_then_set import GetThenSet
from lab.ladder.locks.insert_without_owner_and_expiry import InsertWithoutOwnerAndExpiry
from lab.ladder.locks.lost_wake_up import LostWakeUp
from lab.ladder.locks.lua_release import LuaRelease
from lab.ladder.locks.merge_without_a_lock import MergeWithoutALock
from lab.ladder.locks.no_lock import NoLock
from lab.ladder.locks.one_primary_with_replicas import OnePrimaryWithReplicas
from lab.ladder.locks.owner_as_text import OwnerAsText
from lab.ladder.locks.owner_is_ip_pid_thread_time import OwnerIsIpPidThreadTime
from lab.ladder.locks.owner_is_thread_id import OwnerIsThreadId
from lab.ladder.locks.process_lock import ProcessLock
from lab.ladder.locks.re_entrant_without_the_count import ReEntrantWithoutTheCount
from lab.ladder.locks.redisson_lease_time import RedissonLeaseTime
from lab.ladder.locks.redisson_watchdog import RedissonWatchdog
from lab.ladder.locks.redlock_clock_jump import RedlockClockJump
from lab.ladder.locks.redlock_no_fsync import RedlockNoFsync
from lab.ladder.locks.redlock_one_client_thrice import RedlockOneClientThrice
from lab.ladder.locks.redlock_replicated_nodes import RedlockReplicatedNodes
from lab.ladder.locks.renewal_and_a_pause import RenewalAndAPause
from lab.ladder.locks.renewal_and_plain_release import RenewalAndPlainRelease
from lab.ladder.locks.renews_nothing import RenewsNothing
from lab.ladder.locks.rung import FaultRung, LockRung, Rung
from lab.ladder.locks.set_nx_ex import SetNxEx
from lab.ladder.locks.setnx import Setnx
from lab.ladder.locks.setnx_then_expire import SetnxThenExpire
from lab.ladder.locks.setnx_watch_release import SetnxWatchRelease
from lab.ladder.locks.thread_lock import ThreadLock
from lab.ladder.locks.ttl_healed_by_waiters import TtlHealedByWaiters
from lab.ladder.locks.ttl_healed_in_one_script import TtlHealedInOneScript
from lab.ladder.locks.ttl_zero_prolongs import TtlZeroProlongs
from lab.ladder.locks.watch_release import WatchRelease
from lab.ladder.locks.watch_set_too_late import WatchSetTooLate
from lab.ladder.locks.watchdog_compares_a_constant import WatchdogComparesAConstant
from lab.ladder.locks.woken_means_mine import WokenMeansMine
from lab.ladder.locks.wrong_argument import WrongArgument
from lab.ladder.locks.wrong_key_expires import WrongKeyExpires
from locking import FairRedisLock, RedisLock, Redlock, ReentrantLock
from locking.etcd import EtcdLock
from locking.postgres import AdvisoryLock, InsertLock, RowLock
from locking.zookeeper import ZooKeeperLock

__all__ = ["LOCKS", "SOUND", "FaultRung", "LockRung", "Rung"]

LOCKS: dict[str, type[Rung]] = {
    rung.slug: rung
    for rung in (
        NoLock,
        MergeWithoutALock,
        ThreadLock,
        ProcessLock,
        GetThenSet,
        AnswerNotRead,
        BusyAsSuccess,
        Setnx,
        SetnxThenExpire,
        WrongKeyExpires,
        TtlHealedByWaiters,
        TtlZeroProlongs,
        TtlHealedInOneScript,
        SetNxEx,
        ChainOfFreedLocks,
        WrongArgument,
        GetCompareDel,
        OwnerAsText,
        OwnerIsThreadId,
        OwnerIsIpPidThreadTime,
        SetnxWatchRelease,
        WatchRelease,
        LuaRelease,
        WatchdogComparesAConstant,
        RenewsNothing,
        RenewalAndPlainRelease,
        RenewalAndAPause,
        FenceOnWriteOnly,
        ReEntrantWithoutTheCount,
        LostWakeUp,
        DeadHead,
        RedissonLeaseTime,
        OnePrimaryWithReplicas,
        RedlockOneClientThrice,
        RedlockNoFsync,
        RedlockReplicatedNodes,
        RedlockClockJump,
        WokenMeansMine,
        WatchSetTooLate,
        ForUpdateWithoutTheRow,
        InsertWithoutOwnerAndExpiry,
    )
}

SOUND: dict[str, type] = {
    "renewal": RedisLock,
    "fence": Fence,
    "re-entrant": ReentrantLock,
    "woken": RedisLock,
    "fair": FairRedisLock,
    "redisson-watchdog": RedissonWatchdog,
    "redlock": Redlock,
    "zookeeper": ZooKeeperLock,
    "kazoo-recipe": KazooRecipe,
    "etcd": EtcdLock,
    "zookeeper-quorum": ZooKeeperLock,
    "etcd-quorum": EtcdLock,
    "lock-table-for-update": RowLock,
    "lock-table-insert": InsertLock,
    "postgres-advisory-lock": AdvisoryLock,
}
