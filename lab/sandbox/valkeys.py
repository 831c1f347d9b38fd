"""Several Valkeys that a schedule may cut off, restart, fail over, or set the clock of: real servers of a stage."""

from __future__ import annotations

import atexit
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.sandbox.steps import scripts
from servers.folder import RunFolder
from servers.valkey import Valkey

HOST = "127.0.0.1"
PATIENCE = 10.0
"""Seconds that a server has for what takes it some milliseconds."""

KEEPS = ("--appendonly", "yes", "--appendfsync", "always")
FORGETS = ("--appendonly", "no")
COPIES_AT_ONCE = ("--repl-diskless-sync-delay", "0")

DEBIAN = "*/faketime/libfaketime.so.1"
WHEEL = "vendor/libfaketime/src/libfaketime.so.1"
NO_LIBFAKETIME = "libfaketime is not installed; on Debian: apt-get install libfaketime, or: pip install libfaketime"


class Missing(RuntimeError):
    """A server or a library that a rung needs is not installed. The message says how to install it."""


class Node:
    """A server, and the address at which clients find it: whichever server is behind that.

    Args:
        folder: of its own.
        extra: arguments for the server.
    """

    def __init__(self, folder: Path, extra: Iterable[str]) -> None:
        run = RunFolder(folder)
        run.create()
        self.folder = folder
        self.port = _free_port()
        self.server = Valkey(run.valkey, extra=("--port", str(self.port), "--bind", HOST, *extra))
        self.admin = redis.Redis.from_url(self.server.url, retry=Retry(NoBackoff(), 0), socket_timeout=PATIENCE)
        self.ahead = folder / "ahead"

    def start(self) -> None:
        """Start it, if it does not run, with what it has on disk."""
        if not self.server.child.alive:
            self.server.socket.unlink(missing_ok=True)
            self.server.start()
            self.admin.connection_pool.disconnect()
            for script in scripts():
                self.admin.script_load(script)

    def empty(self) -> None:
        """Start it, if need be, and make it forget all, whoever it copied from."""
        self.start()
        self.admin.replicaof("NO", "ONE")
        self.admin.flushall()

    def kill(self) -> None:
        """End it at once, as a loss of power would."""
        self.server.child.kill()

    def hang_up(self) -> None:
        """End the connections of its clients."""
        self.admin.client_kill_filter(_type="normal", skipme=True)

    def have_own_clock(self) -> None:
        """Before it is started: give it a time of day of its own.

        Raises:
            Missing: libfaketime is.
        """
        source = libfaketime()
        if source is None:
            raise Missing(NO_LIBFAKETIME)
        # Copied to where the server's user can read it, wherever it is installed.
        copy = Path(shutil.copy(source, self.folder / "libfaketime.so.1"))
        copy.chmod(0o755)
        self._note(0)
        self.server.child.env = {
            **(self.server.child.env or {}),
            "LD_PRELOAD": str(copy),
            "FAKETIME_TIMESTAMP_FILE": str(self.ahead),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def leap(self, seconds: float) -> None:
        """Set its time of day ahead of the true one by so many seconds, as somebody who sets a clock."""
        self._note(seconds)
        until = time.monotonic() + PATIENCE
        while abs(self.admin.time()[0] - time.time() - seconds) > 2:
            if time.monotonic() > until:
                raise RuntimeError("The server does not go by the clock that it was given.")

    def _note(self, seconds: float) -> None:
        new = self.ahead.with_suffix(".new")
        new.write_text(f"+{seconds:.0f}")
        new.chmod(0o644)
        new.replace(self.ahead)


class Fleet:
    """The servers of a stage, each started when it is first asked for, and the addresses at which clients find them.

    Servers start in the main thread alone: see `servers.process.Child`.
    """

    def __init__(self) -> None:
        self._outer = Path(tempfile.mkdtemp(prefix="lu-lab-"))
        self._outer.chmod(0o755)
        self._nodes: dict[str, Node] = {}
        # The servers end with us in any case; their folder does not.
        atexit.register(self.close)

    def node(self, name: str, *extra: str, own_clock: bool = False) -> Node:
        """The server of that name."""
        node = self._nodes.get(name)
        if node is None:
            node = Node(self._outer / name, extra)
            if own_clock:
                node.have_own_clock()
            self._nodes[name] = node
        node.start()
        return node

    def address(self, place: str) -> Path:
        """Where clients look for whatever serves a place."""
        return self._outer / f"at-{place}"

    def serve(self, place: str, node: Node | None) -> None:
        """Let clients find that server there; None: nobody."""
        address = self.address(place)
        if node is None:
            address.unlink(missing_ok=True)
            return
        new = address.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.symlink_to(node.server.socket)
        new.replace(address)

    def close(self) -> None:
        """End all. What they keep is worth nothing any more."""
        atexit.unregister(self.close)
        for node in self._nodes.values():
            node.kill()
            node.admin.close()
        shutil.rmtree(self._outer, ignore_errors=True)


def copy_from(primary: Node, replica: Node) -> None:
    """Let one copy the other, and return when it does."""
    replica.admin.replicaof(HOST, str(primary.port))
    until = time.monotonic() + PATIENCE
    while not primary.admin.wait(1, 100):
        if time.monotonic() > until:
            raise RuntimeError("The replica does not copy.")


def cut_off(replica: Node) -> None:
    """It keeps what it has, and from now on looks for its primary where nobody is."""
    with suppress(redis.ResponseError):
        replica.admin.replicaof(HOST, "1")


def libfaketime() -> Path | None:
    """Where the library is: Debian's, or that of the PyPI package of this name. It is loaded, never linked."""
    found = list(Path("/usr/lib").glob(DEBIAN))
    if (wheel := find_spec("libfaketime")) is not None and wheel.origin is not None:
        found += Path(wheel.origin).parent.glob(WHEEL)
    return found[0] if found else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
