"""`renewal-and-a-pause`: the watchdog lives in the holder's process and stops when that process is paused."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import RedisLock


class RenewalAndAPause(FaultRung):
    """Flawed: a lock expires by itself, and nothing makes its holder check before it writes.

    The lock is the sound `RedisLock`. It is right to let B in: a holder that is silent for a whole TTL may
    be dead. The schedule that breaks it: A acquires the lock and reads the stock. Its process is paused for longer than
    the TTL (garbage collection, SIGSTOP, a virtual machine that is moved), and its watchdog with it. B acquires the
    lock, reads the same stock and writes. A wakes and overwrites that.

    A longer TTL makes this rarer. A check of the lease before the write makes the gap smaller: the pause may come after
    the check. No lock can close the gap, because the store that is written to does not ask the lock.

    Fixed by a store that refuses a client which another has overtaken: `fence`. Source: articles 000 and 002 (sections
    4.1.2 and 4.2).
    """

    slug = "renewal-and-a-pause"
    title = "Renewal and a pause"
    flaw = "A holder that was paused for longer than its TTL wakes and writes, although another client has entered."
    breaks = "conserved"
    broken_by = "pause"
    survives = frozenset({"late release", "expiry", "crash"})
    fixed_by = "fence"
    source = "000, 002"
    lock = RedisLock
