"""Three servers of etcd or ZooKeeper on which a lock runs. A fault can make them lose their leader."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.explorer.terms import Fault
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.server_groups import ServerGroup
from servers import cluster
from servers.folder import RunFolder


class RunningServer:
    """A server or a cluster that runs in a folder of its own until it is closed.

    Args:
        make: creates the server in a given run folder.
    """

    def __init__(self, make: Callable[[Path], Any]) -> None:
        self._outer = Path(tempfile.mkdtemp(prefix="lu-lab-"))
        self._outer.chmod(0o755)
        folder = RunFolder(self._outer / "run")
        folder.create()
        self.server = make(folder.path)
        self.server.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Stop the server and delete its data."""
        atexit.unregister(self.close)
        self.server.stop()
        shutil.rmtree(self._outer, ignore_errors=True)


class Quorum(ServerGroup):
    """A leader and two followers. When the leader is lost, one follower has not received the last writes.

    The servers stay alive from one run to the next. After a failover, the killed server is started again.

    Args:
        name: name of the servers in the sandbox.
        make: creates the servers in a given run folder. Their network can be cut.

    Attributes:
        after_failover: called after each failover, when the new leader works.
    """

    def __init__(self, sandbox: Sandbox, name: str, make: Callable[[Path], cluster.Cluster[Any]]) -> None:
        super().__init__(sandbox)
        self._name = name
        self._make = make
        self.after_failover: Callable[[], object] = lambda: None

    @property
    def servers(self) -> cluster.Cluster[Any]:
        """The cluster, started on first use."""
        servers: cluster.Cluster[Any] = self.sandbox.resource(self._name, lambda: RunningServer(self._make)).server
        return servers

    @property
    def up_to_date(self) -> Any:
        """The follower that receives the leader's writes."""
        leader = self.servers.leader()
        return next(each for each in self.servers.members if each is not leader and each not in self.servers.isolated)

    def set_up(self) -> None:
        if self.servers.isolated:
            return
        self.servers.heal()
        leader = self.servers.leader()
        late = next(each for each in self.servers.members if each is not leader)
        self.servers.isolate(late)
        late.child.wait_until(lambda: not late.status().up)

    def strike(self, fault: Fault) -> None:
        self.servers.leader().kill()
        self.servers.reconnect()
        for each in self.servers.members:
            if each.child.alive:
                each.wait()
        self.after_failover()
