"""Which lock to choose: docs/locks.md, made from what the locks declare. `python -m locking.guide > docs/locks.md`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields

from locking.etcd import EtcdLock
from locking.local import ProcessLock, ThreadLock
from locking.lock import Capabilities, Lock
from locking.postgres.advisory import AdvisoryLock
from locking.postgres.tables import InsertLock, RowLock
from locking.redis.lock import RedisLock
from locking.redis.redlock import Redlock
from locking.reentrant import ReentrantLock
from locking.zookeeper import ZooKeeperLock


@dataclass(frozen=True)
class GuideEntry:
    """A lock, and what its capabilities do not say.

    Args:
        needs: the servers it runs on.
        made: the lines that make one.
        costs: of an uncontended pair of acquire and release, and what is there while it is held or waited for.
        fails: when two may hold it, or nobody gets it.
        choose: when it is the right one.
    """

    lock: type[Lock]
    needs: str
    made: str
    costs: str
    fails: str
    choose: str


ENTRIES: Sequence[GuideEntry] = (
    GuideEntry(
        ThreadLock,
        "no server",
        """\
from locking import ThreadLock

lock = ThreadLock("stock:sku-42")
""",
        "Microseconds; no round trip.",
        "Another process is another lock.",
        "Only the threads of one process meet: a cache, a file that nobody else opens.",
    ),
    GuideEntry(
        ProcessLock,
        "a local folder",
        """\
from locking import ProcessLock

lock = ProcessLock("/var/lib/shop/locks", "stock:sku-42")  # it exists, and all who lock may write there
""",
        "Microseconds; no round trip. Waiting polls, every 0.5 to 75 ms.",
        "Another machine is another lock, and so is the same name after its file was removed while it was held.",
        "Several processes of one machine: a cron job that must not run twice there.",
    ),
    GuideEntry(
        RedisLock,
        "one Redis 7 or Valkey 7.2, or a Sentinel's, or a Cluster",
        """\
from redis import Redis
from locking import RedisLock

client = Redis.from_url("redis://localhost:6379/0", socket_timeout=5)
lock = RedisLock(client, "stock:sku-42", ttl=10.0)
""",
        "Two round trips; a handed-over lock takes one. A waiter has one connection of the client's pool, a process "
        "one more for all renewals.",
        "The server loses its data, or fails over to a replica that has not seen the grant (`wait_for_replicas` "
        "narrows that gap), or its clock is set forward. A holder that is paused beyond its TTL goes on: check the "
        "fence, which grows as long as the server's clock is not set back. A waiter that is stopped, not dead "
        "(SIGSTOP, a suspended VM), may be handed the lock when it is first in line, and keeps it for the TTL of who "
        "released it, like any paused holder.",
        "The default where there is a Redis: fast, fair, and with a fence for what no lock can prevent. "
        "`FairRedisLock` is this same class under a second name, for who looks for a fair lock: there is no unfair "
        "one.",
    ),
    GuideEntry(
        ReentrantLock,
        "those of the lock within",
        """\
from locking import ReentrantLock, ThreadLock

lock = ReentrantLock(ThreadLock("stock:sku-42"))
""",
        "Those of the lock within, once for all entries of the same owner.",
        "As the lock within. Another object of the name is another holder.",
        "Code that holds the lock calls code that takes it, and neither can be changed.",
    ),
    GuideEntry(
        Redlock,
        "an odd number of independent Redis or Valkey primaries, five say",
        """\
from redis import Redis
from locking import Redlock

urls = ["redis://redis-1:6379/0", "redis://redis-2:6379/0", "redis://redis-3:6379/0"]
lock = Redlock([Redis.from_url(url) for url in urls], "stock:sku-42", ttl=10.0)
""",
        "Two round trips to all nodes at once, and a connection to each; a node that hangs costs `node_timeout`. "
        "Waiting tries again and again.",
        "So many of the nodes that granted forget it that a majority can grant again; one is enough when only just a "
        "majority had granted: restarts without fsync, failovers to empty replicas, clocks that jump. It has no fence, "
        "so a paused holder is not refused by anybody.",
        "Losing one server must not stop the work, and running twice now and then is a nuisance, not a loss.",
    ),
    GuideEntry(
        ZooKeeperLock,
        "ZooKeeper, an ensemble of three or five",
        """\
from kazoo.client import KazooClient
from locking.zookeeper import ZooKeeperLock

client = KazooClient("zookeeper-1:2181,zookeeper-2:2181,zookeeper-3:2181", timeout=10.0)
client.start()
lock = ZooKeeperLock(client, "stock:sku-42")
""",
        "Four requests, two of them writes to a quorum; some milliseconds. An idle waiter sends only the pings of its "
        "session.",
        "A holder whose session has ended without its knowing goes on until its lease says so: check the fence.",
        "ZooKeeper is there anyway: an ensemble is made to lose a server and no grant (the tests here run one server).",
    ),
    GuideEntry(
        EtcdLock,
        "etcd, a cluster of three or five",
        """\
from etcd3gw import Etcd3Client
from locking.etcd import EtcdLock

lock = EtcdLock(Etcd3Client("localhost", 2379), "stock:sku-42", ttl=10)
""",
        "Three requests, each a write to a quorum; some milliseconds. A waiter holds a watch, and sends one keepalive "
        "a TTL to keep its place.",
        "As ZooKeeper. A crashed holder's lease lasts a quarter longer than the TTL, a second at least, and so does "
        "the place in line of a waiter whom a restart of the server has cut off; TTLs are whole seconds.",
        "etcd is there anyway: a cluster is made to lose a member and no grant (the tests here run one member).",
    ),
    GuideEntry(
        AdvisoryLock,
        "Postgres",
        """\
from locking.postgres.advisory import AdvisoryLock

lock = AdvisoryLock("postgresql://shop@localhost/shop", "stock:sku-42")
""",
        "A connection is opened for each grant and each wait, which is most of the two or three milliseconds.",
        "The connection ends, or the primary fails over: the lease says so. A holder that is stopped keeps it for as "
        "long as its connection lives, and so does a waiter whose turn has come. Two names may have one 64-bit hash.",
        "There is a Postgres and no Redis, and locks are taken some times a second, not some thousand.",
    ),
    GuideEntry(
        RowLock,
        "Postgres, with a table and a row a name",
        """\
from locking.postgres.tables import RowLock, add_row, create_lock_tables

create_lock_tables("postgresql://shop@localhost/shop")  # once
add_row("postgresql://shop@localhost/shop", "stock:sku-42")  # once a name
lock = RowLock("postgresql://shop@localhost/shop", "stock:sku-42")
""",
        "As AdvisoryLock, with five statements, the commit among them.",
        "As AdvisoryLock. Without the row there is nothing to lock: it says so.",
        "What is locked is in Postgres and wants a fence, and for as long as a transaction may stay open.",
    ),
    GuideEntry(
        InsertLock,
        "Postgres, with a table",
        """\
from locking.postgres.tables import InsertLock, create_lock_tables

create_lock_tables("postgresql://shop@localhost/shop")  # once
lock = InsertLock("postgresql://shop@localhost/shop", "stock:sku-42", ttl=10.0)
""",
        "A connection a request, four statements, two commits.",
        "Postgres loses its data, or its clock is set forward. A holder that is paused beyond its TTL goes on: check "
        "the fence.",
        "A lock on Postgres that outlives connections, restarts and poolers, and is free again after a crash.",
    ),
)

INTRODUCTION = """\
# Which lock

<!-- Made by `python -m locking.guide > docs/locks.md`; a test compares them. -->

All of them have one contract: `lock.acquire()` or `with lock.hold() as lease`, a lease that knows when it is over,
and an error that says what to do. What each one promises is declared by its class, in `capabilities`, and tested by
one suite ([tests/locking/conformance.py](../tests/locking/conformance.py)) with real servers; a lock has to pass the
tests of exactly what it declares.

First ask what a failure costs. If running twice wastes work, any of them will do: take the cheapest that you have
the server for. If it does damage, no lock is enough by itself, since a holder can be paused for longer than any
TTL: take one with a **fence**, and let the store refuse a fence lower than the last it has seen.
`inventory/strategies/locked.py` does that in the statement that takes the stock.

How long is a TTL? Not as long as the work, which renewal covers, but several times the longest pause that a holder
should survive: garbage collection, a busy host, a slow network. It is how long the others wait when a holder dies.

The package needs redis-py, as new as [requirements.in](../requirements.in) says, and a lock on another server that
server's client: `kazoo`, `etcd3gw`, or `psycopg` for those on Postgres. Nothing else; Django only for its page in the
admin.

That page (`/admin/locks/`), `locking.held` and `locking.force_release` see the `RedisLock`s of one server or cluster
and no others: not Redlock, of which one node does not know whether a majority has granted, nor the locks in
ZooKeeper, etcd, Postgres, files or threads. For those ask their servers.

"""


def markdown() -> str:
    """Return the text of docs/locks.md."""
    names = [field.name for field in fields(Capabilities)]
    heads = [name.replace("_", " ") for name in names]
    lines = [
        f"| | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
        *(f"| {entry.lock.__name__} | {' | '.join(marks(entry.lock, names))} |" for entry in ENTRIES),
    ]
    return INTRODUCTION + "\n".join(lines) + f"\n\n{meanings()}\n" + "".join(map(section, ENTRIES))


def marks(lock: type[Lock], names: Sequence[str]) -> list[str]:
    declared = getattr(lock, "capabilities", None)
    if declared is None:  # it has those of the lock within, and one more
        return ["yes" if name == "reentrant" else "as within" for name in names]
    return ["yes" if getattr(declared, name) else "–" for name in names]


def meanings() -> str:
    """What each capability means: the list in the docstring of `Capabilities`."""
    said = (Capabilities.__doc__ or "").split("Attributes:")[1].strip().splitlines()
    pairs = (line.strip().split(": ", 1) for line in said)
    return "".join(f"- **{name.replace('_', ' ')}**: {meaning}\n" for name, meaning in pairs)


def section(entry: GuideEntry) -> str:
    module = entry.lock.__module__.replace(".", "/")
    return (
        f"\n## {entry.lock.__name__}\n\n"
        f"```python\n{entry.made}```\n\n"
        f"- Where: [{module}.py](../{module}.py). Needs {entry.needs}.\n"
        f"- Costs: {entry.costs}\n"
        f"- Does not help when: {entry.fails}\n"
        f"- Choose it when: {entry.choose}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(markdown())
