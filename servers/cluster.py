"""A cluster of three etcd or ZooKeeper servers. Tests can kill its members, cut them off, and delete their disks."""

import json
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from servers.errors import ServerError
from servers.network import HOST, Network
from servers.process import Child
from servers.status import Status

MEMBERS = 3
"""Number of servers in a cluster. The cluster works as long as two of them reach each other."""
ELECTION_TIMEOUT = 30.0  # seconds; an election takes one or two seconds, and longer under load


class Member(Protocol):
    """The methods of a server that can be a member of a cluster."""

    child: Child
    folder: Path

    def launch(self) -> None: ...
    def wait(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def end_orphans(self) -> bool: ...
    def lose_disk(self) -> None: ...
    def status(self) -> Status: ...
    def leads(self) -> bool: ...


AnyMember = TypeVar("AnyMember", bound=Member)


class Cluster(Generic[AnyMember]):
    """Servers that elect a leader. They confirm a write once a majority of them has it on disk.

    Args:
        members: the servers.
        network: the network between the members, if it can be cut; otherwise None.
    """

    def __init__(self, members: Sequence[AnyMember], network: Network | None = None) -> None:
        self.members = members
        self.network = network

    def start(self) -> None:
        """Start all members at the same time, and return once each member is part of a majority.

        Raises:
            ServerError: a member does not start. If its process ended or was too slow, the message has the last lines
                of its log.
        """
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start all members without waiting until they are ready."""
        for member in self.members:
            member.launch()

    def wait(self) -> None:
        """Return once each member is part of a majority."""
        for member in self.members:
            member.wait()

    def leader(self, *, other_than: AnyMember | None = None) -> AnyMember:
        """Wait until the cluster has a leader, and return it.

        Args:
            other_than: a former leader to ignore. A leader that was cut off notices only after a moment that it has no
                majority.

        Raises:
            ServerError: the cluster has no such leader within `ELECTION_TIMEOUT` seconds.
        """
        deadline = time.monotonic() + ELECTION_TIMEOUT
        while time.monotonic() < deadline:
            for member in self.members:
                if member is not other_than and member.child.alive and member.leads():
                    return member
            time.sleep(0.02)
        raise ServerError(f"No leader was elected within {ELECTION_TIMEOUT:.0f} s.")

    def isolate(self, member: AnyMember) -> None:
        """Cut a member off from the others, but not from its clients.

        Raises:
            ServerError: the network of this cluster cannot be cut.
        """
        if self.network is None:
            raise ServerError("This cluster was made without a network that can be cut.")
        self.network.isolate(self.members.index(member))

    @property
    def isolated(self) -> list[AnyMember]:
        """The members that are cut off from the others."""
        return [] if self.network is None else [self.members[number] for number in self.network.isolated]

    def reconnect(self) -> None:
        """Let all members reach each other again."""
        if self.network is not None:
            self.network.heal()

    def heal(self) -> None:
        """Let all members reach each other, and start killed members. Return once each member is part of a majority."""
        self.reconnect()
        for member in self.members:
            if not member.child.alive:
                member.launch()
        self.wait()

    def stop(self) -> None:
        """Stop all members."""
        for member in self.members:
            member.stop()
        if self.network is not None:
            self.network.close()

    def end_orphans(self) -> bool:
        """End the members' processes that an earlier run left behind. Return whether there were any."""
        ended = [member.end_orphans() for member in self.members]
        return any(ended)

    def status(self) -> Status:
        """Query the members. The cluster is up as long as a majority of them responds."""
        found = [member.status() for member in self.members]
        versions = [each.version for each in found if each.up]
        address = ",".join(each.address for each in found)
        return Status(found[0].name, address, versions[0] if 2 * len(versions) > len(found) else None)


def ports_file(run_folder: Path, name: str) -> Path:
    """Return the file in which the ports of a cluster are stored."""
    return run_folder / f"{name}.ports"


def ports_of(run_folder: Path, name: str, each: int) -> list[list[int]]:
    """Return the ports of the members of a cluster. They stay the same as long as the run folder exists.

    Members store each other's ports together with their data, and clients in other processes read the ports from a
    file.

    Args:
        name: name of the cluster.
        each: number of ports that each member needs.
    """
    file = ports_file(run_folder, name)
    if not file.exists():
        probes = [socket.create_server((HOST, 0)) for _ in range(MEMBERS * each)]
        ports = [probe.getsockname()[1] for probe in probes]
        for probe in probes:
            probe.close()
        _create(file, json.dumps([ports[start : start + each] for start in range(0, len(ports), each)]))
    found: list[list[int]] = json.loads(file.read_text())
    return found


def _create(file: Path, text: str) -> None:
    """Create a file with this text, completely or, for example on a full disk, not at all. Keep an existing file."""
    descriptor, unfinished = tempfile.mkstemp(prefix="unfinished-", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(text)
        with suppress(FileExistsError):
            os.link(unfinished, file)
    finally:
        Path(unfinished).unlink()
