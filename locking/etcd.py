"""EtcdLock: a lock on etcd. Who wants it stands in a line of keys, and the key that was created first holds it.

Everybody in the line has a key of his own, lock/<name>/<id>, bound to an etcd lease of his own, so that it goes away
with him. The revision at which etcd created the key is his place in the line and, once he holds the lock, his fence.
A waiter sleeps until the key right before his is deleted, which wakes him alone, and then looks again: whoever stood
there may have left without ever holding the lock. He asks to hear of deletions from the revision after the one that he
has seen, so none can slip in between the look and the watch.

Source: https://github.com/etcd-io/etcd/blob/main/client/v3/concurrency/mutex.go
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import secrets
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote
from weakref import WeakKeyDictionary

import requests
import urllib3

from locking._ids import owner_label
from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.renewal import RENEWALS_PER_TTL, watchdog

if TYPE_CHECKING:
    from etcd3gw import Etcd3Client

logger = logging.getLogger(__name__)

SHORTEST_PATIENCE = 1.0
"""Seconds. A server may take so long to answer although the caller's timeout, which is for the lock, is shorter."""

LONGEST_WAIT = 1e6
"""Seconds at a time: a socket counts milliseconds in an integer of limited size."""

NOT_FOUND = 5
"""What gRPC calls the error of a lease that does not exist (any more)."""


class EtcdLock(Lock):
    """A lock on an etcd server or cluster, from etcd 3.4 on, first come, first served.

    etcd keeps each place in the line for a quarter longer than the TTL, and a second at least, so that a waiter needs
    one command a TTL to keep his. That long it takes until the place of a crashed holder or waiter is free.

    To take the lock from its holder revoke his etcd lease; deleting his key alone lets others in before he is told.

    A grant and its release are three requests, each of which etcd writes to disk. Each waiter has a connection of his
    own for his watch. Of threads that ask at once those beyond the `pool_maxsize` of the client's session, 10 by
    default, connect anew for each request.

    Args:
        client: an `etcd3gw.Etcd3Client`. Its session is copied for each process, with all its settings; the client's
            own timeout is not used, every request has a time limit of its own.
        name: what is locked.
        ttl: whole seconds after which a grant that nobody extends is over.
        renew: let the watchdog of the process extend the lease every third of the TTL while it is held.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: monotonic seconds; for tests.

    Raises:
        ValueError: the name is empty, or `ttl` is not a whole number of seconds from 1 on.
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
        super().__init__(name, ttl=ttl)
        if ttl % 1 != 0:
            raise ValueError(f"the ttl of an etcd lock must be a whole number of seconds from 1 on, not {ttl!r}")
        self._wire = Wire(client, name)
        self._on_lost = on_lost
        self._clock = clock
        self._renewer = EtcdRenewer(client) if renew else None
        # Without a slash in it: the line of "a" must not hold the keys of "a/b".
        self._line = f"lock/{quote(name, safe=':')}/"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`. A server that does not answer is waited for a second, however short `timeout` is.

        Raises:
            ValueError: `timeout` is negative or does not go with `blocking`, or etcd keeps every lease for longer than
                this lock's TTL allows.
        """
        waits = wait_timeout(blocking, timeout)
        deadline = self._clock() + waits
        if not waits and self._look(self._limit(deadline)).keys:
            return None  # seen without writing anything
        while True:
            token = f"{secrets.randbits(62) + 1:016x}"
            lease = None
            try:
                lease = self._contend(token, deadline, alone=not waits)
                return lease
            except _PlaceLost:
                logger.warning("A waiter of lock %r was paused for too long and lines up again.", self.name)
            finally:
                if lease is None:
                    with suppress(LockUnavailable):  # without a server the place ends by itself
                        self._revoke(token, SHORTEST_PATIENCE)

    def _contend(self, token: str, deadline: float, *, alone: bool) -> Lease | None:
        """Stand in the line until it is our turn, and return the lease, or None when the time is over before.

        Args:
            token: the id of the etcd lease, by which it can be revoked even if etcd's answer is lost.
            deadline: when to give up, on the lock's clock.
            alone: line up only if nobody else is there.

        Raises:
            _PlaceLost: etcd has taken us for dead.
        """
        kept = self._clock()
        self._grant(token, self._limit(deadline))
        line = self._line_up(token, self._limit(deadline), alone=alone)
        if line is None:
            return None
        fence = line.keys[0].created
        while line.ahead is not None:
            with self._wire.deletions(line.ahead, line.revision + 1, self._limit(deadline)) as deletions:
                while not deletions.wait(min(deadline, kept + self.ttl) - self._clock()):
                    if self._clock() >= deadline:
                        return None
                    kept = self._keep(token, deadline)
            line = self._look(self._limit(deadline), until=fence)
            if not line.keys or line.keys[0].created != fence:
                raise _PlaceLost
        if self._clock() - kept > self.ttl / RENEWALS_PER_TTL:
            kept = self._keep(token, deadline)
        lease = Lease(self, token, started=kept, ttl=self.ttl, fence=fence, on_lost=self._on_lost, clock=self._clock)
        if self._renewer is not None or self._on_lost is not None:
            watchdog.watch(lease, self._renewer)
        return lease

    def _limit(self, deadline: float) -> float:
        """Return for how many seconds etcd may owe us an answer: one that comes after the TTL is worth nothing."""
        return min(self.ttl, max(deadline - self._clock(), SHORTEST_PATIENCE))

    def _grant(self, token: str, seconds: float) -> None:
        """Make the etcd lease."""
        wanted = self.ttl + max(1, math.ceil(self.ttl / 4))
        answer = self._wire.ask("lease/grant", {"ID": number_of(token), "TTL": str(int(wanted))}, seconds)
        if int(answer["TTL"]) > wanted:
            raise ValueError(
                f"the ttl of lock {self.name!r} is too short for this etcd, which keeps every lease for "
                f"{answer['TTL']} s at least: make it as long, or lower etcd's election timeout"
            )

    def _line_up(self, token: str, seconds: float, *, alone: bool) -> _Line | None:
        """Put our key at the end of the line and return the line at that revision, or None if we had to be alone."""
        key = _base64(self._line + token)
        guard = self._range() if alone else {"key": key}
        answer = self._wire.ask(
            "kv/txn",
            {
                "compare": [{**guard, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
                "success": [
                    {"request_put": {"key": key, "value": _base64(owner_label()), "lease": number_of(token)}},
                    {"request_range": self._last_two()},
                ],
            },
            seconds,
        )
        if answer is None:  # the etcd lease is over
            raise _PlaceLost
        return _line(answer["responses"][1]["response_range"], answer) if answer.get("succeeded") else None

    def _look(self, seconds: float, *, until: int | None = None) -> _Line:
        """Return the end of the line as it is now, or of the part of it that ends with the key created at `until`."""
        upto = {} if until is None else {"max_create_revision": str(until)}
        answer = self._wire.ask("kv/range", {**self._last_two(), **upto}, seconds)
        return _line(answer, answer)

    def _range(self) -> dict[str, str]:
        return {"key": _base64(self._line), "range_end": _base64(self._line[:-1] + chr(ord("/") + 1))}

    def _last_two(self) -> dict[str, object]:
        order = {"sort_target": "CREATE", "sort_order": "DESCEND"}
        return {**self._range(), **order, "limit": "2", "keys_only": True}

    def _keep(self, token: str, deadline: float) -> float:
        """Keep our place for another TTL, and return from when that counts."""
        started = self._clock()
        if self._wire.keep_alive([token], self._limit(deadline)) != [True]:
            raise _PlaceLost
        return started

    def _revoke(self, token: str, seconds: float) -> bool:
        """Give up the place, key and all; return whether it was still there."""
        return bool(self._wire.ask("lease/revoke", {"ID": number_of(token)}, seconds))

    def _extend(self, lease: Lease, ttl: float) -> bool:
        if ttl > self.ttl:
            raise ValueError(f"etcd extends a lease by its own ttl only, {self.ttl} s, and never by {ttl!r} s")
        return self._wire.keep_alive([lease.token], max(lease.remaining(), SHORTEST_PATIENCE)) == [True]

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        return self._revoke(lease.token, self.ttl)


class EtcdRenewer:
    """Extends all leases on the server of one client. See `locking.renewal.Renewer`."""

    def __init__(self, client: Etcd3Client) -> None:
        self._client = client

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EtcdRenewer) and other._client is self._client

    def __hash__(self) -> int:
        return hash((EtcdRenewer, id(self._client)))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """See `Renewer.renew`."""
        try:
            # Half the time to connect, half for the answers.
            return Wire(self._client, leases[0].name).keep_alive([lease.token for lease in leases], seconds / 2)
        except LockUnavailable as error:
            logger.warning("%d leases were not renewed (%s); it is tried again.", len(leases), error)
            return [None] * len(leases)

    def close(self) -> None:
        """See `Renewer.close`. The connections are those of the session."""


class Wire:
    """What is said to etcd through its gRPC gateway, each request within a time limit.

    Args:
        client: whose address and session settings are used.
        lock: the name of the lock, for messages.
    """

    def __init__(self, client: Etcd3Client, lock: str) -> None:
        self._client = client
        self._lock = lock

    def ask(self, path: str, question: dict[str, Any], seconds: float) -> Any:
        """Ask once and return the answer, or None when the lease that it is about does not exist.

        Args:
            path: which call of the API.
            question: its message.
            seconds: how long to wait for the connection, and then for the answer.

        Raises:
            LockUnavailable: no connection, no answer, or an error for an answer.
        """
        response = self._post(path, json.dumps(question), seconds)
        try:
            answer = response.json()
        except requests.JSONDecodeError as error:
            raise self._unavailable(response.text or response.reason) from error
        if response.ok:
            return answer
        if answer.get("code") == NOT_FOUND:
            return None
        raise self._unavailable(answer.get("error", response.text))

    def keep_alive(self, tokens: Sequence[str], seconds: float) -> list[bool]:
        """Extend etcd leases in one round trip, and return of each whether it was still there."""
        response = self._post(
            "lease/keepalive", "\n".join(json.dumps({"ID": number_of(token)}) for token in tokens), seconds
        )
        try:
            alive = [int(json.loads(line)["result"].get("TTL", 0)) > 0 for line in response.text.splitlines()]
        except (ValueError, KeyError) as error:
            raise self._unavailable(response.text) from error
        if len(alive) != len(tokens):
            raise self._unavailable(response.text or response.reason)
        return alive

    @contextmanager
    def deletions(self, key: str, revision: int, seconds: float) -> Iterator[Deletions]:
        """Listen for the deletion of `key` from `revision` on, over a connection of its own, closed at the end.

        Raises:
            LockUnavailable: no connection within `seconds`.
        """
        session = _session(self._client)
        watch = {"create_request": {"key": key, "start_revision": str(revision), "filters": ["NOPUT"]}}
        request = session.prepare_request(requests.Request("POST", self._url("watch"), data=json.dumps(watch)))
        adapter = cast(requests.adapters.HTTPAdapter, session.get_adapter(self._url("watch")))
        # As for any other request; but a proxy is passed by, it need not let through an answer that comes bit by bit.
        settings = session.merge_environment_settings(self._url("watch"), {}, None, None, None)
        pool = adapter.get_connection_with_tls_context(request, verify=settings["verify"], cert=settings["cert"])
        # One that the pool has made to its settings and never sees again. Of a pooled one we would get the answer
        # through a buffer, and a buffered reader cannot go on after a timeout.
        connection: Any = pool._new_conn()
        connection.timeout = seconds
        try:
            try:
                connection.request("POST", request.path_url, body=request.body, headers=request.headers)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise self._unavailable(error) from error
            yield Deletions(connection.sock, self._unavailable)
        finally:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)  # closes it although a forked child has a copy
            connection.close()

    def _post(self, path: str, data: str, seconds: float) -> requests.Response:
        try:
            return _session(self._client).post(self._url(path), data=data, timeout=seconds)
        except requests.RequestException as error:
            raise self._unavailable(error) from error

    def _url(self, path: str) -> str:
        # The client's own `api_path` would ask the server for its version, without a time limit.
        return f"{self._client.base_url}{self._client._api_path or '/v3/'}{path}"

    def _unavailable(self, reason: object) -> LockUnavailable:
        return LockUnavailable(
            f"etcd did not answer for lock {self._lock!r} as it should ({reason}). Try again; if that does not help, "
            f"see whether {self._client.base_url} is an etcd from 3.4 on, runs, and has a leader."
        )


class Deletions:
    """A stream of which only one thing matters: whether a deletion has come. Nothing else of it is read.

    Args:
        sock: where it comes in, from the head of the answer on.
        unavailable: makes the error of a stream that ends.
    """

    def __init__(self, sock: socket.socket, unavailable: Callable[[object], LockUnavailable]) -> None:
        self._sock = sock
        self._unavailable = unavailable
        self._heard = b""

    def wait(self, seconds: float) -> bool:
        """Sleep for so many seconds at most, and return whether there was, or may have been, a deletion.

        Raises:
            LockUnavailable: the stream was cut or is an error.
        """
        until = time.monotonic() + seconds
        # Compacted: etcd has forgotten what happened at that revision.
        while b'"events"' not in self._heard and b'"compact_revision"' not in self._heard:
            try:
                self._sock.settimeout(min(max(until - time.monotonic(), 0.001), LONGEST_WAIT))
                data = self._sock.recv(65536)
            except TimeoutError:
                return False
            except OSError as error:
                raise self._unavailable(error) from error
            self._heard += data
            if not data or b'"error"' in self._heard:
                raise self._unavailable(f"the wait was cut: {self._heard[-200:]!r}")
        return True


class _PlaceLost(Exception):
    """Our etcd lease is gone, and our place in the line with it."""


class _Key(NamedTuple):
    key: str
    created: int


class _Line(NamedTuple):
    """The last two of a line of keys, the last one first, as they were at a revision."""

    keys: list[_Key]
    revision: int

    @property
    def ahead(self) -> str | None:
        """Who stands right before the last one."""
        return self.keys[1].key if len(self.keys) > 1 else None


def _line(found: dict[str, Any], answer: dict[str, Any]) -> _Line:
    keys = [_Key(key["key"], int(key["create_revision"])) for key in found.get("kvs", ())]
    return _Line(keys, int(answer["header"]["revision"]))


_sessions: WeakKeyDictionary[Etcd3Client, requests.Session] = WeakKeyDictionary()
"""The session of each client for this process: a connection that parent and child both use mixes up their answers."""

os.register_at_fork(after_in_child=_sessions.clear)


def _session(client: Etcd3Client) -> requests.Session:
    """Return the copy of the client's session for this process: its settings, and connections of its own."""
    session = _sessions.get(client)
    return _sessions.setdefault(client, copy.deepcopy(client.session)) if session is None else session


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def number_of(token: str) -> str:
    """Return the number of the etcd lease, in the decimal text that JSON needs for its 64 bits."""
    return str(int(token, 16))
