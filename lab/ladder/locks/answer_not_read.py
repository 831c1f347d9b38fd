"""`answer-not-read`: the right command is sent, and nobody looks at what it says."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class AnswerNotRead(LockRung):
    """Flawed: SETNX answers "no", and the caller goes on.

    The schedule: A takes the lock, B asks for it and is let in. B's EXPIRE prolongs the lock of A, and whoever is done
    first frees it for everybody. It is the mistake of a variable that is assigned and never used: it compiles, and a
    test with one buyer passes. Fixed by `setnx`, which returns the answer. Source: article 002, section 5.1.
    """

    slug = "answer-not-read"
    title = "The answer is not read"
    flaw = "The lock says no, and everybody enters."
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
