"""Flawed lock: it sets the TTL on a different key."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class WrongKeyExpires(LockRung):
    """Flawed: the code names the key twice, and the second name is a different one.

    PEXPIRE on a missing key is not an error. It replies 0, and the code ignores the reply. The schedule that breaks it:
    client A acquires the lock and dies, at any moment. The key has no TTL, although A's lease has one.

    Fixed by naming the key once: `set-nx-ex`. Source: article 000, whose published listing has this flaw.
    """

    slug = "wrong-key-expires"
    title = "The wrong key expires"
    flaw = "EXPIRE names another key than SETNX, so the lock never expires."
    breaks = "progress"
    broken_by = "crash"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "set-nx-ex"
    source = "000"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        if not self.client.setnx(self.key, "locked"):
            return False
        self.client.pexpire("product-lock", self.milliseconds)
        return True

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
