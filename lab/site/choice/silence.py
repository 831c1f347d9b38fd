"""How long a lock stays held after its client is gone.

There are three cases: the client's process was killed, its machine died, or its network was cut. In the last two cases
no connection is closed. Each text has its source. Names in braces stand for settings of the code, see `FIGURES`.
`tests/locking/test_silent_machine.py` drops the packets of holders and checks six locks after a machine has died.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext_noop

from lab.site.settings import CLIENT_KEEPALIVE, IDLE_TRANSACTION, SERVER_KEEPALIVE
from locking.etcd import EtcdLock
from locking.local import ProcessLock, ThreadLock
from locking.lock import Lock
from locking.postgres import InsertLock
from locking.postgres.session_lock import SessionLock
from locking.redis import RedisLock, Redlock
from locking.zookeeper import ZooKeeperLock

POSTGRES = "https://www.postgresql.org/docs/current"
REDIS = "https://redis.io/docs/latest/develop"
HOLDER_KNOWS = gettext_noop("As with a dead machine. The lease of the holder ends first.")


@dataclass(frozen=True)
class Silence:
    """How long a lock stays held after its client falls silent.

    Attributes:
        machine: how long after the client's machine has died.
        network: how long after the network was cut, while the client lives.
        source: where this is documented: an address, or a file of this repository.
        process: how long after the client's process was killed. Empty if it is as long as after the machine has died.
        measured: whether the comparison measures the time after the process was killed.
    """

    machine: str
    network: str
    source: str
    process: str = ""
    measured: bool = True

    @property
    def killed(self) -> str:
        """How long the lock stays held after its holder's process was killed."""
        return self.process or self.machine


CLOSED = gettext_noop("At once: its kernel closes the connection.")
TTL = gettext_noop("At most its TTL.")
ONE_TTL = Silence(TTL, HOLDER_KNOWS, f"{REDIS}/clients/patterns/distributed-locks/")
INSERTED = Silence(
    gettext_noop("Its TTL, and at most one more until a waiter asks."), HOLDER_KNOWS, "locking/postgres/insert.py"
)
SEGMENT = Silence(
    gettext_noop("At most the TTL of one segment. The others are sold meanwhile."), HOLDER_KNOWS, ONE_TTL.source
)
REDISSON = Silence(
    gettext_noop("At most 30 s, the default of its watchdog."),
    gettext_noop("As with a dead machine."),
    "https://github.com/redisson/redisson/wiki/8.-distributed-locks-and-synchronizers",
    measured=False,
)
SESSION_TIMEOUT = Silence(
    gettext_noop("At most its session timeout."),
    HOLDER_KNOWS,
    "https://zookeeper.apache.org/doc/r3.8.0/zookeeperProgrammers.html#ch_zkSessions",
)
CURATOR = Silence(SESSION_TIMEOUT.machine, REDISSON.network, SESSION_TIMEOUT.source)
ETCD_LEASE = Silence(
    gettext_noop("At most a quarter longer than its TTL, or a second longer if that is more."),
    HOLDER_KNOWS,
    "https://etcd.io/docs/v3.5/learning/api/#lease-api",
)
KEEPALIVE = Silence(
    gettext_noop("{server_keepalive} s, by TCP keepalives."),
    gettext_noop("As with a dead machine. The holder notices after {client_keepalive} s."),
    f"{POSTGRES}/runtime-config-connection.html#RUNTIME-CONFIG-TCP-SETTINGS",
    process=CLOSED,
)
TRANSACTION = Silence(
    gettext_noop("{idle_transaction} s after its last statement, by the limit on idle transactions."),
    gettext_noop("As with a dead machine. Nothing was sold, unless the commit had arrived."),
    f"{POSTGRES}/runtime-config-client.html#GUC-IDLE-IN-TRANSACTION-SESSION-TIMEOUT",
    process=CLOSED,
)
STATEMENT = Silence(
    gettext_noop(
        "At once: its one statement commits by itself. "
        "If it takes steps, {idle_transaction} s after its last statement."
    ),
    gettext_noop("As with a dead machine. Nothing was sold, unless the statement or the commit had arrived."),
    TRANSACTION.source,
    process=CLOSED,
)
SCRIPT = Silence(
    gettext_noop("At once: a script runs as a whole or not at all."),
    gettext_noop("As with a dead machine. The order is queued if the script had arrived."),
    f"{REDIS}/programmability/eval-intro/",
)
MEMORY = Silence(
    gettext_noop("The lock is gone with its machine."),
    gettext_noop("Needs no network."),
    "https://docs.python.org/3/library/threading.html#lock-objects",
    process=gettext_noop("The lock is gone with its process."),
    measured=False,
)
KERNEL = Silence(
    MEMORY.machine,
    MEMORY.network,
    "https://man7.org/linux/man-pages/man2/flock.2.html",
    process=gettext_noop("At once: its kernel closes the file."),
)

FIGURES = {
    "server_keepalive": SERVER_KEEPALIVE,
    "client_keepalive": CLIENT_KEEPALIVE,
    "idle_transaction": IDLE_TRANSACTION,
}
"""The figures that replace the names in braces in the texts, in seconds."""


def silence_of(lock: type[Lock]) -> Silence:
    """Return how long a lock of this class stays held after its client is gone."""
    if issubclass(lock, SessionLock):
        return KEEPALIVE
    return {
        ThreadLock: MEMORY,
        ProcessLock: KERNEL,
        RedisLock: ONE_TTL,
        Redlock: ONE_TTL,
        InsertLock: INSERTED,
        ZooKeeperLock: SESSION_TIMEOUT,
        EtcdLock: ETCD_LEASE,
    }[lock]
