"""Texts about each lock. They say what its capabilities do not: its needs, its cost, when it fails, when to choose it.

docs/choose-lock.md and the table of the choice are made from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from locking.etcd import EtcdLock
from locking.local import ProcessLock, ThreadLock
from locking.lock import Lock
from locking.postgres import AdvisoryLock, InsertLock, RowLock
from locking.redis import RedisLock, Redlock
from locking.reentrant import ReentrantLock
from locking.zookeeper import ZooKeeperLock


@dataclass(frozen=True)
class GuideEntry:
    """Texts about one lock. They say what its capabilities do not say.

    Args:
        lock: the class of the lock.
        needs: the servers that it runs on.
        example: code that creates a lock.
        costs: the cost of an uncontended acquire and release, and of holding and waiting.
        fails: when two clients may hold it, or no client can get it.
        choose: when it is the right choice.
        may_lose: how many servers the tests stop, such as `2 of 5`. Empty if the lock does not survive the loss of a
            server.
    """

    lock: type[Lock]
    needs: str
    example: str
    costs: str
    fails: str
    choose: str
    may_lose: str = ""


ENTRIES: Sequence[GuideEntry] = (
    GuideEntry(
        ThreadLock,
        "no server",
        """\
from locking import ThreadLock

lock = ThreadLock("stock:sku-42")
""",
        "Microseconds; no round trip.",
        "Another process does not see the lock.",
        "Only the threads of one process compete, for instance for a cache.",
    ),
    GuideEntry(
        ProcessLock,
        "a local folder",
        """\
from locking import ProcessLock

lock = ProcessLock("/var/lib/shop/locks", "stock:sku-42")  # an existing folder that every user of the lock can write
""",
        "Microseconds; no round trip. A waiter polls every 0.5 to 75 ms.",
        "Another machine does not see the lock. Removing the file while the lock is held splits the lock in two.",
        "Several processes of one machine compete, for instance a cron job that must not run twice.",
    ),
    GuideEntry(
        RedisLock,
        "one Redis 7 or Valkey 7.2 server, Sentinel, or a Redis Cluster",
        """\
from redis import Redis
from locking import RedisLock

client = Redis.from_url("redis://localhost:6379/0", socket_timeout=5)
lock = RedisLock(client, "stock:sku-42", ttl=10.0)
""",
        "Two round trips; one if the lock is handed over. Its connections are its own, outside of the client's pool: "
        "one for each request at a time, one for all renewals, and one for each lock that threads of the process wait "
        "for.",
        "The server loses its data, fails over to a replica without the grant (`wait_for_replicas` narrows that "
        "window), or has its clock set forward. A holder that is paused beyond its TTL keeps working: check the "
        "fence. It grows as long as the server's clock is not set back. A waiter that is stopped but not dead "
        "(SIGSTOP, a suspended VM) may be handed the lock, and keeps it for the TTL of the releasing client, as a "
        "paused holder does.",
        "The default if there is a Redis server: fast, fenced, and fair between processes; threads of one process take "
        "turns in order of arrival. `FairRedisLock` is an alias of this class.",
    ),
    GuideEntry(
        ReentrantLock,
        "what the wrapped lock needs",
        """\
from locking import ReentrantLock, ThreadLock

lock = ReentrantLock(ThreadLock("stock:sku-42"))
""",
        "Those of the wrapped lock, once for all acquires of one owner.",
        "See the wrapped lock. Another ReentrantLock with the same name is another holder.",
        "Code that holds the lock calls code that acquires it, and neither can be changed.",
    ),
    GuideEntry(
        Redlock,
        "an odd number of independent Redis or Valkey primaries, typically five",
        """\
from redis import Redis
from locking import Redlock

urls = ["redis://redis-1:6379/0", "redis://redis-2:6379/0", "redis://redis-3:6379/0"]
lock = Redlock([Redis.from_url(url) for url in urls], "stock:sku-42", ttl=10.0)
""",
        "Two round trips, each to all nodes at once, and a connection to each node. A node that hangs costs "
        "`node_timeout`. Waiters poll; `make bench ARGS=retry-delay` shows what a shorter pause gains and costs.",
        "Enough of the granting nodes lose the grant that another majority can grant the lock again: restarts without "
        "fsync, failovers to replicas that are behind, clocks that jump. One such node is enough if only a bare "
        "majority had granted. There is no fence, so nothing refuses the writes of a paused holder.",
        "Losing one server must not stop the work, and doing the work twice occasionally is acceptable.",
        may_lose="2 of 5",
    ),
    GuideEntry(
        ZooKeeperLock,
        "ZooKeeper, an ensemble of three or five servers",
        """\
from kazoo.client import KazooClient
from locking.zookeeper import ZooKeeperLock

client = KazooClient("zookeeper-1:2181,zookeeper-2:2181,zookeeper-3:2181", timeout=10.0)
client.start()
lock = ZooKeeperLock(client, "stock:sku-42")
""",
        "Four requests, of which two are writes to a quorum; a few milliseconds. An idle waiter sends only its "
        "session's pings.",
        "A holder whose session has ended without its knowledge keeps working until its lease is over: check the "
        "fence.",
        "ZooKeeper is already in use, or neither the loss of a server nor a failover may grant the lock twice.",
        may_lose="1 of 3",
    ),
    GuideEntry(
        EtcdLock,
        "etcd, a cluster of three or five members",
        """\
from etcd3gw import Etcd3Client
from locking.etcd import EtcdLock

lock = EtcdLock(Etcd3Client("localhost", 2379), "stock:sku-42", ttl=10)
""",
        "Three requests, each a write to a quorum; a few milliseconds. A waiter keeps a watch open, and sends one "
        "keepalive per TTL to keep its place.",
        "As with ZooKeeper. The lease of a crashed holder lasts a quarter longer than the TTL, and at least a second "
        "longer; so does the place of a waiter that a server restart has cut off. TTLs are whole seconds. A client has "
        "one address: if that member is lost, its leases end, although the cluster goes on.",
        "etcd is already in use, or neither the loss of a member nor a failover may grant the lock twice.",
        may_lose="1 of 3",
    ),
    GuideEntry(
        AdvisoryLock,
        "Postgres",
        """\
from locking.postgres import AdvisoryLock

lock = AdvisoryLock("postgresql://shop@localhost/shop", "stock:sku-42")
""",
        "Two or three milliseconds, most of them to open a connection. A process uses one to hold a lock, and one or "
        "two to wait for it, however many of its threads wait; these threads hand them on, which is faster.",
        "The connection ends, or the primary fails over; the lease reports both. A stopped holder keeps the lock "
        "while its connection lives, and so does a stopped waiter that is granted the lock. Two names may have the "
        "same 64-bit hash.",
        "There is a Postgres server but no Redis, and the lock is taken a few times per second, not thousands.",
    ),
    GuideEntry(
        RowLock,
        "Postgres, with a table and one row per name",
        """\
from locking.postgres import RowLock, add_row, create_lock_tables

create_lock_tables("postgresql://shop@localhost/shop")  # once
add_row("postgresql://shop@localhost/shop", "stock:sku-42")  # once per name
lock = RowLock("postgresql://shop@localhost/shop", "stock:sku-42")
""",
        "As AdvisoryLock, with five statements, including the commit.",
        "As AdvisoryLock. Without the row there is nothing to lock; `acquire` then raises NoSuchLock.",
        "The locked data is in Postgres and needs a fence, and a transaction may stay open while the lock is held.",
    ),
    GuideEntry(
        InsertLock,
        "Postgres, with a table",
        """\
from locking.postgres import InsertLock, create_lock_tables

create_lock_tables("postgresql://shop@localhost/shop")  # once
lock = InsertLock("postgresql://shop@localhost/shop", "stock:sku-42", ttl=10.0)
""",
        "A connection per request, four statements, two commits. Of the threads of a process that wait, one has a "
        "connection; they hand connections on, as those of AdvisoryLock do.",
        "Postgres loses its data, or its clock is set forward. A holder that is paused beyond its TTL keeps working: "
        "check the fence.",
        "A lock on Postgres must outlive connections and restarts, and be free again after a crash.",
    ),
)
