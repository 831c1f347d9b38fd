"""Clients whose lock is on etcd. Each request is a step. A waiter watches for the deletion of the key in front."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from etcd3gw import Etcd3Client

from lab.explorer.actor import Actor, become, current_actor, stop_before
from lab.explorer.history import History
from lab.explorer.terms import Job, PendingStep
from lab.ladder.catalogue import LadderEntry
from lab.sandbox import hooks
from lab.sandbox.clock import TTL
from lab.sandbox.quorums import Quorum, RunningServer
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.stand_ins import StandIns
from lab.workloads.counter import sell
from lab.workloads.lock_server import QUEUE, RESPONSE_TIMEOUT, LockServerWorkload
from locking import LockUnavailable
from locking.etcd import EtcdLock, lock, renewal
from locking.etcd.gateway import EtcdGateway, lease_number
from locking.etcd.watch import DeletionWatch
from servers.etcd import Etcd


class EtcdWorkload(LockServerWorkload):
    """Clients of an `EtcdLock`. Each client stops before each of its requests to the server."""

    def prepare(self) -> Mapping[str, Job]:
        server = self.server()
        self.client = Etcd3Client(server.host, server.port)
        _granted.clear()
        IN_THE_MODULE.enter(self)
        jobs = super().prepare()
        self.sandbox.leases = self.leases = EtcdLeases(self.client, self.lock, self.sandbox.clock)
        return jobs

    def server(self) -> Etcd:
        """Return the server that the clients use."""
        server: Etcd = self.sandbox.resource("etcd", lambda: RunningServer(lambda run: Etcd(run / "etcd"))).server
        return server

    def clean_up(self) -> None:
        self.sandbox.leases = None
        IN_THE_MODULE.leave(self)
        super().clean_up()

    def run_client(self, name: str, client: Any) -> str:
        lock = EtcdLock(self.client, self.lock, ttl=TTL, clock=self.sandbox.clock)
        return sell(client, lock, self.inside(name))

    def end_session(self, name: str) -> None:
        self.leases.revoke_of(cast("Actor", current_actor()))


class EtcdQuorumWorkload(EtcdWorkload):
    """The clients of `EtcdWorkload`, on a cluster of three servers.

    The clients use a follower, so they do not lose their server when the leader is lost.

    Args:
        group: the servers.
    """

    def __init__(
        self, entry: LadderEntry, sandbox: Sandbox, names: Sequence[str], history: History, group: Quorum
    ) -> None:
        super().__init__(entry, sandbox, names, history)
        self.group = group

    def clean_up(self) -> None:
        self.group.end()
        super().clean_up()

    def server(self) -> Etcd:
        self.group.begin()
        server: Etcd = self.group.up_to_date
        return server


@dataclass
class _Grant:
    """A lease on etcd that was granted to an actor.

    Attributes:
        owner: the actor.
        seconds: duration of the lease.
        ends: when the lease ends, on the schedule's clock.
    """

    owner: Actor
    seconds: float
    ends: float


_granted: dict[str, _Grant] = {}
"""The leases of actors, by lease number. Only commands run this workload, one run at a time, so one table is enough."""


class EtcdLeases:
    """Revokes leases when their time is over on the schedule's clock. The server's own clock cannot be set.

    Args:
        client: a client of the server.
        lock: name of the lock, for messages.
        clock: the clock of the schedule.
    """

    def __init__(self, client: Etcd3Client, lock: str, clock: Callable[[], float]) -> None:
        self._gateway = EtcdGateway(client, lock)
        self._clock = clock

    def pass_time(self, seconds: float) -> None:
        """Revoke the leases whose time is over."""
        self._revoke([lease for lease, grant in _granted.items() if grant.ends <= self._clock()])

    def until_expiry(self) -> float | None:
        """Return None: a waiter is woken by a deletion, so no schedule has to let time pass until a lease ends."""
        return None

    def revoke_of(self, actor: Actor) -> None:
        """Revoke the leases of a crashed actor. This is not a step. Called in the actor's thread."""
        become(None)
        try:
            self._revoke([lease for lease, grant in _granted.items() if grant.owner is actor])
        finally:
            become(actor)

    def _revoke(self, leases: Sequence[str]) -> None:
        for lease in leases:
            del _granted[lease]
            with suppress(LockUnavailable):
                self._gateway.ask("lease/revoke", {"ID": lease}, RESPONSE_TIMEOUT)


class StoppingGateway(EtcdGateway):
    """The connection of a lock to etcd. Each request is a step of the calling actor."""

    def ask(self, path: str, question: dict[str, Any], seconds: float) -> Any:
        actor = current_actor()
        queue, nothing = frozenset({QUEUE}), frozenset[str]()
        reads, writes = (queue, nothing) if path == "kv/range" else (nothing, queue)
        stop_before(PendingStep(REQUESTS.get(path, path), "etcd", reads, writes))
        if actor is not None and path == "lease/grant":
            lasts = int(question["TTL"])
            _granted[question["ID"]] = _Grant(actor, lasts, actor.clock() + lasts)
        return super().ask(path, question, seconds)

    def keep_alive(self, tokens: Sequence[str], seconds: float) -> list[bool]:
        stop_before(PendingStep("lease keepalive: renews", "etcd", writes=frozenset({QUEUE})))
        alive = super().keep_alive(tokens, seconds)
        for token, is_there in zip(tokens, alive, strict=True):
            if is_there and (grant := _granted.get(lease_number(token))) is not None:
                grant.ends = grant.owner.clock() + grant.seconds
        return alive

    @contextmanager
    def deletions(self, key: str, revision: int, seconds: float) -> Iterator[DeletionWatch]:
        stop_before(PendingStep("watch: listens for the deletion of the key before", "etcd", reads=frozenset({QUEUE})))
        with super().deletions(key, revision, seconds) as received:
            yield cast("DeletionWatch", _Listening(received, self, key))

    def is_gone(self, key: str) -> bool:
        """Ask the server whether a key has been deleted. This is not a step."""
        request = {"key": key, "count_only": True}
        return int(super().ask("kv/range", request, RESPONSE_TIMEOUT).get("count", 0)) == 0


REQUESTS = {
    "lease/grant": "lease grant: asks for a lease of etcd's",
    "lease/revoke": "lease revoke: leaves the queue",
    "kv/txn": "txn: joins the queue",
    "kv/range": "range: reads the queue",
}
"""Texts of the steps, by the path of the request."""


class _Listening(hooks.Notification):
    """A wait of an actor for the deletion of a key, with a timeout on the schedule's clock."""

    def __init__(self, received: DeletionWatch, gateway: StoppingGateway, key: str) -> None:
        self._received = received
        self._gateway = gateway
        self._key = key

    def wait(self, seconds: float) -> bool:
        actor = current_actor()
        if actor is None:
            return self._received.wait(seconds)
        # The server may report a deletion late. Once the key is gone, wait for that report.
        return actor.listen(self, actor.clock() + seconds) and self._received.wait(RESPONSE_TIMEOUT)

    def arrived(self) -> bool:
        return self._gateway.is_gone(self._key)


IN_THE_MODULE = StandIns((lock, "EtcdGateway", StoppingGateway), (renewal, "EtcdGateway", StoppingGateway))
