"""`renewal-and-a-pause`: the watchdog lives in the holder's process, and stands still when that does."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import RedisLock


class RenewalAndAPause(FaultRung):
    """Flawed: a lock ends by itself, and nobody can make its holder look before he writes.

    The lock is `RedisLock` as you may ship it, and it is right to let B in: a holder who is silent for a whole TTL may
    be dead. The schedule: A takes the lock and reads the stock; his process is paused (garbage collection, SIGSTOP, a
    virtual machine that is moved) for longer than the TTL, and so is the watchdog in it; B takes the lock, reads the
    same stock and writes; A wakes and writes over that. A longer TTL makes it rarer. To look at the lease before the
    write only makes the gap smaller: the pause may come after the look.

    No lock mends that, as what is written goes to a store which does not ask the lock.
    Fixed where you write, by a store that refuses who has been overtaken: `fence`.
    Source: articles 000 and 002 (sections 4.1.2 and 4.2).
    """

    slug = "renewal-and-a-pause"
    title = "Renewal, and a pause"
    flaw = "A holder who was paused for longer than his TTL wakes and writes, although another has been let in."
    breaks = "conserved"
    broken_by = "pause"
    survives = frozenset({"late release", "expiry", "crash"})
    fixed_by = "fence"
    source = "000, 002"
    lock = RedisLock
    event = "pause"
