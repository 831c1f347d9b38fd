"""Flawed lock: a pause stops the holder's process and its watchdog, and the lock expires."""

from __future__ import annotations

from lab.ladder.locks.rung import FaultRung
from locking import RedisLock


class RenewalAndAPause(FaultRung):
    """Flawed: a lock expires by itself, and nothing makes its holder check this before it writes.

    The lock is the sound `RedisLock`. A holder that is silent for a whole TTL may be dead, so the lock must let another
    client in. The schedule that breaks it: client A acquires the lock and reads the stock. Its process and its watchdog
    are paused for longer than the TTL (garbage collection, SIGSTOP, a virtual machine that is moved). B acquires the
    lock, reads the same stock and writes. A wakes and overwrites what B has written.

    A longer TTL makes this rarer. A check of the lease before the write makes the gap smaller, but the pause may come
    after the check. No lock can close the gap, because the store does not ask the lock whether a write is allowed.

    Fixed by a store that refuses the writes of an earlier holder: `fence`. Source: articles 000 and 002 (sections 4.1.2
    and 4.2).
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
