"""Clients whose lock is on ZooKeeper. Each has a session, and each request of the session is a step.

No session expires here when time passes. In production, a separate thread keeps a session alive unless its process is
paused. So only the TTLs of the leases pass.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, SessionMovedError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.recipe.lock import Lock as KazooRecipe

from lab.checkers.counter import SOLD, STOCK
from lab.explorer.actor import current_actor, stop_before
from lab.explorer.history import History
from lab.explorer.terms import Job, PendingStep
from lab.ladder.catalogue import LadderEntry
from lab.sandbox import hooks
from lab.sandbox.clock import TTL
from lab.sandbox.fleet import Missing
from lab.sandbox.quorums import Quorum, RunningServer
from lab.sandbox.sandbox import Sandbox
from lab.workloads.counter import sell
from lab.workloads.lock_server import QUEUE, RESPONSE_TIMEOUT, LockServerWorkload
from servers import zookeeper
from servers.zookeeper import ZooKeeper

RETRY_DELAY = 0.02
"""Seconds between two attempts to use a lost connection."""
LONGEST_WAIT = 1e6
"""A wait of more than this number of seconds counts as infinite."""


class ZooKeeperWorkload(LockServerWorkload):
    """Clients of a lock on ZooKeeper. Each has its own session and stops before each request."""

    def prepare(self) -> Mapping[str, Job]:
        if not zookeeper.available():
            raise Missing(f"ZooKeeper is not installed: {zookeeper.INSTALL}")
        hosts = self.hosts()
        self.sessions: _Sessions = self.sandbox.resource(f"sessions with {hosts}", lambda: _Sessions(hosts))
        for name in self.names:
            self.sessions.of(name)
        return super().prepare()

    def hosts(self) -> str:
        """Return the addresses of the servers."""
        hosts: str = self.sandbox.resource(
            "zookeeper", lambda: RunningServer(lambda run: ZooKeeper(run / "zookeeper"))
        ).server.hosts
        return hosts

    def run_client(self, name: str, client: Any) -> str:
        session = self.sessions.of(name)
        if self.entry.code is not KazooRecipe:
            return sell(client, self.entry.code(session, self.lock, clock=self.sandbox.clock), self.inside(name))
        with KazooRecipe(session, f"/kazoo/{self.lock}"), self.inside(name):
            client.set(STOCK, int(client.get(STOCK)) - 1)
        return SOLD

    def end_session(self, name: str) -> None:
        self.sessions.end(name)


class ZooKeeperQuorumWorkload(ZooKeeperWorkload):
    """The clients of `ZooKeeperWorkload`, on three servers. When a server is lost, its sessions move to another server.

    Args:
        group: the servers.
    """

    def __init__(
        self, entry: LadderEntry, sandbox: Sandbox, names: Sequence[str], history: History, group: Quorum
    ) -> None:
        super().__init__(entry, sandbox, names, history)
        self.group = group

    def prepare(self) -> Mapping[str, Job]:
        jobs = super().prepare()
        self.sessions.reconnect()
        self.group.after_failover = self.sessions.reconnect
        return jobs

    def clean_up(self) -> None:
        self.group.end()
        super().clean_up()

    def hosts(self) -> str:
        self.group.begin()
        return ",".join(member.hosts for member in self.group.servers.members)


class _Sessions:
    """The clients' sessions, which are reused from one run to the next."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._open: dict[str, StoppingClient] = {}

    def of(self, name: str) -> StoppingClient:
        if name not in self._open:
            self._open[name] = client = StoppingClient(self._hosts)
            client.start(RESPONSE_TIMEOUT)
        return self._open[name]

    def end(self, name: str) -> None:
        client = self._open.pop(name)
        client.stop()
        client.close()

    def reconnect(self) -> None:
        """Wait until all sessions are connected to a working server."""
        for client in self._open.values():
            client.reconnect()

    def close(self) -> None:
        for name in list(self._open):
            self.end(name)


class StoppingClient(KazooClient):  # type: ignore[misc, unused-ignore]
    """A kazoo client that stops the calling actor before each of its requests. Pings are not steps."""

    def __init__(self, hosts: str) -> None:
        handler = _Handler()
        handler.client = self
        super().__init__(hosts, timeout=TTL, handler=handler)

    def _call(self, request: Any, async_object: Any) -> Any:
        actor = current_actor()
        if actor is not None and actor.crashed:
            # kazoo does not retry after this error: the cleanup of a crashed client must not reach the server.
            async_object.set_exception(SessionMovedError())
            return None
        stop_before(of_request(request))
        return super()._call(request, async_object)

    def reconnect(self) -> None:
        """Wait until the session is connected to a working server."""
        until = time.monotonic() + RESPONSE_TIMEOUT
        while True:
            try:
                self.catch_up()
                return
            except ConnectionLoss:
                if time.monotonic() > until:
                    raise
                time.sleep(RETRY_DELAY)

    def catch_up(self) -> None:
        """Wait until the session has received every event that the server has sent so far.

        The server sends a session its events before it answers the session's next request.
        """
        self.exists("/")
        received = threading.Event()
        self.handler.callback_queue.put(received.set)
        if not received.wait(RESPONSE_TIMEOUT):
            raise RuntimeError("A session with ZooKeeper does not receive its events.")


class _Handler(SequentialThreadingHandler):  # type: ignore[misc, unused-ignore]
    """Makes kazoo's threads and events. An actor that waits for one of these events uses the schedule's clock."""

    client: StoppingClient

    def event_object(self) -> threading.Event:
        return threading.Event() if current_actor() is None else _Watch(self.client)


class _Watch(hooks.Notification, threading.Event):
    """An event that is set by a watch on the server. An actor waits for it on the schedule's clock."""

    def __init__(self, client: StoppingClient) -> None:
        super().__init__()
        self._client = client

    def wait(self, timeout: float | None = None) -> bool:
        actor = current_actor()
        if actor is None or self.is_set():
            return super().wait(timeout)
        endless = timeout is None or timeout > LONGEST_WAIT
        return actor.listen(self, math.inf if endless else actor.clock() + cast("float", timeout))

    def arrived(self) -> bool:
        self._client.catch_up()
        return self.is_set()


REQUESTS = {
    "Create": "create: joins the queue",
    "Create2": "create2: joins the queue",
    "CreateContainer": "create: makes the queue",
    "GetChildren": "getChildren: reads the queue",
    "GetData": "getData: watches its predecessor, if there is one",
    "Delete": "delete: leaves the queue",
    "Sync": "sync: lets the server catch up with its leader",
}
"""Texts of the steps, by the kind of request."""

READS = ("Exists", "GetChildren", "GetChildren2", "GetData")
"""Kinds of request that change no data. Other requests count as writes. A search tries only one order of two reads."""


def of_request(request: Any) -> PendingStep:
    """Return the step for a request to ZooKeeper."""
    kind, queue = type(request).__name__, frozenset({QUEUE})
    if kind == "Sync":
        return PendingStep(REQUESTS[kind], "zookeeper")
    if kind in READS:
        watches = kind == "Exists" and request.watcher is not None
        does = "exists: watches its predecessor" if watches else REQUESTS.get(kind, f"{kind.lower()}: reads")
        return PendingStep(does, "zookeeper", reads=queue)
    return PendingStep(REQUESTS.get(kind, kind.lower()), "zookeeper", writes=queue)
