"""Flawed lock: one command checks and acquires, and the client reads the reply."""

from __future__ import annotations

from lab.ladder.locks.rung import ON_A_SERVER, LockRung


class Setnx(LockRung):
    """Flawed: only the holder can release the lock, and the holder may be dead.

    While every process lives, the lock is right: the server runs one command after another, so one of two requests is
    first. The schedule that breaks it: client A acquires the lock, and its process dies before the release. No client
    can ever enter again. A restart of the program does not help; an operator must delete the key.

    Fixed by a TTL that is set in the same command: `set-nx-ex`. On `setnx-then-expire` a second command sets the TTL,
    and a crash between the two commands prevents that. Source: articles 000, 001 (way two) and 003.
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
