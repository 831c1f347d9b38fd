"""ZooKeeperSession: the timeout and the end of a kazoo client's session, for all locks of that client."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState

from locking.errors import LockUnavailable
from locking.zookeeper.protocol import negotiated_timeout

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.protocol.states import WatchedEvent


class ZooKeeperSession:
    """The session of a kazoo client. Get it with `ZooKeeperSession.of`.

    Attributes:
        timeout: seconds without a sign of life after which the server ends the session.
        number: how many sessions of this client have ended.
    """

    def __init__(self, client: KazooClient, seconds: float) -> None:
        self.timeout = negotiated_timeout(client, seconds)
        self.number = 0
        self._pid = os.getpid()
        self._waiting: dict[Any, str] = {}
        client.add_listener(self._state_changed)

    @classmethod
    def of(cls, client: KazooClient, lock: str, seconds: float) -> ZooKeeperSession:
        """Return the session of a client. The first call asks the server for the session timeout.

        Args:
            client: a started client.
            lock: name of the lock, for messages.
            seconds: time limit for the answer.

        Raises:
            LockUnavailable: the client is not connected, the server did not answer in time, or the client belongs to
                the parent of a forked process.
        """
        session = _sessions.get(client)
        try:
            if session is None:
                session = cls._create_once(client, seconds)
        except (OSError, KazooException, client.handler.timeout_exception, AttributeError) as error:
            raise LockUnavailable(
                f"ZooKeeper cannot be reached for lock {lock!r} ({error}). Start the client, check that the server is "
                "running, and try again."
            ) from error
        if session._pid != os.getpid():
            raise LockUnavailable(
                f"The client of lock {lock!r} belongs to the parent process. Create a client in this process."
            )
        return session

    @classmethod
    def _create_once(cls, client: KazooClient, seconds: float) -> ZooKeeperSession:
        """Create the session of a client in one thread. Other threads wait for it, each within its own time limit."""
        deadline = time.monotonic() + seconds
        creating = _creating.setdefault(client, threading.Lock())
        if not creating.acquire(timeout=seconds):
            raise TimeoutError("another thread is still waiting for the server's first answer")
        try:
            session = _sessions.get(client)
            if session is None:
                session = _sessions[client] = cls(client, deadline - time.monotonic())
            return session
        finally:
            creating.release()

    @contextmanager
    def notifying(self, event: Any, path: str) -> Iterator[None]:
        """Inside the `with` block, set `event` when something happens to the node at `path`, or to the session."""
        self._waiting[event] = path
        try:
            yield
        finally:
            del self._waiting[event]

    def notify(self, watched: WatchedEvent) -> None:
        """Wake the waiters of a node. kazoo calls this whenever a watch reports a change.

        All waiters set their watches with this one function. kazoo then keeps one watch per node, not one per attempt.
        """
        for event, path in list(self._waiting.items()):
            if watched.path in (path, None):
                event.set()

    def _state_changed(self, state: KazooState) -> None:
        if state == KazooState.LOST:
            self.number += 1


_sessions: weakref.WeakKeyDictionary[KazooClient, ZooKeeperSession] = weakref.WeakKeyDictionary()
_creating: weakref.WeakKeyDictionary[KazooClient, threading.Lock] = weakref.WeakKeyDictionary()
"""Lock per client, held while its session is created."""

# In a forked child, drop the locks: if a thread of the parent held a lock, it would stay locked.
os.register_at_fork(after_in_child=_creating.clear)
