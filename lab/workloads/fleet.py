"""Clients whose lock is on several Valkeys, of which one may be lost, restart, or have its clock set."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.explorer.actor import Actor, current_actor, stop_before
from lab.explorer.terms import Fault, PendingStep
from lab.sandbox.sandbox import new_client
from lab.sandbox.stand_ins import StandIns
from lab.sandbox.valkeys import COPIES_AT_ONCE, FORGETS, KEEPS, Fleet, Node, copy_from, cut_off
from lab.workloads.base import TTL, Broken
from lab.workloads.lock import LockTrial, sleep
from locking import Lock, RedisLock, Redlock
from locking.redis import redlock
from locking.redis.redlock import Ballot, node_of

NODE_TIMEOUT = 10.0
"""Seconds: no node that is there needs as long, and one that is not refuses at once."""
PAUSE = 0.1
"""Seconds of the schedule's clock that a pause of random length takes."""
RETRY = 0.005
"""Seconds between two tries of a client who is left to chance: about as long as another is inside."""
MINORITY = "N"
"""The name, in a schedule, of the two nodes that cannot be reached at first: their step is to come back."""
BACK = "back"


class FleetTrial(LockTrial):
    """Something happens to a server, once."""

    alike = False

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        self.happened = False
        self.stage.waits_in_this_process = False
        self.fleet: Fleet = self.stage.kept("fleet", Fleet)
        self.set_up()
        return super().prepare()

    @abstractmethod
    def set_up(self) -> None:
        """Put the servers, emptied, to their places, and tell the stage of them."""

    @abstractmethod
    def strikes(self, event: Fault) -> None:
        """Let it happen to a server."""

    def end(self) -> None:
        super().end()
        self.stage.nodes.clear()
        self.stage.waits_in_this_process = True

    def offers(self, event: Fault, who: str = "") -> bool:
        """See `Trial.offers`."""
        if event in STRIKES:
            return not self.happened
        return super().offers(event, who)

    def happens(self, event: Fault, who: str = "") -> None:
        """See `Trial.happens`."""
        if event in STRIKES:
            self.happened = True
            self.events += 1
            self.strikes(event)
        else:
            super().happens(event, who)

    def serve(self, place: str, node: Node | None) -> None:
        """Let clients find a server at a place, and the stage too."""
        self.fleet.serve(place, node)
        address = str(self.fleet.address(place))
        if node is None:
            self.stage.nodes.pop(address, None)
        else:
            self.stage.nodes[address] = node.admin

    def url(self, place: str) -> str:
        return f"unix://{self.fleet.address(place)}"


STRIKES: tuple[Fault, ...] = ("restart", "failover", "clock jump")


class PrimaryTrial(FleetTrial):
    """The lock is on a primary, and its replica has not heard of the last writes when it is promoted."""

    def set_up(self) -> None:
        primary = self.fleet.node("primary", *FORGETS, *COPIES_AT_ONCE)
        replica = self.fleet.node("replica", *FORGETS, *COPIES_AT_ONCE)
        self.stage.kept("copied", lambda: _Copied(primary, replica))
        primary.empty()
        replica.empty()
        cut_off(replica)
        self.serve("primary", primary)

    def strikes(self, event: Fault) -> None:
        self.fleet.node("primary").kill()
        replica = self.fleet.node("replica")
        replica.admin.replicaof("NO", "ONE")
        self.serve("primary", replica)

    def make_lock(self, client: Any) -> Lock:
        return RedisLock(new_client(self.url("primary")), "stock", ttl=TTL, clock=self.stage.clock)


class _Copied:
    """A replica that has copied its primary once."""

    def __init__(self, primary: Node, replica: Node) -> None:
        copy_from(primary, replica)

    def close(self) -> None:
        pass


class RedlockTrial(FleetTrial):
    """Five nodes, of which two cannot be reached until they are back; what happens, happens to the third.

    A step is to ask all nodes, in one vote.
    """

    def set_up(self) -> None:
        slug = self.entry.slug
        own_clock = slug == "redlock-clock-jump"
        kept = KEEPS if slug == "redlock" else FORGETS
        name = f"third-{slug}" if slug in ("redlock", "redlock-clock-jump") else "third"
        self.nodes = [self.fleet.node(str(number), *FORGETS) for number in (1, 2)]
        self.third = self.fleet.node(name, *kept, *COPIES_AT_ONCE, own_clock=own_clock)
        self.nodes += [self.third, *(self.fleet.node(str(number), *FORGETS) for number in (4, 5))]
        if slug == "redlock-replicated-nodes":
            self.replica = self.fleet.node("replica-of-third", *FORGETS, *COPIES_AT_ONCE)
            self.stage.kept("third copied", lambda: _Copied(self.third, self.replica))
            self.replica.empty()
            cut_off(self.replica)
        if own_clock:
            self.third.leap(0)
        for number, node in enumerate(self.nodes, 1):
            node.empty()
            self.serve(str(number), node if number <= 3 else None)
        IN_THE_MODULE.enter(self)

    def prepare(self) -> Mapping[str, Callable[[], str]]:
        return {**super().prepare(), MINORITY: self._come_back}

    def end(self) -> None:
        IN_THE_MODULE.leave(self)
        super().end()

    def strikes(self, event: Fault) -> None:
        if event == "restart":
            self.third.kill()
            self.third.start()
        elif event == "clock jump":
            self.third.leap(2 * TTL)
        else:
            self.third.kill()
            if self.entry.slug == "redlock-replicated-nodes":
                self.replica.admin.replicaof("NO", "ONE")
                self.serve("3", self.replica)
            else:
                self.serve("3", None)

    def errors(self, answers: Mapping[str, str]) -> Sequence[Broken]:
        """None when something has happened: there may be too few nodes to decide anything."""
        clients = {name: answer for name, answer in answers.items() if name != MINORITY}
        return [] if self.happened else super().errors(clients)

    def make_lock(self, client: Any) -> Lock:
        # Not those that stop before each command: the vote is the step.
        clients = [redis_at(self.url(str(number))) for number in range(1, 6)]
        for one in clients[:3]:
            node_of(one.connection_pool).open(NODE_TIMEOUT).result(NODE_TIMEOUT)
        return Redlock(clients, "stock", ttl=TTL, node_timeout=NODE_TIMEOUT, retry_delay=RETRY, clock=self.stage.clock)

    def _come_back(self) -> str:
        stop_before(PendingStep("two nodes can be reached again", "process", writes=frozenset({VOTED})))
        for number in (4, 5):
            self.serve(str(number), self.nodes[number - 1])
        return BACK


VOTED = "redlock:stock"
"""The key that all nodes vote on."""


class StoppingBallot(Ballot):
    """A vote before which whoever calls for it stops."""

    def hold(self, seconds: float) -> None:
        does = "; ".join(f"{call.script}.lua on all nodes: {' '.join(call.keys)}" for call in self._calls)
        stop_before(PendingStep(does, "redis", writes=frozenset({VOTED})))
        super().hold(seconds)
        # Whoever tries to reach a silent node goes on after the vote, and the next vote may share his attempt. Here
        # attempts end in the step in which they begin, or a node that is back by then would be missed by chance.
        wait(self._openings, NODE_TIMEOUT)


class _Time:
    """The module `time` for a lock that pauses: an actor does on the schedule's clock, and never by chance."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def sleep(seconds: float) -> None:
        mine = current_actor()
        if mine is None:
            time.sleep(seconds)
        else:
            # A client who is left to chance sleeps as long as he wants: its being random is what ends a split vote.
            sleep(PAUSE if isinstance(mine, Actor) else seconds)


IN_THE_MODULE = StandIns((redlock, "Ballot", StoppingBallot), (redlock, "time", _Time))


def redis_at(url: str) -> redis.Redis:
    """A client that tries once."""
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=NODE_TIMEOUT)
