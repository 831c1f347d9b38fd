"""Flawed lock: the owner text is made of address, process, thread and time."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

from lab.ladder.locks.rung import COMPARE_AND_DELETE, WITH_A_TTL, LockRung


class OwnerIsIpPidThreadTime(LockRung):
    """Flawed: the owner text is made of four values, and two clients can have all four in common.

    A Debian machine resolves its own name to 127.0.1.1. The first process of a container is number 1, and its thread is
    called MainThread. So only the clock tells owners apart, and in Python 2, which the source uses, the text of a time
    has only two digits after the point.

    The schedule that breaks it: clients A, B and C ask in the same tick and have the same owner text. A acquires the
    lock. A is about to release when its TTL runs out, and B acquires the lock. A's release finds its own text and
    deletes B's key, and C enters beside B.

    Fixed by random bits as the owner: `watch-release`. Source: article 001, way three.
    """

    slug = "owner-is-ip-pid-thread-time"
    title = "The owner is ip-pid-thread-time"
    flaw = "Clients that ask in the same clock tick have the same owner, and one releases the lock of another."
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
