"""A ZooKeeper child process from Debian's package. It confirms a write once the write is on disk."""

import os
import shutil
import signal
import socket
from pathlib import Path

from servers.errors import ServerError
from servers.folder import private_subfolder, unprivileged_user
from servers.orphans import end_orphans
from servers.process import Child
from servers.status import Status

JARS = Path("/usr/share/java")
CLASSES = (JARS / "zookeeper.jar", JARS / "slf4j-simple.jar")
INSTALL = "apt-get install zookeeper default-jre-headless"
JAVA = (
    "-Xmx64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",  # otherwise the JVM keeps a file in the temporary folder
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dzookeeper.preAllocSize=1024",  # KiB; the transaction log grows in steps of 64 MiB by default
)
SETTINGS = {
    "tickTime": "200",
    "minSessionTimeout": "400",
    "maxSessionTimeout": "60000",
    "clientPortAddress": "127.0.0.1",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
}
STATUS_TIMEOUT = 5.0  # seconds
STARTUP_STATUS_TIMEOUT = 0.1  # seconds; a starting server may accept a query and never answer, so retry soon


class ZooKeeper:
    """A ZooKeeper with its settings and data in `folder`, listening on the loopback interface.

    The port stays the same over restarts, so that clients reconnect. Clients choose their session timeout, from 0.4 to
    60 seconds.

    Args:
        folder: the folder of this server, directly inside the run folder.
        extra: additional settings, as in zoo.cfg; they override the defaults.
    """

    def __init__(self, folder: Path, *, extra: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.port = _free_port()
        self.hosts = f"127.0.0.1:{self.port}"
        self.config = folder / "zoo.cfg"
        self.settings = SETTINGS | {"dataDir": str(folder / "data"), "clientPort": str(self.port)} | (extra or {})
        self.child = Child(
            "zookeeper",
            [
                shutil.which("java") or "java",
                *JAVA,
                "-cp",
                ":".join(map(str, CLASSES)),
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                str(self.config),
            ],
            log=folder.with_name(f"{folder.name}.log"),
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            cwd=folder,
            user=unprivileged_user(),
        )

    def start(self) -> None:
        """Start on the data in the folder, and return once the server answers.

        Raises:
            ServerError: ZooKeeper is not installed, or does not start; then the message has the last lines of its log.
        """
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start without waiting until the server answers."""
        if not available():
            raise ServerError(f"ZooKeeper is not installed: {INSTALL}")
        private_subfolder(self.folder)
        self.config.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        self.config.chmod(0o644)  # readable for the servers' user; no other user can enter the folder
        self.end_orphans()
        self.child.start()

    def wait(self) -> None:
        """Return once the server has loaded its data and answers."""
        try:
            self.child.wait_until(lambda: status(self.hosts, STARTUP_STATUS_TIMEOUT).up, 60.0)
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
        return Path(command[0]).name == "java" and str(self.config) in command


def available() -> bool:
    """Whether ZooKeeper and Java are installed."""
    return shutil.which("java") is not None and all(path.exists() for path in CLASSES)


def ask(hosts: str, command: str, seconds: float = STATUS_TIMEOUT) -> str:
    """Send a four-letter command and return the answer; empty when there is none within `seconds`.

    Source: https://zookeeper.apache.org/doc/r3.8.0/zookeeperAdmin.html#sc_4lw
    """
    host, _, port = hosts.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(command.encode())
            with connection.makefile("rb") as answer:
                return answer.read().decode()
    except OSError:
        return ""


def status(hosts: str, seconds: float = STATUS_TIMEOUT) -> Status:
    """Query the ZooKeeper at `hosts`. It is down while it loads its data, and does not report its process id."""
    name, _, version = ask(hosts, "srvr", seconds).partition("\n")[0].partition(": ")
    return Status("zookeeper", hosts, version.partition("-")[0] if name == "Zookeeper version" else None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
