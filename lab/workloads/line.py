"""Clients who stand in a line on a server: ZooKeeper, or etcd.

A client's session ends with his crash at once; on the servers it would take the session's timeout.
"""

from __future__ import annotations

import atexit
import math
import shutil
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, cast

from etcd3gw import Etcd3Client
from kazoo.client import KazooClient
from kazoo.exceptions import SessionMovedError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.recipe.lock import Lock as KazooRecipe

from lab.explorer.actor import Actor, become, current_actor, stop_before
from lab.explorer.terms import Fault, PendingStep
from lab.sandbox import hooks
from lab.sandbox.stand_ins import StandIns
from lab.sandbox.valkeys import Missing
from lab.workloads.base import TTL
from lab.workloads.counter import SOLD, STOCK, sell
from lab.workloads.lock import LockTrial
from locking import LockUnavailable, etcd
from locking.etcd import Deletions, EtcdLock, Wire, number_of
from locking.zookeeper import CreateContainer
from servers import zookeeper
from servers.etcd import Etcd
from servers.folder import RunFolder
from servers.zookeeper import ZooKeeper

PATIENCE = 10.0
"""Seconds that a server has for what takes it some milliseconds."""
LONGEST_WAIT = 1e6
"""Seconds. Who would wake by himself after that sleeps for ever."""
LINE = "line"
"""What the steps touch."""

_numbers = count(1)


class LineTrial(LockTrial):
    """Each schedule has a line of its own."""

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        self.lock = f"stock {next(_numbers)}"
        self.stage.waits_in_this_process = False
        return super().prepare()

    def end(self) -> None:
        super().end()
        self.stage.waits_in_this_process = True

    def offers(self, event: Fault, who: str = "") -> bool:
        """See `Trial.offers`."""
        if event == "late release":
            return not self.inside
        return bool(self.inside) if event == "expiry" else super().offers(event, who)

    def _job(self, name: str) -> Callable[[], str]:
        def job() -> str:
            try:
                return self.line_up(name, self.stage.sit(name).redis)
            finally:
                if cast("Actor", current_actor()).crashed:
                    self.bury(name)

        return job

    @abstractmethod
    def line_up(self, name: str, client: Any) -> str:
        """What one client does, and what he is told."""

    @abstractmethod
    def bury(self, name: str) -> None:
        """In the thread of somebody who is dead: end his session."""


class _Running:
    """A server in a folder of its own."""

    def __init__(self, kind: type[ZooKeeper] | type[Etcd]) -> None:
        self._outer = Path(tempfile.mkdtemp(prefix="lu-lab-"))
        self._outer.chmod(0o755)
        folder = RunFolder(self._outer / "run")
        folder.create()
        self.server: Any = kind(folder.path / kind.__name__.lower())
        self.server.start()
        atexit.register(self.close)

    def close(self) -> None:
        atexit.unregister(self.close)
        self.server.stop()
        shutil.rmtree(self._outer, ignore_errors=True)


# ZooKeeper


class ZooKeeperTrial(LineTrial):
    """Each client has a session, which stops before each request.

    Time ends no session: a thread of its own keeps it alive for as long as the process lives and is not paused, so
    what passes is the time of the leases alone.
    """

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        if not zookeeper.available():
            raise Missing(f"ZooKeeper is not installed: {zookeeper.INSTALL}")
        hosts = self.stage.kept("zookeeper", lambda: _Running(ZooKeeper)).server.hosts
        self.sessions: _Sessions = self.stage.kept("sessions", lambda: _Sessions(hosts))
        for name in self.names:
            self.sessions.of(name)
        return super().prepare()

    def line_up(self, name: str, client: Any) -> str:
        session = self.sessions.of(name)
        if self.entry.code is not KazooRecipe:
            return sell(client, self.entry.code(session, self.lock, clock=self.stage.clock), self.at_work(name))
        with KazooRecipe(session, f"/kazoo/{self.lock}"), self.at_work(name):
            client.set(STOCK, int(client.get(STOCK)) - 1)
        return SOLD

    def bury(self, name: str) -> None:
        self.sessions.end(name)


class _Sessions:
    """The sessions of the clients, kept from one schedule to the next."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._made: dict[str, StoppingClient] = {}

    def of(self, name: str) -> StoppingClient:
        if name not in self._made:
            self._made[name] = client = StoppingClient(self._hosts)
            client.start(PATIENCE)
        return self._made[name]

    def end(self, name: str) -> None:
        client = self._made.pop(name)
        client.stop()
        client.close()

    def close(self) -> None:
        for name in list(self._made):
            self.end(name)


class StoppingClient(KazooClient):  # type: ignore[misc, unused-ignore]
    """kazoo's client, which stops before each request of an actor. Its pings are nobody's steps."""

    def __init__(self, hosts: str) -> None:
        handler = _Handler()
        handler.client = self
        super().__init__(hosts, timeout=TTL, handler=handler)

    def _call(self, request: Any, async_object: Any) -> Any:
        mine = current_actor()
        if mine is not None and mine.crashed:
            # An error that nobody tries again for: what is tidied up on his way out does not go out.
            async_object.set_exception(SessionMovedError())
            return None
        stop_before(of_request(request))
        return super()._call(request, async_object)

    def catches_up(self) -> None:
        """Return when all that the server had to tell this session by now has been heard.

        It tells a session what happened before it answers that session's next question.
        """
        self.exists("/")
        heard = threading.Event()
        self.handler.callback_queue.put(heard.set)
        if not heard.wait(PATIENCE):
            raise RuntimeError("A session with ZooKeeper does not hear.")


class _Handler(SequentialThreadingHandler):  # type: ignore[misc, unused-ignore]
    """kazoo's threads, and the events that an actor waits for."""

    client: StoppingClient

    def event_object(self) -> threading.Event:
        return threading.Event() if current_actor() is None else _Watch(self.client)


class _Watch(hooks.Bell, threading.Event):
    """An event that an actor waits for on the schedule's clock, and a watch of the server sets."""

    def __init__(self, client: StoppingClient) -> None:
        super().__init__()
        self._client = client

    def wait(self, timeout: float | None = None) -> bool:
        mine = current_actor()
        if mine is None or self.is_set():
            return super().wait(timeout)
        for_ever = timeout is None or timeout > LONGEST_WAIT
        return mine.listen(self, math.inf if for_ever else mine.clock() + cast("float", timeout))

    def rang(self) -> bool:
        self._client.catches_up()
        return self.is_set()


REQUESTS = {
    "Create": "create: stands in line",
    "CreateContainer": "create: makes the line",
    "GetChildren": "getChildren: looks who is in line",
    "GetData": "getData: watches the one before, if he is there",
    "Delete": "delete: leaves the line",
    "Sync": "sync: lets the server catch up with its leader",
}


def of_request(request: Any) -> PendingStep:
    """What a request to ZooKeeper does."""
    kind = type(request).__name__
    watches = getattr(request, "watcher", None) is not None
    does = REQUESTS.get(kind) or ("exists: watches the one before" if watches else f"{kind.lower()}: looks")
    touched = frozenset[str]() if kind == "Sync" else frozenset({LINE})
    if kind in ("Create", "Delete") or isinstance(request, CreateContainer):
        return PendingStep(does, "zookeeper", writes=touched)
    return PendingStep(does, "zookeeper", reads=touched)


# etcd


class EtcdTrial(LineTrial):
    """Each client stops before each request, and listens for the deletion of the key before his own."""

    ticks = 4
    """Etcd keeps a lease for a quarter longer than the lock's TTL."""

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        server = self.stage.kept("etcd", lambda: _Running(Etcd)).server
        self.client = Etcd3Client(server.host, server.port)
        _granted.clear()
        self.stage.passes_elsewhere = self._passes
        IN_THE_MODULE.enter(self)
        return super().prepare()

    def end(self) -> None:
        self.stage.passes_elsewhere = None
        IN_THE_MODULE.leave(self)
        super().end()

    def _passes(self, seconds: float) -> None:
        """The server's own clock cannot be set, so a lease of etcd's ends by our hand when it would by its time."""
        self._revoke([lease for lease, grant in _granted.items() if grant.ends <= self.stage.clock()])

    def line_up(self, name: str, client: Any) -> str:
        lock = EtcdLock(self.client, self.lock, ttl=TTL, clock=self.stage.clock)
        return sell(client, lock, self.at_work(name))

    def bury(self, name: str) -> None:
        mine = cast("Actor", current_actor())
        become(None)
        try:
            self._revoke([lease for lease, grant in _granted.items() if grant.owner is mine])
        finally:
            become(mine)

    def _revoke(self, leases: Sequence[str]) -> None:
        for lease in leases:
            del _granted[lease]
            with suppress(LockUnavailable):
                Wire(self.client, self.lock).ask("lease/revoke", {"ID": lease}, PATIENCE)


@dataclass
class _Grant:
    """A lease of etcd's: whose, for how many seconds, and until when on the schedule's clock."""

    owner: Actor
    seconds: float
    ends: float


_granted: dict[str, _Grant] = {}
"""The etcd leases that actors have asked for, by their numbers. No visitor plays here, so there is one trial."""


class StoppingWire(Wire):
    """What is said to etcd, a step each."""

    def ask(self, path: str, question: dict[str, Any], seconds: float) -> Any:
        mine = current_actor()
        touched = frozenset({LINE})
        reads = path == "kv/range"
        stop_before(
            PendingStep(
                QUESTIONS.get(path, path), "etcd", touched if reads else frozenset(), frozenset() if reads else touched
            )
        )
        if mine is not None and path == "lease/grant":
            seconds_kept = int(question["TTL"])
            _granted[question["ID"]] = _Grant(mine, seconds_kept, mine.clock() + seconds_kept)
        return super().ask(path, question, seconds)

    def keep_alive(self, tokens: Sequence[str], seconds: float) -> list[bool]:
        stop_before(PendingStep("lease keepalive: renews", "etcd", writes=frozenset({LINE})))
        alive = super().keep_alive(tokens, seconds)
        for token, is_there in zip(tokens, alive, strict=True):
            if is_there and (grant := _granted.get(number_of(token))) is not None:
                grant.ends = grant.owner.clock() + grant.seconds
        return alive

    @contextmanager
    def deletions(self, key: str, revision: int, seconds: float) -> Iterator[Deletions]:
        stop_before(PendingStep("watch: listens for the deletion of the key before", "etcd", reads=frozenset({LINE})))
        with super().deletions(key, revision, seconds) as heard:
            yield cast("Deletions", _Listening(heard, self, key))

    def is_gone(self, key: str) -> bool:
        """Whether a key has been deleted, as the server sees it."""
        return int(super().ask("kv/range", {"key": key, "count_only": True}, PATIENCE).get("count", 0)) == 0


QUESTIONS = {
    "lease/grant": "lease grant: asks for a lease of etcd's",
    "lease/revoke": "lease revoke: leaves the line",
    "kv/txn": "txn: stands in line",
    "kv/range": "range: looks who is in line",
}


class _Listening(hooks.Bell):
    """Deletions that an actor waits for on the schedule's clock."""

    def __init__(self, heard: Deletions, wire: StoppingWire, key: str) -> None:
        self._heard = heard
        self._wire = wire
        self._key = key

    def wait(self, seconds: float) -> bool:
        mine = current_actor()
        if mine is None:
            return self._heard.wait(seconds)
        # What the server has done it tells, if somewhat later.
        return mine.listen(self, mine.clock() + seconds) and self._heard.wait(PATIENCE)

    def rang(self) -> bool:
        return self._wire.is_gone(self._key)


IN_THE_MODULE = StandIns((etcd, "Wire", StoppingWire))
