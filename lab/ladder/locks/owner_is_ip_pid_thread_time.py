"""`owner-is-ip-pid-thread-time`: the owner is everything one knows of him."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung


class OwnerIsIpPidThreadTime(LockRung):
    """Flawed: four things that repeat do not make one that is unique.

    A machine's own name resolves to 127.0.1.1 on every Debian, a container's first process is number 1, its thread is
    called MainThread. So the clock alone tells owners apart, and it ticks in hundredths of a second: the source is
    Python 2, whose text of a time has no more digits. The schedule: A and B ask in the same tick, A gets the lock and
    B waits; A is done and about to release when his TTL passes; B takes the lock; A's release finds its own text there
    and frees the lock of B, and C enters beside B.
    Fixed by random bits, which need to know nothing: `watch-release`. Source: article 001, way three.
    """

    slug = "owner-is-ip-pid-thread-time"
    title = "The owner is ip-pid-thread-time"
    flaw = "Two that ask in one tick of the clock are one owner, and one frees the other's lock."
    breaks = "one holder"
    broken_by = "late release"
    clients = 3
    survives = frozenset({"crash"})
    fixed_by = "watch-release"
    source = "001"
    capabilities = WITH_A_TTL

    def owner(self) -> str:
        return f"{_address()}-{os.getpid()}-{threading.current_thread().name}-{self._clock():.2f}"

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return bool(self.client.eval(COMPARE_AND_DELETE, 1, self.key, owner))


def _address() -> str:
    with suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return "127.0.1.1"
