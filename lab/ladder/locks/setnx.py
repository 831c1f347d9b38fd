"""`setnx`: one command that looks and takes, and whose answer is read."""

from __future__ import annotations

from lab.ladder.locks.rung import ON_A_SERVER, LockRung


class Setnx(LockRung):
    """Flawed: nobody but the holder can free it, and the holder may be dead.

    While everybody lives it is right: the server runs one command after the other, and one of them is the first. The
    schedule: A takes the lock and his process dies before he frees it. Nobody ever enters again, and a restart of the
    program does not help; somebody has to delete the key by hand.
    Fixed by an end that needs no holder, set by the command that takes the lock: `set-nx-ex`. Set by a second command,
    as on the next rung, it may never be set at all. Source: articles 000, 001 (way two) and 003.
    """

    slug = "setnx"
    title = "SETNX"
    flaw = "The lock of a holder that crashed is never freed."
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
