"""`owner-as-text`: the owner is text, the answer of the server is bytes."""

from __future__ import annotations

from lab.ladder.locks.rung import WITH_A_TTL, LockRung


class OwnerAsText(LockRung):
    """Flawed: in Python 3 no bytes are ever equal to a text, and comparing them is no error.

    The code was right in Python 2, and is right with `decode_responses=True`: whether it works depends on how somebody
    else made the client. The schedule: A takes the lock and frees it; the release is refused; B waits for the rest of
    the TTL although nobody is inside. In the source the lock has no TTL, so B waits for ever.
    Fixed by `.encode()`, as one rung before and in `watch-release`. Source: article 003.
    """

    slug = "owner-as-text"
    title = "Owner compared as text"
    flaw = "Every release is refused, and each lock lasts for its whole TTL."
    breaks = "progress"
    survives = frozenset({"crash"})
    fixed_by = "watch-release"
    source = "003"
    capabilities = WITH_A_TTL

    def take(self, owner: str) -> bool:
        return bool(self.client.set(self.key, owner, nx=True, px=self.milliseconds))

    def free(self, owner: str) -> bool:
        return self.client.get(self.key) == owner and bool(self.client.delete(self.key))
