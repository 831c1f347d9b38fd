"""A ZooKeeper of our own, from Debian's package: it answers a write once the write is on disk."""

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
    "-XX:-UsePerfData",  # or the JVM keeps a file in the temporary folder
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dzookeeper.preAllocSize=1024",  # KiB: the log grows in such steps, of 64 MiB by default
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
ANSWER_SECONDS = 5.0
STARTING_SECONDS = 0.1  # while it starts it takes a question and may never answer: ask again soon


class ZooKeeper:
    """One ZooKeeper on a port of the loopback interface, its settings and its data in `folder`.

    The port is chosen once and stays over restarts, so that clients find the server again. Sessions time out after
    0.4 to 60 seconds, as the client asks.

    Args:
        folder: its own folder, directly inside the run folder.
        extra: further settings, as in zoo.cfg; they win.
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
        """Start it, with whatever data the folder has, and return once it answers.

        Raises:
            ServerError: it is not installed, or does not start; with the last lines of its log.
        """
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it without waiting for it."""
        if not available():
            raise ServerError(f"ZooKeeper is not installed: {INSTALL}")
        private_subfolder(self.folder)
        self.config.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        self.config.chmod(0o644)  # the folder is closed to others; its user need not be ours
        self.end_orphans()
        self.child.start()

    def wait(self) -> None:
        """Return once it has loaded its data and answers."""
        try:
            self.child.wait_until(lambda: status(self.hosts, STARTING_SECONDS).up, 60.0)
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
        return Path(command[0]).name == "java" and str(self.config) in command


def available() -> bool:
    """Whether ZooKeeper and a Java to run it are installed."""
    return shutil.which("java") is not None and all(path.exists() for path in CLASSES)


def ask(hosts: str, word: str, seconds: float = ANSWER_SECONDS) -> str:
    """Return what the server at `hosts` answers to a four-letter word within `seconds`; empty when it does not.

    Source: https://zookeeper.apache.org/doc/r3.8.0/zookeeperAdmin.html#sc_4lw
    """
    host, _, port = hosts.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(word.encode())
            with connection.makefile("rb") as answer:
                return answer.read().decode()
    except OSError:
        return ""


def status(hosts: str, seconds: float = ANSWER_SECONDS) -> Status:
    """How the ZooKeeper at `hosts` is; one that still loads its data does not answer yet. It does not tell its pid."""
    name, _, version = ask(hosts, "srvr", seconds).partition("\n")[0].partition(": ")
    return Status("zookeeper", hosts, version.partition("-")[0] if name == "Zookeeper version" else None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
