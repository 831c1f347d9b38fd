"""EtcdLock: a lock on etcd. Clients queue with one key each, and the key that was created first holds the lock.

Each client has its own key, `lock/<name>/<id>`, bound to its own etcd lease, so that the key disappears with the
client. The revision at which etcd created the key is the client's place in the queue. It becomes the fence once the
client holds the lock. A waiter watches only the key right before its own, so a deletion wakes one waiter. This waiter
looks at the queue again, because the client before it may have left without ever holding the lock. The watch starts at
the revision after the one that the waiter has seen, so it misses no deletion.

Source: https://github.com/etcd-io/etcd/blob/main/client/v3/concurrency/mutex.go
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

from etcd3gw import Etcd3Client

from locking._ids import owner_label
from locking.arguments import require_client, require_flag
from locking.errors import LockUnavailable
from locking.etcd.gateway import EtcdGateway, lease_number
from locking.etcd.renewal import EtcdRenewer
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.renewal import RENEWALS_PER_TTL, watchdog

logger = logging.getLogger(__name__)

MIN_ANSWER_TIMEOUT = 1.0
"""Minimum seconds that the server has to answer. The `timeout` of a caller limits only the wait for the lock."""


class EtcdLock(Lock):
    """A fair, fenced lock on an etcd server or cluster (etcd 3.4 or later).

    The etcd lease of a client lasts a quarter longer than the TTL, and at least a second longer. The client keeps its
    place in the queue until this etcd lease ends. A waiter thus keeps its place with one command per TTL. A crashed
    holder or waiter loses its place when its etcd lease ends.

    To take the lock from its holder, revoke the holder's etcd lease. Deleting the key is not enough: the next client
    would get the lock before the holder learns of its loss.

    Without a wait, a grant and its release take three requests, each of which etcd writes to disk. Each waiter has a
    connection of its own for its watch. The client's session keeps `pool_maxsize` connections (10 by default). If more
    threads ask at the same time, the additional threads open a connection for each request.

    Args:
        client: an `etcd3gw.Etcd3Client`. Its session, with all settings, is copied for each process. Its own timeout is
            not used, because each request has a time limit of its own.
        name: name of the lock, such as `stock:sku-42`.
        ttl: lifetime of a grant in whole seconds, unless it is extended.
        renew: whether the watchdog of the process extends the lease every third of the TTL while it is held.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: returns monotonic seconds; for tests.

    Raises:
        TypeError: the client is not an `Etcd3Client`, or another argument has the wrong type.
        ValueError: the name is empty, or `ttl` is not a whole number of seconds from 1 to a million.
    """

    capabilities = Capabilities(
        across_processes=True,
        across_machines=True,
        fenced=True,
        fair=True,
        expires=True,
        renews=True,
        quiet_wait=True,
        forks=True,
        survives_holder_crash=True,
        survives_node_loss=True,
        survives_restart=True,
    )

    def __init__(
        self,
        client: Etcd3Client,
        name: str,
        *,
        ttl: float = 10.0,
        renew: bool = True,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_client(client, Etcd3Client)
        super().__init__(name, ttl=ttl, on_lost=on_lost, clock=clock)
        require_flag("renew", renew)
        if ttl % 1 != 0:
            raise ValueError(f"the ttl of an etcd lock must be a whole number of seconds of at least 1, not {ttl!r}")
        self._gateway = EtcdGateway(client, self.name)
        self._renewer = EtcdRenewer(client) if renew else None
        # Slashes in the name are quoted: the queue of "a" must not contain the keys of "a/b".
        self._prefix = f"lock/{quote(self.name, safe=':')}/"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`. The server has a second to answer even if `timeout` is less.

        Raises:
            LockUnavailable: the server could not be reached, did not answer in time, or refused the request.
            ValueError: `timeout` is out of range, or was given although `blocking` is False; or the shortest etcd lease
                that this etcd grants is too long for the TTL of this lock.
        """
        wait_seconds = wait_timeout(blocking, timeout)
        deadline = self._clock() + wait_seconds
        if not wait_seconds and self._look(self._limit(deadline)).keys:
            return None  # the lock is taken: refuse without a write
        while True:
            token = f"{secrets.randbits(62) + 1:016x}"
            lease = None
            try:
                lease = self._contend(token, deadline, alone=not wait_seconds)
                return lease
            except _PlaceLost:
                logger.warning("A waiter of lock %r was paused for too long, and joins the queue again.", self.name)
            finally:
                if lease is None:
                    with suppress(LockUnavailable):  # without an answer, the place ends when the etcd lease expires
                        self._revoke(token, MIN_ANSWER_TIMEOUT)

    def _contend(self, token: str, deadline: float, *, alone: bool) -> Lease | None:
        """Queue until the lock is granted, and return the lease, or None if the deadline passes first.

        Args:
            token: id of the etcd lease. The client chooses the id, so that it can revoke the lease even if etcd's
                answer is lost.
            deadline: when to give up, on the lock's clock.
            alone: whether to return None, without joining the queue, if the queue is not empty.

        Raises:
            _PlaceLost: the etcd lease has ended, so the place in the queue is lost.
        """
        kept = self._clock()
        self._grant(token, self._limit(deadline))
        tail = self._join(token, self._limit(deadline), alone=alone)
        if tail is None:
            return None
        fence = tail.keys[0].created
        while tail.ahead is not None:
            with self._gateway.deletions(tail.ahead, tail.revision + 1, self._limit(deadline)) as deletions:
                while not deletions.wait(min(deadline, kept + self.ttl) - self._clock()):
                    if self._clock() >= deadline:
                        return None
                    kept = self._keep(token, deadline)
            tail = self._look(self._limit(deadline), until=fence)
            if not tail.keys or tail.keys[0].created != fence:
                raise _PlaceLost
        if self._clock() - kept > self.ttl / RENEWALS_PER_TTL:
            kept = self._keep(token, deadline)
        lease = Lease(self, token, started=kept, ttl=self.ttl, fence=fence, on_lost=self._on_lost, clock=self._clock)
        self._require_time_left(lease)
        if self._renewer is not None or self._on_lost is not None:
            watchdog.watch(lease, self._renewer)
        return lease._hand_out()

    def _limit(self, deadline: float) -> float:
        """Return for how many seconds etcd may take to answer. An answer after the TTL would be useless."""
        return min(self.ttl, max(deadline - self._clock(), MIN_ANSWER_TIMEOUT))

    def _grant(self, token: str, seconds: float) -> None:
        """Create the etcd lease that keeps this client's place in the queue."""
        wanted = self.ttl + max(1, math.ceil(self.ttl / 4))
        answer = self._gateway.ask("lease/grant", {"ID": lease_number(token), "TTL": str(int(wanted))}, seconds)
        if int(answer["TTL"]) > wanted:
            raise ValueError(
                f"the ttl of lock {self.name!r} is too short for this etcd, which keeps every lease for at least "
                f"{answer['TTL']} s. Use a ttl of that length, or lower etcd's election timeout."
            )

    def _join(self, token: str, seconds: float, *, alone: bool) -> QueueTail | None:
        """Put this client's key at the end of the queue, and return the last two keys.

        If `alone` is True and the queue is not empty, put no key and return None.
        """
        key = _base64(self._prefix + token)
        guard = self._range() if alone else {"key": key}
        answer = self._gateway.ask(
            "kv/txn",
            {
                "compare": [{**guard, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
                "success": [
                    {"request_put": {"key": key, "value": _base64(owner_label()), "lease": lease_number(token)}},
                    {"request_range": self._last_two()},
                ],
            },
            seconds,
        )
        if answer is None:  # the etcd lease has ended
            raise _PlaceLost
        return _queue_tail(answer["responses"][1]["response_range"], answer) if answer.get("succeeded") else None

    def _look(self, seconds: float, *, until: int | None = None) -> QueueTail:
        """Return the last two keys of the queue. `until` leaves out the keys that were created after this revision."""
        upto = {} if until is None else {"max_create_revision": str(until)}
        answer = self._gateway.ask("kv/range", {**self._last_two(), **upto}, seconds)
        return _queue_tail(answer, answer)

    def _range(self) -> dict[str, str]:
        return {"key": _base64(self._prefix), "range_end": _base64(self._prefix[:-1] + chr(ord("/") + 1))}

    def _last_two(self) -> dict[str, object]:
        order = {"sort_target": "CREATE", "sort_order": "DESCEND"}
        return {**self._range(), **order, "limit": "2", "keys_only": True}

    def _keep(self, token: str, deadline: float) -> float:
        """Extend the client's etcd lease. Return the time just before the request, from which the TTL counts."""
        started = self._clock()
        if self._gateway.keep_alive([token], self._limit(deadline)) != [True]:
            raise _PlaceLost
        return started

    def _revoke(self, token: str, seconds: float) -> bool:
        """Revoke the etcd lease, which deletes the key. Return whether the lease still existed."""
        return bool(self._gateway.ask("lease/revoke", {"ID": lease_number(token)}, seconds))

    def _extend(self, lease: Lease, ttl: float) -> bool:
        if ttl > self.ttl:
            raise ValueError(f"etcd extends a lease by its own ttl of {self.ttl} s, and cannot extend it by {ttl!r} s")
        return self._gateway.keep_alive([lease.token], max(lease.remaining(), MIN_ANSWER_TIMEOUT)) == [True]

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        return self._revoke(lease.token, self.ttl)


class _PlaceLost(Exception):
    """The etcd lease of a waiter has ended, so the waiter has lost its place in the queue."""


class QueueKey(NamedTuple):
    """A key in the queue, and the revision at which it was created."""

    key: str
    created: int


class QueueTail(NamedTuple):
    """The last two keys of a queue at a revision of etcd, the last key first."""

    keys: list[QueueKey]
    revision: int

    @property
    def ahead(self) -> str | None:
        """The second-to-last key, or None. The client of the last key waits until this key is deleted."""
        return self.keys[1].key if len(self.keys) > 1 else None


def _queue_tail(found: dict[str, Any], answer: dict[str, Any]) -> QueueTail:
    keys = [QueueKey(key["key"], int(key["create_revision"])) for key in found.get("kvs", ())]
    return QueueTail(keys, int(answer["header"]["revision"]))


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()
