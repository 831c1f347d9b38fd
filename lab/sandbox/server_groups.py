"""Groups of Valkey servers on which a distributed lock runs. A fault may hit one of the servers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lab.explorer.terms import Fault
from lab.sandbox.clock import TTL
from lab.sandbox.fleet import DURABLE, REPLICATES_AT_ONCE, VOLATILE, Fleet, Node, detach, replicate
from lab.sandbox.sandbox import Sandbox


class ServerGroup(ABC):
    """Servers that a schedule sets up. A fault may hit one of them, at most once in a run.

    Args:
        sandbox: the sandbox. When time passes in it, time also passes on the servers.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    @property
    def fleet(self) -> Fleet:
        """The servers of the sandbox."""
        fleet: Fleet = self.sandbox.resource("fleet", Fleet)
        return fleet

    def begin(self) -> None:
        """Set up the servers.

        Until `end`, an actor that waits for another thread of this process does not count as blocked.
        """
        self.sandbox.local_waits = False
        self.set_up()

    def end(self) -> None:
        """Remove the servers from the sandbox. Safe to call more than once."""
        self.sandbox.nodes.clear()
        self.sandbox.local_waits = True

    @abstractmethod
    def set_up(self) -> None:
        """Prepare the servers for a run: their data, and which of them can be reached."""

    @abstractmethod
    def strike(self, fault: Fault) -> None:
        """Make a fault of a server happen."""

    def serve(self, place: str, node: Node | None) -> None:
        """Let clients and the sandbox find a server at a place. If `node` is None, they find no server there.

        `Fleet` says what a place is.
        """
        self.fleet.serve(place, node)
        address = str(self.fleet.address(place))
        if node is None:
            self.sandbox.nodes.pop(address, None)
        else:
            self.sandbox.nodes[address] = node.admin

    def url(self, place: str) -> str:
        """Return the URL at which clients find the server of a place. `Fleet` says what a place is."""
        return f"unix://{self.fleet.address(place)}"


class ReplicatedPrimary(ServerGroup):
    """A primary and its replica. When the replica is promoted, it lacks the last writes."""

    def set_up(self) -> None:
        primary = self.fleet.node("primary", *VOLATILE, *REPLICATES_AT_ONCE)
        replica = self.fleet.node("replica", *VOLATILE, *REPLICATES_AT_ONCE)
        self.sandbox.resource("replicated", lambda: _Replicated(primary, replica))
        primary.empty()
        replica.empty()
        detach(replica)
        self.serve("primary", primary)

    def strike(self, fault: Fault) -> None:
        self.fleet.node("primary").kill()
        replica = self.fleet.node("replica")
        replica.admin.replicaof("NO", "ONE")
        self.serve("primary", replica)


class RedlockNodes(ServerGroup):
    """Five Redlock nodes, two of which cannot be reached at first. Faults hit the third node.

    Args:
        third: name of the third node. Experiments that start it with different options use different names.
        durable: whether the third node keeps its data over a restart.
        own_clock: whether the clock of the third node can be set.
        replicated: whether a replica without the last writes replaces the third node when that node is lost.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        third: str = "third",
        durable: bool = False,
        own_clock: bool = False,
        replicated: bool = False,
    ) -> None:
        super().__init__(sandbox)
        self._third_name = third
        self._durable = durable
        self._own_clock = own_clock
        self._replicated = replicated

    def set_up(self) -> None:
        options = DURABLE if self._durable else VOLATILE
        self.nodes = [self.fleet.node(str(number), *VOLATILE) for number in (1, 2)]
        self.third = self.fleet.node(self._third_name, *options, *REPLICATES_AT_ONCE, own_clock=self._own_clock)
        self.nodes += [self.third, *(self.fleet.node(str(number), *VOLATILE) for number in (4, 5))]
        if self._replicated:
            self.replica = self.fleet.node("replica-of-third", *VOLATILE, *REPLICATES_AT_ONCE)
            self.sandbox.resource("third replicated", lambda: _Replicated(self.third, self.replica))
            self.replica.empty()
            detach(self.replica)
        if self._own_clock:
            self.third.set_clock_ahead(0)
        for number, node in enumerate(self.nodes, 1):
            node.empty()
            self.serve(str(number), node if number <= 3 else None)

    def reconnect_minority(self) -> None:
        """Let clients reach the two nodes that could not be reached."""
        for number in (4, 5):
            self.serve(str(number), self.nodes[number - 1])

    def strike(self, fault: Fault) -> None:
        if fault == "restart":
            self.third.kill()
            self.third.start()
        elif fault == "clock jump":
            self.third.set_clock_ahead(2 * TTL)
        else:
            self.third.kill()
            if self._replicated:
                self.replica.admin.replicaof("NO", "ONE")
                self.serve("3", self.replica)
            else:
                self.serve("3", None)


class _Replicated:
    """Replicates a primary until its replica is in sync. This takes a second, so it is done only once for each pair."""

    def __init__(self, primary: Node, replica: Node) -> None:
        replicate(primary, replica)

    def close(self) -> None:
        pass
