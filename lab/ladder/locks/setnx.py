"""`setnx`: one command checks and acquires, and its reply is read."""

from __future__ import annotations

from lab.ladder.locks.rung import ON_A_SERVER, LockRung


class Setnx(LockRung):
    """Flawed: only the holder can release the lock, and the holder may be dead.

    While every process lives, it is right: the server runs one command after another, so one of two requests is first.
    The schedule that breaks it: A acquires the lock, and its process dies before the release. No client can ever enter
    again. A restart of the program does not help; an operator must delete the key.

    Fixed by a TTL that the same command sets: `set-nx-ex`. On the next rung a second command sets it, and a crash
    between the two prevents that. Source: articles 000, 001 (way two) and 003.
    """

    slug = "setnx"
    title = "SETNX"
    flaw = "The lock of a holder that crashed is never released."
    breaks = "progress"
    broken_by = "crash"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "set-nx-ex"
    source = "000, 001, 003"
    capabilities = ON_A_SERVER

    def take(self, owner: str) -> bool:
        return bool(self.client.setnx(self.key, "locked"))

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
