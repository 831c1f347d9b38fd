"""Track one: the locks that people ship, in the order in which one mends the other.

Sound locks are no part of this folder: they are in `locking`, where `renewal`, the rung after `renews-nothing`, is
`RedisLock`. What `fence-on-write-only` needs is in the store and not in the lock: its sound neighbour is `fence.Fence`.
"""

from lab.ladder.locks.answer_not_read import AnswerNotRead
from lab.ladder.locks.busy_as_success import BusyAsSuccess
from lab.ladder.locks.fence_on_write_only import FenceOnWriteOnly
from lab.ladder.locks.get_compare_del import GetCompareDel
from lab.ladder.locks.get_then_set import GetThenSet
from lab.ladder.locks.lua_release import LuaRelease
from lab.ladder.locks.merge_without_a_lock import MergeWithoutALock
from lab.ladder.locks.no_lock import NoLock
from lab.ladder.locks.owner_as_text import OwnerAsText
from lab.ladder.locks.owner_is_ip_pid_thread_time import OwnerIsIpPidThreadTime
from lab.ladder.locks.owner_is_thread_id import OwnerIsThreadId
from lab.ladder.locks.process_lock import ProcessLock
from lab.ladder.locks.renews_nothing import RenewsNothing
from lab.ladder.locks.rung import LockRung, Rung
from lab.ladder.locks.set_nx_ex import SetNxEx
from lab.ladder.locks.setnx import Setnx
from lab.ladder.locks.setnx_then_expire import SetnxThenExpire
from lab.ladder.locks.thread_lock import ThreadLock
from lab.ladder.locks.ttl_healed_by_waiters import TtlHealedByWaiters
from lab.ladder.locks.ttl_healed_in_one_script import TtlHealedInOneScript
from lab.ladder.locks.watch_release import WatchRelease
from lab.ladder.locks.wrong_argument import WrongArgument
from lab.ladder.locks.wrong_key_expires import WrongKeyExpires

__all__ = ["LOCKS", "LockRung", "Rung"]

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
        TtlHealedInOneScript,
        SetNxEx,
        WrongArgument,
        GetCompareDel,
        OwnerAsText,
        OwnerIsThreadId,
        OwnerIsIpPidThreadTime,
        WatchRelease,
        LuaRelease,
        RenewsNothing,
        FenceOnWriteOnly,
    )
}
