"""The rows of the choice: locks and strategies that keep a stock or a task safe.

Texts about locks come from `lock_entries.py`. `docs/choose-lock.md` has the same texts. Texts about strategies are
copied from `docs/choose-strategy.md`; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext_noop

from lab.site.choice import silence
from lab.site.choice.lock_entries import ENTRIES
from lab.site.choice.silence import Silence, silence_of
from locking.etcd import EtcdLock
from locking.local import ProcessLock, ThreadLock
from locking.lock import Capabilities, Lock
from locking.postgres import AdvisoryLock, InsertLock, RowLock
from locking.redis import RedisLock, Redlock
from locking.zookeeper import ZooKeeperLock

POSTGRES = gettext_noop("Postgres")
POSTGRES_AND_REDIS = gettext_noop("Postgres, Redis")


@dataclass(frozen=True)
class ChoiceRow:
    """A lock or a strategy that keeps a stock or a task safe.

    Attributes:
        slug: its name in addresses.
        rung: slug of the rung that runs it.
        needs: the servers and services that it runs on.
        when: when it is the right choice.
        silence: how long it stays held after its client is gone.
        lock: the class of its lock. None for a strategy without a lock, and for a lock of another project.
        strategy: name of the measured strategy; empty if none.
        measured_lock: name of the measured lock; empty if none.
        without: how many of its servers it may lose, such as `1 of 3`; empty if none.
        minority: address of a document that says that the lock survives the loss of a minority of its servers. No test
            here checks this. Empty if there is no such document.
        guarded: whether the statement or script that takes the stock also checks it, so that no fence is needed.
        source: address of the documentation of a lock of another project, which its cells quote.
    """

    slug: str
    title: str
    rung: str
    needs: str
    when: str
    silence: Silence
    lock: type[Lock] | None = None
    strategy: str = ""
    measured_lock: str = ""
    without: str = ""
    minority: str = ""
    guarded: bool = False
    source: str = ""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities that the row's lock declares. All are false if the row has no lock of this project."""
        return self.lock.capabilities if self.lock else Capabilities()

    @property
    def fenced(self) -> bool:
        """Whether every grant has a fence, a number that grows with every grant."""
        return self.capabilities.fenced


GUIDE = {entry.lock: entry for entry in ENTRIES}


def _lock(
    slug: str,
    title: str,
    lock: type[Lock],
    *,
    rung: str,
    measured_lock: str,
    strategy: str = "",
) -> ChoiceRow:
    """Return the row of a lock of this repository."""
    entry = GUIDE[lock]
    return ChoiceRow(
        slug,
        title,
        rung=rung,
        needs=entry.needs,
        when=entry.choose,
        silence=silence_of(lock),
        lock=lock,
        strategy=strategy,
        measured_lock=measured_lock,
        without=entry.may_lose,
    )


def _strategy(
    slug: str, title: str, strategy: str, *, needs: str, when: str, held: Silence = silence.STATEMENT
) -> ChoiceRow:
    """Return the row of a strategy without a lock around it."""
    return ChoiceRow(slug, title, rung=strategy, needs=needs, when=when, silence=held, strategy=strategy, guarded=True)


ROWS = (
    _strategy(
        "guarded-update",
        gettext_noop("Guarded update"),
        "guarded-update",
        needs=POSTGRES,
        when=gettext_noop("Many products with few customers each."),
    ),
    _lock(
        "database-row",
        gettext_noop("Database row"),
        RowLock,
        rung="lock-table-for-update",
        strategy="lock-table",
        measured_lock="row",
    ),
    _lock(
        "unique-insert",
        gettext_noop("Unique insert"),
        InsertLock,
        rung="lock-table-insert",
        strategy="insert-lock",
        measured_lock="insert",
    ),
    _lock(
        "advisory",
        gettext_noop("Advisory lock"),
        AdvisoryLock,
        rung="postgres-advisory-lock",
        strategy="session-lock",
        measured_lock="advisory",
    ),
    _lock(
        "thread-lock",
        gettext_noop("Thread lock"),
        ThreadLock,
        rung="thread-lock",
        measured_lock="thread",
    ),
    _lock(
        "file-lock",
        gettext_noop("File lock"),
        ProcessLock,
        rung="process-lock",
        strategy="file-lock",
        measured_lock="process",
    ),
    _lock(
        "redis-lock",
        gettext_noop("Redis lock"),
        RedisLock,
        rung="redis-lock",
        strategy="redis-lock",
        measured_lock="redis",
    ),
    ChoiceRow(
        "redisson",
        gettext_noop("Redisson’s way"),
        rung="redisson-watchdog",
        needs=gettext_noop("Java, and Redis or Valkey. Measured is the same protocol in Python."),
        when=gettext_noop("Your code is in Java and already uses Redis."),
        silence=silence.REDISSON,
        measured_lock="redisson",
        source=silence.REDISSON.source,
    ),
    _lock("redlock", gettext_noop("Redlock"), Redlock, rung="redlock", strategy="redlock", measured_lock="redlock"),
    _lock(
        "zookeeper",
        gettext_noop("ZooKeeper"),
        ZooKeeperLock,
        rung="zookeeper",
        strategy="zookeeper-lock",
        measured_lock="zookeeper",
    ),
    ChoiceRow(
        "curator",
        gettext_noop("Curator’s recipe"),
        rung="kazoo-recipe",
        needs=gettext_noop("Java, and ZooKeeper. The figures are of the same recipe in Python, kazoo’s."),
        when=gettext_noop("Your code is in Java and already uses ZooKeeper."),
        silence=silence.CURATOR,
        measured_lock="kazoo",
        minority="https://zookeeper.apache.org/doc/r3.8.0/zookeeperAdmin.html",
        source="https://curator.apache.org/docs/recipes-shared-reentrant-lock",
    ),
    _lock("etcd", gettext_noop("etcd"), EtcdLock, rung="etcd", strategy="etcd-lock", measured_lock="etcd"),
    _strategy(
        "lua",
        gettext_noop("Lua script"),
        "lua",
        needs=POSTGRES_AND_REDIS,
        when=gettext_noop("Customers who come too late should not reach the hot row while the last units are sold."),
    ),
    _strategy(
        "optimistic",
        gettext_noop("Optimistic update"),
        "optimistic",
        needs=POSTGRES,
        when=gettext_noop("Many products with few customers each."),
        held=silence.TRANSACTION,
    ),
    ChoiceRow(
        "segmented",
        gettext_noop("Segmented lock"),
        rung="segmented-lock",
        needs=POSTGRES_AND_REDIS,
        when=gettext_noop("One `redis-lock` is not fast enough."),
        silence=silence.SEGMENT,
        lock=RedisLock,
        strategy="segmented-lock",
    ),
    _strategy(
        "queue",
        gettext_noop("Queue"),
        "lua-queue",
        needs=gettext_noop("Postgres, Redis, Celery"),
        when=gettext_noop("“Queued” is an acceptable answer and Postgres is far away or busy."),
        held=silence.SCRIPT,
    ),
    _strategy(
        "group-commit",
        gettext_noop("Group commit"),
        "group-commit",
        needs=POSTGRES,
        when=gettext_noop("You have no reason for another one."),
    ),
)
BY_SLUG = {row.slug: row for row in ROWS}
