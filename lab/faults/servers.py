"""Faults of servers: a restart, a failover, a clock that jumps, or data that is lost."""

from __future__ import annotations

from lab.explorer.history import History
from lab.explorer.terms import Fault
from lab.faults.leases import EtcdFaults, LeaseFaults, LockServerFaults
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.server_groups import ServerGroup

OF_A_SERVER: tuple[Fault, ...] = ("restart", "failover", "clock jump")


class ServerGroupFaults(LeaseFaults):
    """Faults of leases, and in each run at most one fault of a server of the lock.

    Args:
        group: the servers of the lock.
    """

    def __init__(self, sandbox: Sandbox, history: History, group: ServerGroup) -> None:
        super().__init__(sandbox, history)
        self.group = group

    def offers(self, fault: Fault, actor: str = "") -> bool:
        """Return whether a fault can happen now. See `LeaseFaults.offers`."""
        if fault in OF_A_SERVER:
            return not self.history.server_faults
        return super().offers(fault, actor)

    def inject(self, fault: Fault, actor: str = "") -> None:
        """Make a fault happen. See `LeaseFaults.inject`."""
        if fault in OF_A_SERVER:
            self.history.faults += 1
            self.history.server_faults += 1
            self.group.strike(fault)
        else:
            super().inject(fault, actor)


class ZooKeeperQuorumFaults(ServerGroupFaults, LockServerFaults):
    """Faults of locks on ZooKeeper, and at most one fault of a server."""


class EtcdQuorumFaults(ServerGroupFaults, EtcdFaults):
    """Faults of locks on etcd, and at most one fault of a server."""


class RestartFaults(LeaseFaults):
    """Faults of leases, and restarts of the sandbox's Redis. A restart loses all writes since the last snapshot."""

    def offers(self, fault: Fault, actor: str = "") -> bool:
        """Return whether a fault can happen now. See `LeaseFaults.offers`."""
        return fault == "restart" or super().offers(fault, actor)

    def inject(self, fault: Fault, actor: str = "") -> None:
        """Make a fault happen. See `LeaseFaults.inject`."""
        if fault == "restart":
            self.history.faults += 1
            self.sandbox.restart()
        else:
            super().inject(fault, actor)
