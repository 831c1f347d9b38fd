"""EtcdGateway: requests to etcd through its gRPC gateway (JSON over HTTP), each within a time limit."""

from __future__ import annotations

import copy
import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import requests
import urllib3

from locking.errors import LockUnavailable
from locking.etcd.watch import DeletionWatch

if TYPE_CHECKING:
    from etcd3gw import Etcd3Client

NOT_FOUND = 5
"""gRPC status of the answer to a request about an etcd lease that does not exist."""


class EtcdGateway:
    """Sends the requests of one lock to etcd.

    Args:
        client: supplies the address and the session settings.
        lock: name of the lock, for messages.
    """

    def __init__(self, client: Etcd3Client, lock: str) -> None:
        self._client = client
        self._lock = lock

    def ask(self, path: str, message: dict[str, Any], seconds: float) -> Any:
        """Send one request and return the answer, or None if the request names an etcd lease that does not exist.

        Args:
            path: path of the API call, such as `kv/range`.
            message: the request, as JSON.
            seconds: time limit for connecting, and again for the answer.

        Raises:
            LockUnavailable: no connection, no answer, or an error as the answer.
        """
        response = self._post(path, json.dumps(message), seconds)
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
        """Extend etcd leases in one round trip, and return for each lease whether it still existed."""
        response = self._post(
            "lease/keepalive", "\n".join(json.dumps({"ID": lease_number(token)}) for token in tokens), seconds
        )
        try:
            alive = [int(json.loads(line)["result"].get("TTL", 0)) > 0 for line in response.text.splitlines()]
        except (ValueError, KeyError) as error:
            raise self._unavailable(response.text) from error
        if len(alive) != len(tokens):
            raise self._unavailable(response.text or response.reason)
        return alive

    @contextmanager
    def deletions(self, key: str, revision: int, seconds: float) -> Iterator[DeletionWatch]:
        """Yield a watch that reports a deletion of `key` at or after `revision`.

        The end of the `with` block closes the connection of the watch.

        Raises:
            LockUnavailable: no connection within `seconds`.
        """
        session = session_of(self._client)
        watch = {"create_request": {"key": key, "start_revision": str(revision), "filters": ["NOPUT"]}}
        request = session.prepare_request(requests.Request("POST", self._url("watch"), data=json.dumps(watch)))
        adapter = cast(requests.adapters.HTTPAdapter, session.get_adapter(self._url("watch")))
        # Use the same settings as other requests, but no proxy: a proxy may hold back an answer that arrives in parts.
        settings = session.merge_environment_settings(self._url("watch"), {}, None, None, None)
        pool = adapter.get_connection_with_tls_context(request, verify=settings["verify"], cert=settings["cert"])
        # Use a connection outside of the pool: pooled connections read through a buffer, which fails after a timeout.
        connection: Any = pool._new_conn()
        connection.timeout = seconds
        try:
            try:
                connection.request("POST", request.path_url, body=request.body, headers=request.headers)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise self._unavailable(error) from error
            yield DeletionWatch(connection.sock, self._unavailable)
        finally:
            if connection.sock is not None:
                with suppress(OSError):
                    # ends the stream even if a forked child has a copy of the socket
                    connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _post(self, path: str, data: str, seconds: float) -> requests.Response:
        try:
            return session_of(self._client).post(self._url(path), data=data, timeout=seconds)
        except requests.RequestException as error:
            raise self._unavailable(error) from error

    def _url(self, path: str) -> str:
        # The client's own `api_path` would ask the server for its version, without a time limit.
        return f"{self._client.base_url}{self._client._api_path or '/v3/'}{path}"

    def _unavailable(self, reason: object) -> LockUnavailable:
        return LockUnavailable(
            f"etcd did not answer a request for lock {self._lock!r} as expected ({reason}). Try again. If that does "
            f"not help, check that {self._client.base_url} is etcd 3.4 or later, is running, and has a leader."
        )


_sessions: WeakKeyDictionary[Etcd3Client, requests.Session] = WeakKeyDictionary()
"""HTTP session per client in this process. A forked child starts without sessions: on a shared connection, parent and
child would read each other's answers."""

os.register_at_fork(after_in_child=_sessions.clear)


def session_of(client: Etcd3Client) -> requests.Session:
    """Return this process's copy of the client's session: the same settings, and connections of its own."""
    session = _sessions.get(client)
    return _sessions.setdefault(client, copy.deepcopy(client.session)) if session is None else session


def lease_number(token: str) -> str:
    """Return the id of an etcd lease as decimal text, which JSON needs for 64-bit numbers."""
    return str(int(token, 16))
