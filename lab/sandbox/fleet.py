"""Additional Valkey servers of a sandbox. A schedule may restart or disconnect them, or set their clocks."""

from __future__ import annotations

import atexit
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.sandbox.steps import scripts
from servers.folder import RunFolder
from servers.valkey import Valkey

HOST = "127.0.0.1"
RESPONSE_TIMEOUT = 10.0
"""Time limit in seconds for requests to a server that usually take milliseconds."""

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
VOLATILE = ("--appendonly", "no")
REPLICATES_AT_ONCE = ("--repl-diskless-sync-delay", "0")

DEBIAN = "*/faketime/libfaketime.so.1"
WHEEL = "vendor/libfaketime/src/libfaketime.so.1"
NO_LIBFAKETIME = "libfaketime is not installed; on Debian: apt-get install libfaketime, or: pip install libfaketime"


class Missing(RuntimeError):
    """A server or library that a lock needs is not installed. The message says how to install it."""


class Node:
    """A Valkey server that can be killed and started again.

    Args:
        folder: folder of this server.
        extra: additional command-line arguments of the server.
    """

    def __init__(self, folder: Path, extra: Iterable[str]) -> None:
        run = RunFolder(folder)
        run.create()
        self.folder = folder
        self.port = _free_port()
        self.server = Valkey(run.valkey, extra=("--port", str(self.port), "--bind", HOST, *extra))
        self.admin = redis.Redis.from_url(self.server.url, retry=Retry(NoBackoff(), 0), socket_timeout=RESPONSE_TIMEOUT)
        self.ahead = folder / "ahead"

    def start(self) -> None:
        """Start the server with the data that it has on disk. Do nothing if it is already running."""
        if not self.server.child.alive:
            self.server.socket.unlink(missing_ok=True)
            self.server.start()
            self.admin.connection_pool.disconnect()
            for script in scripts():
                self.admin.script_load(script)

    def empty(self) -> None:
        """Start the server if needed, end its replication, and delete its data."""
        self.start()
        self.admin.replicaof("NO", "ONE")
        self.admin.flushall()

    def kill(self) -> None:
        """Kill the server immediately, as a loss of power would."""
        self.server.child.kill()

    def have_own_clock(self) -> None:
        """Give the server its own time of day, which `set_clock_ahead` changes. Call it before the server is started.

        Raises:
            Missing: libfaketime is not installed.
        """
        source = libfaketime()
        if source is None:
            raise Missing(NO_LIBFAKETIME)
        # The server may run as another user: copy the library to a folder that this user can read.
        copy = Path(shutil.copy(source, self.folder / "libfaketime.so.1"))
        copy.chmod(0o755)
        self._set_offset(0)
        self.server.child.env = {
            **(self.server.child.env or {}),
            "LD_PRELOAD": str(copy),
            "FAKETIME_TIMESTAMP_FILE": str(self.ahead),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set_clock_ahead(self, seconds: float) -> None:
        """Set the server's time of day this many seconds ahead of the true time."""
        self._set_offset(seconds)
        until = time.monotonic() + RESPONSE_TIMEOUT
        while abs(self.admin.time()[0] - time.time() - seconds) > 2:
            if time.monotonic() > until:
                raise RuntimeError("The server does not use the clock that it was given.")

    def _set_offset(self, seconds: float) -> None:
        new = self.ahead.with_suffix(".new")
        new.write_text(f"+{seconds:.0f}")
        new.chmod(0o644)
        new.replace(self.ahead)


class Fleet:
    """The additional servers of a sandbox. A server starts on first use.

    A place is a name that stands for a socket path. Clients connect to the server that is at the place now.

    Servers start in the main thread only: see `servers.process.Child`.
    """

    def __init__(self) -> None:
        self._outer = Path(tempfile.mkdtemp(prefix="lu-lab-"))
        self._outer.chmod(0o755)
        self._nodes: dict[str, Node] = {}
        # The servers end with this process in any case, but their folder would stay.
        atexit.register(self.close)

    def node(self, name: str, *extra: str, own_clock: bool = False) -> Node:
        """Return the server with this name. Start it if it is not running.

        Only the first call for a name uses `extra` and `own_clock`.
        """
        node = self._nodes.get(name)
        if node is None:
            node = Node(self._outer / name, extra)
            if own_clock:
                node.have_own_clock()
            self._nodes[name] = node
        node.start()
        return node

    def address(self, place: str) -> Path:
        """Return the socket path of a place, at which clients find its server."""
        return self._outer / f"at-{place}"

    def serve(self, place: str, node: Node | None) -> None:
        """Make the socket path of a place lead to a server. If `node` is None, clients find no server there."""
        address = self.address(place)
        if node is None:
            address.unlink(missing_ok=True)
            return
        new = address.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.symlink_to(node.server.socket)
        new.replace(address)

    def close(self) -> None:
        """End the servers and delete their data."""
        atexit.unregister(self.close)
        for node in self._nodes.values():
            node.kill()
            node.admin.close()
        shutil.rmtree(self._outer, ignore_errors=True)


def replicate(primary: Node, replica: Node) -> None:
    """Make one server replicate another. Return once the replica follows the primary."""
    replica.admin.replicaof(HOST, str(primary.port))
    until = time.monotonic() + RESPONSE_TIMEOUT
    while not primary.admin.wait(1, 100):
        if time.monotonic() > until:
            raise RuntimeError("The replica does not replicate.")


def detach(replica: Node) -> None:
    """Stop the replication by giving the replica a primary that does not exist. The replica keeps its data."""
    replica.admin.replicaof(HOST, "1")


def libfaketime() -> Path | None:
    """Return the path of libfaketime, from Debian or from the PyPI package libfaketime. None if it is not installed."""
    found = list(Path("/usr/lib").glob(DEBIAN))
    if (wheel := find_spec("libfaketime")) is not None and wheel.origin is not None:
        found += Path(wheel.origin).parent.glob(WHEEL)
    return found[0] if found else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
