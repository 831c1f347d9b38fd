"""Clients whose lock is on several Valkey servers: a primary with a replica, or the nodes of a Redlock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.explorer.actor import Actor, current_actor, stop_before
from lab.explorer.history import History
from lab.explorer.terms import Job, PendingStep
from lab.ladder.catalogue import LadderEntry
from lab.sandbox.clock import TTL
from lab.sandbox.redis_database import stepping_client
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.server_groups import RedlockNodes, ServerGroup
from lab.sandbox.stand_ins import StandIns
from lab.workloads.base import sleep
from lab.workloads.lock import LockWorkload
from locking import Lock, RedisLock, Redlock
from locking.redis import redlock
from locking.redis.ballot import Ballot
from locking.redis.nodes import node_of

NODE_TIMEOUT = 10.0
"""A time limit in seconds that never ends a wait: a running node answers sooner, and a stopped node refuses at once."""
PAUSE = 0.1
"""Duration, in seconds on the schedule's clock, of a pause that has a random length in production."""
RETRY_DELAY = 0.005
"""Seconds between two attempts of a client in a stress run: about as long as a client holds the lock."""
MINORITY = "N"
"""The name, in schedules, of the actor that reconnects the two nodes that cannot be reached at first."""
BACK = "back"
VOTED = "redlock:stock"
"""The key on which all nodes vote."""


class PrimaryWorkload(LockWorkload):
    """Clients of a lock on a primary whose replica lags behind.

    Args:
        group: the primary and its replica.
    """

    interchangeable = False

    def __init__(
        self, entry: LadderEntry, sandbox: Sandbox, names: Sequence[str], history: History, group: ServerGroup
    ) -> None:
        super().__init__(entry, sandbox, names, history)
        self.group = group

    def prepare(self) -> Mapping[str, Job]:
        self.group.begin()
        return super().prepare()

    def clean_up(self) -> None:
        self.group.end()

    def make_lock(self, client: Any) -> Lock:
        return super().make_lock(stepping_client(self.group.url("primary")))


class RedisLockOnPrimaryWorkload(PrimaryWorkload):
    """Clients of a `RedisLock` on a primary whose replica lags behind."""

    def make_lock(self, client: Any) -> Lock:
        return RedisLock(stepping_client(self.group.url("primary")), "stock", ttl=TTL, clock=self.sandbox.clock)


class RedlockWorkload(PrimaryWorkload):
    """Clients of a lock on five nodes. One step is a ballot: the requests to all nodes together.

    Args:
        group: the nodes.
    """

    group: RedlockNodes

    def __init__(
        self, entry: LadderEntry, sandbox: Sandbox, names: Sequence[str], history: History, group: RedlockNodes
    ) -> None:
        super().__init__(entry, sandbox, names, history, group)

    def prepare(self) -> Mapping[str, Job]:
        jobs = super().prepare()
        IN_THE_MODULE.enter(self)
        return {**jobs, MINORITY: self._come_back}

    def clean_up(self) -> None:
        IN_THE_MODULE.leave(self)
        super().clean_up()

    def make_lock(self, client: Any) -> Lock:
        # Other clients wait for the scheduler before each command. Here, a ballot over all nodes is one step.
        clients = [_client(self.group.url(str(number))) for number in range(1, 6)]
        for one in clients[:3]:
            node_of(one.connection_pool).open(NODE_TIMEOUT).result(NODE_TIMEOUT)
        clock = self.sandbox.clock
        return Redlock(clients, "stock", ttl=TTL, node_timeout=NODE_TIMEOUT, retry_delay=RETRY_DELAY, clock=clock)

    def _come_back(self) -> str:
        stop_before(PendingStep("two nodes can be reached again", "process", writes=frozenset({VOTED})))
        self.group.reconnect_minority()
        return BACK


class StoppingBallot(Ballot):
    """A ballot in which all nodes vote. The whole ballot is one step of the calling actor."""

    def hold(self, seconds: float) -> None:
        does = "; ".join(f"{call.script}.lua on all nodes: {' '.join(call.keys)}" for call in self._calls)
        stop_before(PendingStep(does, "redis", writes=frozenset({VOTED})))
        super().hold(seconds)
        # An attempt to connect to a silent node takes longer than the ballot, and the next ballot may use the new
        # connection. Wait until every attempt has ended. Otherwise chance decides whether the next ballot reaches a
        # node that comes back in the next step.
        wait(self._openings, NODE_TIMEOUT)


class _Time:
    """Replaces the module `time` for a lock that pauses for a random time. An actor pauses on the schedule's clock."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def sleep(seconds: float) -> None:
        actor = current_actor()
        if actor is None:
            time.sleep(seconds)
        else:
            # In a stress run the pause stays random: only different pauses end a split vote.
            sleep(PAUSE if isinstance(actor, Actor) else seconds)


IN_THE_MODULE = StandIns((redlock, "Ballot", StoppingBallot), (redlock, "time", _Time))


def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=NODE_TIMEOUT)
