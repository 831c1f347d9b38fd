"""Flawed lock: it compares the owner, a `str`, with the reply of the server, which is `bytes`."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class OwnerAsText(LockRung):
    """Flawed: in Python 3, `bytes` and `str` are never equal, and comparing them is not an error.

    The code was right in Python 2, and it is right with `decode_responses=True`. So whether it works depends on the
    code that created the client. The schedule that breaks it: client A acquires the lock and releases it. The release
    is refused. B waits for the rest of the TTL although no client is in the critical section. In the source the lock
    has no TTL, so B waits forever.

    Fixed by `.encode()`, as on `get-compare-del` and `watch-release`. Source: article 003.
    """

    slug = "owner-as-text"
    title = "Owner compared as text"
    flaw = "Every release is refused, so each lock lasts for its whole TTL."
    breaks = "progress"
    survives = frozenset({"crash"})
    fixed_by = "watch-release"
    source = "003"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return self.client.get(self.key) == owner and bool(self.client.delete(self.key))
