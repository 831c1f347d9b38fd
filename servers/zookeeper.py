"""ZooKeeper from Debian's package: one server, or an ensemble of three.

A write is confirmed once a majority has it on disk.
"""

import os
import shutil
import signal
import socket
from pathlib import Path

from servers.cluster import Cluster, ports_of
from servers.errors import ServerError
from servers.folder import give_to, private_subfolder, unprivileged_user
from servers.network import HOST, Network
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
# Milliseconds by which a server delays the confirmation of a write.
# Without the delay, a lagging follower of ZooKeeper 3.8.0 may confirm its missed writes before the new leader has
# confirmed them. The election of the leader then fails after `initLimit`, possibly again and again.
# Source: https://issues.apache.org/jira/browse/ZOOKEEPER-4685
FLUSH_DELAY = "-Dzookeeper.flushDelay=30"
SETTINGS_OF_A_MEMBER = {
    "initLimit": "25",  # ticks; time limit for a follower to copy the leader's data
    "syncLimit": "5",  # ticks of silence after which a follower or leader counts as dead
}
STATUS_TIMEOUT = 5.0  # seconds
STARTUP_STATUS_TIMEOUT = 0.1  # seconds; a starting server may accept a query and never answer, so retry soon


class ZooKeeper:
    """A ZooKeeper with its settings and data in `folder`, listening on the loopback interface.

    The port stays the same over restarts, so that clients reconnect. A client chooses its session timeout, from 0.4 to
    60 seconds.

    Args:
        folder: the folder of this server, directly inside the run folder.
        extra: additional settings, as in zoo.cfg; they override the defaults.
        port: the port for clients; a free one if None.
        number: the number of this member in an ensemble; None for a single server.
    """

    def __init__(
        self, folder: Path, *, extra: dict[str, str] | None = None, port: int | None = None, number: int | None = None
    ) -> None:
        self.folder = folder
        self.port = port or _free_port()
        self.number = number
        self.hosts = f"127.0.0.1:{self.port}"
        self.config = folder / "zoo.cfg"
        self._data = folder / "data"
        self.settings = SETTINGS | {"dataDir": str(self._data), "clientPort": str(self.port)} | (extra or {})
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
        """Start the server on the data in its folder, and return once it responds.

        Raises:
            ServerError: ZooKeeper is not installed, or does not start. If its process ended or was too slow, the
                message has the last lines of its log.
        """
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start the server without waiting until it responds."""
        if not available():
            raise ServerError(f"ZooKeeper is not installed: {INSTALL}")
        private_subfolder(self.folder)
        self.config.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        self.config.chmod(0o644)  # readable for the servers' user; no other user can enter the folder
        self.end_orphans()
        if self.number is not None and not self._data.exists():
            self._data.mkdir()
            (self._data / "myid").write_text(str(self.number))
            if (user := unprivileged_user()) is not None:
                give_to(user, self._data)
        self.child.start()

    def wait(self) -> None:
        """Return once the server has loaded its data and responds. A member of an ensemble first needs a leader."""
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

    def lose_disk(self) -> None:
        """Delete the data of the killed server. A member of an ensemble copies the leader's data at its next start."""
        shutil.rmtree(self._data)

    def end_orphans(self) -> bool:
        """End processes of this server that an earlier run left behind. Return whether there were any."""
        return end_orphans(self._is_ours, self.folder, signal.SIGTERM)

    def status(self) -> Status:
        """Return the present state of the server."""
        return status(self.hosts)

    def leads(self) -> bool:
        """Return whether the server considers itself the leader of an ensemble."""
        return "\nMode: leader\n" in ask(self.hosts, "srvr", STARTUP_STATUS_TIMEOUT)

    def _is_ours(self, command: list[str]) -> bool:
        return Path(command[0]).name == "java" and str(self.config) in command


def cluster(run_folder: Path, *, cuttable: bool = False) -> Cluster[ZooKeeper]:
    """Return the ZooKeeper ensemble of a run folder, without starting it.

    Args:
        cuttable: whether the network between the members can be cut. If so, they reach each other only while this
            process runs.
    """
    ports = ports_of(run_folder, "zookeeper", each=3)
    network = Network([peers for _, *peers in ports]) if cuttable else None
    extra = SETTINGS_OF_A_MEMBER | {
        f"server.{number}": f"{HOST}:{quorum}:{election}" for number, (_, quorum, election) in enumerate(ports, 1)
    }
    members = []
    for number, (port, *_) in enumerate(ports, 1):
        member = ZooKeeper(run_folder / f"zookeeper-{number}", extra=extra, port=port, number=number)
        member.child.args[1:1] = [FLUSH_DELAY]
        if network is not None:
            proxy = (f"-DsocksProxyHost={HOST}", f"-DsocksProxyPort={network.proxies[number - 1]}")
            member.child.args[1:1] = [*proxy, "-DsocksNonProxyHosts="]  # by default, Java exempts loopback addresses
        members.append(member)
    return Cluster(members, network)


def available() -> bool:
    """Return whether ZooKeeper and Java are installed."""
    return shutil.which("java") is not None and all(path.exists() for path in CLASSES)


def ask(hosts: str, command: str, seconds: float = STATUS_TIMEOUT) -> str:
    """Send a four-letter command, such as `srvr`. Return the answer, or "" if there is no answer in time.

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
    """Query the ZooKeeper at `hosts`. It counts as down while it loads its data. Its process id is not reported."""
    name, _, version = ask(hosts, "srvr", seconds).partition("\n")[0].partition(": ")
    return Status("zookeeper", hosts, version.partition("-")[0] if name == "Zookeeper version" else None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
