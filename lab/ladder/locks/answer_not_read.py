"""Flawed lock: it sends the right command, but ignores the reply."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class AnswerNotRead(LockRung):
    """Flawed: SETNX replies that the key exists, and the caller goes on as if it had the lock.

    The schedule that breaks it: client A acquires the lock. B sends SETNX, ignores the refusal and enters. B's PEXPIRE
    extends A's lock. The client that finishes first deletes the key for both. A test with one customer passes.

    Fixed by returning the reply: `setnx`. Source: article 002, section 5.1.
    """

    slug = "answer-not-read"
    title = "The reply is not read"
    flaw = "The server refuses the lock, and the client enters anyway."
    breaks = "one holder"
    fixed_by = "setnx"
    source = "002"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        self.client.setnx(self.key, "locked")
        self.client.pexpire(self.key, self.milliseconds)
        return True

    def free(self, owner: str) -> bool:
        return bool(self.client.delete(self.key))
