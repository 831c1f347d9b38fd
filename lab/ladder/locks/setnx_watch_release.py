"""Flawed lock: the key names its owner and is deleted with WATCH, but it has no TTL."""

from __future__ import annotations

from redis import WatchError

from lab.ladder.locks.rung import ON_A_SERVER, LockRung


class SetnxWatchRelease(LockRung):
    """Flawed: only the owner can release the lock, and the owner may be dead.

    The release is the one of `watch-release`: the server deletes the key only if it still belongs to the client. This
    protects a key that expires and then belongs to another client, but here no key ever expires. The schedule that
    breaks it: client A acquires the lock, and its process dies before the release. No client can ever enter again, and
    no other client may delete the key, because none is the owner.

    Fixed by a TTL that is set in the same command: `watch-release`. Source: article 003, the first two listings. They
    also compare bytes with text: see `owner-as-text`.
    """

    slug = "setnx-watch-release"
    title = "SETNX, released by WATCH and MULTI"
    flaw = "The lock of a holder that crashed is never released, because only its owner may release it."
    breaks = "progress"
    broken_by = "crash"
    survives = frozenset({"expiry", "pause"})
    fixed_by = "watch-release"
    source = "003"
    capabilities = ON_A_SERVER

    def take(self, owner: str) -> bool:
        return bool(self.client.setnx(self.key, owner))

    def free(self, owner: str) -> bool:
        with self.client.pipeline() as transaction:
            while True:
                transaction.watch(self.key)
                if transaction.get(self.key) != owner.encode():
                    return False
                transaction.multi()
                transaction.delete(self.key)
                try:
                    return bool(transaction.execute()[0])
                except WatchError:
                    continue
