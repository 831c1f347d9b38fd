"""The experiment of each rung (lock or way of selling): its workload, the faults that may happen, and its checker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lab.checkers.base import Checker
from lab.checkers.counter import CounterChecker, FenceChecker, MergeChecker, QuorumChecker
from lab.checkers.stock import PromiseChecker, StockChecker
from lab.explorer.history import ChainHistory, History
from lab.explorer.terms import Fault
from lab.faults.leases import ClockJumpFaults, EtcdFaults, LeaseFaults, LockServerFaults
from lab.faults.servers import EtcdQuorumFaults, RestartFaults, ServerGroupFaults, ZooKeeperQuorumFaults
from lab.ladder.catalogue import LadderEntry
from lab.sandbox.quorums import Quorum
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.server_groups import RedlockNodes, ReplicatedPrimary
from lab.sandbox.standby import STANDBY, StandbyGroup, StandbySandbox
from lab.workloads.base import NAMES
from lab.workloads.etcd import EtcdQuorumWorkload, EtcdWorkload
from lab.workloads.experiment import Experiment
from lab.workloads.lock import (
    FenceWorkload,
    LockWorkload,
    MergeWorkload,
    NestedWorkload,
    RedisLockWorkload,
    ReentrantWorkload,
    RenewedNestedWorkload,
    RenewedWorkload,
    SellWorkload,
)
from lab.workloads.postgres import PostgresWorkload
from lab.workloads.process import MachinesWorkload, MemoryWorkload, ProcessWorkload
from lab.workloads.redlock import MINORITY, PrimaryWorkload, RedisLockOnPrimaryWorkload, RedlockWorkload
from lab.workloads.sellers import OneSegmentSeller, QueueSeller, RungSeller, Seller, StrategySeller
from lab.workloads.standby import StandbyWorkload
from lab.workloads.stock import LAST_UNIT, WORKER, Demand, QueueWorkload, StockWorkload, ThreadLockWorkload
from lab.workloads.zookeeper import ZooKeeperQuorumWorkload, ZooKeeperWorkload
from servers import cluster, etcd, zookeeper

Builder = Callable[[LadderEntry, Sandbox, Sequence[str]], Experiment]
"""A function that creates the experiment of a rung, in a sandbox, for clients with these names."""


def lock_experiment(
    workload: type[LockWorkload] = LockWorkload,
    *,
    faults: type[LeaseFaults] = LeaseFaults,
    checker: type[Checker] = CounterChecker,
    exclusive: bool = True,
) -> Builder:
    """Return a builder for experiments with a lock.

    Args:
        exclusive: whether two holders at the same time count as an error.
    """

    def build(entry: LadderEntry, sandbox: Sandbox, names: Sequence[str]) -> Experiment:
        history = History(exclusive=exclusive)
        return Experiment(workload(entry, sandbox, names, history), faults(sandbox, history), checker(sandbox, history))

    return build


def _chain(entry: LadderEntry, sandbox: Sandbox, names: Sequence[str]) -> Experiment:
    history = ChainHistory()
    return Experiment(
        LockWorkload(entry, sandbox, names, history), LeaseFaults(sandbox, history), CounterChecker(sandbox, history)
    )


def _primary(workload: type[PrimaryWorkload]) -> Builder:
    def build(entry: LadderEntry, sandbox: Sandbox, names: Sequence[str]) -> Experiment:
        history, group = History(), ReplicatedPrimary(sandbox)
        return Experiment(
            workload(entry, sandbox, names, history, group),
            ServerGroupFaults(sandbox, history, group),
            CounterChecker(sandbox, history),
        )

    return build


def _redlock(**options: Any) -> Builder:
    def build(entry: LadderEntry, sandbox: Sandbox, names: Sequence[str]) -> Experiment:
        history, group = History(), RedlockNodes(sandbox, **options)
        return Experiment(
            RedlockWorkload(entry, sandbox, names, history, group),
            ServerGroupFaults(sandbox, history, group),
            QuorumChecker(sandbox, history),
        )

    return build


def _quorum(
    workload: type[ZooKeeperQuorumWorkload] | type[EtcdQuorumWorkload],
    faults: type[ServerGroupFaults],
    servers: Callable[[Path], cluster.Cluster[Any]],
) -> Builder:
    def build(entry: LadderEntry, sandbox: Sandbox, names: Sequence[str]) -> Experiment:
        history, quorum = History(), Quorum(sandbox, entry.slug, servers)
        return Experiment(
            workload(entry, sandbox, names, history, quorum),
            faults(sandbox, history, quorum),
            CounterChecker(sandbox, history),
        )

    return build


def sale(demand: Demand = LAST_UNIT, *, seller: type[Seller], workload: type[StockWorkload] = StockWorkload) -> Builder:
    """Return a builder for experiments with a sale of stock.

    Args:
        demand: the units in stock, and the units that each client wants.
        seller: class of the seller.
    """

    def build(entry: LadderEntry, sandbox: Sandbox, names: Sequence[str]) -> Experiment:
        # Clients do not report that they are in the critical section: the shop's strategies have no hook for such
        # reports.
        history = History(holders_known=False)
        sells = seller(entry, demand.units, history)
        checker = StockChecker(
            sandbox,
            history,
            sells,
            quantities={name: demand.quantity(name) for name in names},
            keys={name: demand.key(name) for name in names},
            same_request=demand.same_request,
        )
        return Experiment(
            workload(entry, sandbox, names, history, sells, demand), RestartFaults(sandbox, history), checker
        )

    return build


def _standby(entry: LadderEntry, sandbox: Sandbox, names: Sequence[str]) -> Experiment:
    servers: StandbySandbox = sandbox.resource("standby", lambda: StandbySandbox(sandbox))
    history, group = History(holders_known=False), StandbyGroup(servers)
    seller = RungSeller(entry, LAST_UNIT.units, history)
    checker = PromiseChecker(
        servers,
        history,
        seller,
        quantities={name: LAST_UNIT.quantity(name) for name in names},
        keys={name: LAST_UNIT.key(name) for name in names},
        same_request=LAST_UNIT.same_request,
    )
    return Experiment(
        StandbyWorkload(entry, names, history, seller, group), ServerGroupFaults(servers, history, group), checker
    )


BUILDERS: dict[str, Builder] = {
    # Locks
    "no-lock": lock_experiment(),
    "merge-without-a-lock": lock_experiment(MergeWorkload, checker=MergeChecker),
    "thread-lock": lock_experiment(MemoryWorkload),
    "process-lock": lock_experiment(MachinesWorkload),
    "get-then-set": lock_experiment(),
    "answer-not-read": lock_experiment(),
    "busy-as-success": lock_experiment(SellWorkload),
    "setnx": lock_experiment(),
    "setnx-then-expire": lock_experiment(),
    "wrong-key-expires": lock_experiment(),
    "ttl-healed-by-waiters": lock_experiment(),
    "ttl-zero-prolongs": lock_experiment(),
    "ttl-healed-in-one-script": lock_experiment(),
    "set-nx-ex": lock_experiment(),
    "chain-of-freed-locks": _chain,
    "wrong-argument": lock_experiment(),
    "get-compare-del": lock_experiment(),
    "owner-as-text": lock_experiment(),
    "owner-is-thread-id": lock_experiment(ProcessWorkload),
    "owner-is-ip-pid-thread-time": lock_experiment(),
    "setnx-watch-release": lock_experiment(),
    "watch-release": lock_experiment(),
    "lua-release": lock_experiment(),
    "watchdog-compares-a-constant": lock_experiment(RenewedWorkload),
    "renews-nothing": lock_experiment(RenewedWorkload),
    "renewal-and-plain-release": lock_experiment(RenewedWorkload),
    "renewal": lock_experiment(RedisLockWorkload),
    "renewal-and-a-pause": lock_experiment(RedisLockWorkload),
    "fence-on-write-only": lock_experiment(FenceWorkload, checker=FenceChecker, exclusive=False),
    "fence": lock_experiment(FenceWorkload, faults=ClockJumpFaults, checker=FenceChecker, exclusive=False),
    "re-entrant-without-the-count": lock_experiment(NestedWorkload),
    "re-entrant": lock_experiment(ReentrantWorkload),
    "lost-wake-up": lock_experiment(),
    "woken": lock_experiment(RedisLockWorkload),
    "dead-head": lock_experiment(),
    "fair": lock_experiment(RedisLockWorkload),
    "redisson-lease-time": lock_experiment(RenewedNestedWorkload),
    "redisson-watchdog": lock_experiment(RenewedNestedWorkload),
    "one-primary-with-replicas": _primary(RedisLockOnPrimaryWorkload),
    "redlock-one-client-thrice": _primary(PrimaryWorkload),
    "redlock": _redlock(third="third-redlock", durable=True),
    "redlock-no-fsync": _redlock(),
    "redlock-replicated-nodes": _redlock(replicated=True),
    "redlock-clock-jump": _redlock(third="third-redlock-clock-jump", own_clock=True),
    "woken-means-mine": lock_experiment(ZooKeeperWorkload, faults=LockServerFaults),
    "watch-set-too-late": lock_experiment(ZooKeeperWorkload, faults=LockServerFaults),
    "zookeeper": lock_experiment(ZooKeeperWorkload, faults=LockServerFaults),
    "kazoo-recipe": lock_experiment(ZooKeeperWorkload, faults=LockServerFaults),
    "etcd": lock_experiment(EtcdWorkload, faults=EtcdFaults),
    "zookeeper-quorum": _quorum(
        ZooKeeperQuorumWorkload, ZooKeeperQuorumFaults, partial(zookeeper.cluster, cuttable=True)
    ),
    "etcd-quorum": _quorum(EtcdQuorumWorkload, EtcdQuorumFaults, partial(etcd.cluster, cuttable=True)),
    "for-update-without-the-row": lock_experiment(PostgresWorkload),
    "lock-table-for-update": lock_experiment(PostgresWorkload),
    "insert-without-owner-and-expiry": lock_experiment(PostgresWorkload),
    "lock-table-insert": lock_experiment(PostgresWorkload),
    "postgres-advisory-lock": lock_experiment(PostgresWorkload),
    # Stock
    "compute-and-overwrite": sale(Demand(10, (1, 1, 1)), seller=RungSeller),
    "subtract-in-sql": sale(seller=RungSeller),
    "lock-inside-the-transaction": sale(seller=RungSeller, workload=ThreadLockWorkload),
    "file-lock": sale(seller=StrategySeller),
    "lock-under-the-wrong-isolation": sale(seller=RungSeller),
    "commit-after-return": sale(seller=RungSeller),
    "refusal-swallowed": sale(seller=RungSeller),
    "order-after-the-unlock": sale(seller=RungSeller),
    "redis-lock": sale(seller=StrategySeller),
    "exception-leaves-the-lock": sale(Demand(1, (2, 1, 1)), seller=RungSeller),
    "segmented-keys": sale(Demand(4, (1, 1, 1)), seller=OneSegmentSeller),
    "segmented-redis": sale(Demand(2, (1, 1, 2)), seller=StrategySeller),
    "segmented-lock": sale(Demand(2, (1, 1, 2)), seller=StrategySeller),
    "row-lock": sale(seller=StrategySeller),
    "advisory-lock": sale(seller=StrategySeller),
    "guarded-update": sale(seller=StrategySeller),
    "async-standby-failover": _standby,
    "sync-standby-failover": _standby,
    "unit-rows": sale(seller=StrategySeller),
    "retries-reported-as-sold-out": sale(Demand(10, (1, 1, 1, 1)), seller=RungSeller),
    "optimistic": sale(seller=StrategySeller),
    "lua-off-by-one": sale(seller=RungSeller),
    "decr-and-look-at-the-sign": sale(Demand(1, (2, 1, 1)), seller=RungSeller),
    "redis-taken-then-the-process-dies": sale(seller=RungSeller),
    "queue-after-decrement-as-two-calls": sale(seller=RungSeller),
    "redis-loses-its-last-second": sale(seller=RungSeller),
    "lua": sale(seller=StrategySeller),
    "lua-queue": sale(seller=QueueSeller, workload=QueueWorkload),
    "duplicate-click": sale(Demand(2, (1, 1, 1), same_request=True), seller=RungSeller),
    "group-commit": sale(seller=StrategySeller),
}
"""The builders by slug. Of this table, a stored result depends only on the row of its rung. So a change of one row
makes no result of another rung out of date."""

ON_SERVERS = frozenset(
    {
        "one-primary-with-replicas",
        "redlock-one-client-thrice",
        "redlock",
        "redlock-no-fsync",
        "redlock-replicated-nodes",
        "redlock-clock-jump",
        "woken-means-mine",
        "watch-set-too-late",
        "zookeeper",
        "kazoo-recipe",
        "etcd",
        "zookeeper-quorum",
        "etcd-quorum",
        "async-standby-failover",
        "sync-standby-failover",
    }
)
"""Rungs whose experiments need their own servers. Only samples of their schedules run. Visitors cannot play them."""
WITH_A_MINORITY = frozenset({"redlock", "redlock-no-fsync", "redlock-replicated-nodes", "redlock-clock-jump"})
WITH_A_WORKER = frozenset({"lua-queue"})
WITH_A_STANDBY = frozenset({"async-standby-failover", "sync-standby-failover"})


def new_experiment(entry: LadderEntry, sandbox: Sandbox, clients: int | None = None) -> Experiment:
    """Return the experiment of a rung.

    Args:
        clients: number of clients; None: as many as the rung needs.
    """
    return BUILDERS[entry.slug](entry, sandbox, NAMES[: clients or entry.clients])


def actors(entry: LadderEntry, clients: int) -> tuple[str, ...]:
    """Return the names of an experiment's actors in schedules: its clients, and helpers such as a queue's worker."""
    helpers = {MINORITY: WITH_A_MINORITY, WORKER: WITH_A_WORKER, STANDBY: WITH_A_STANDBY}
    return (*NAMES[:clients], *(helper for helper, rungs in helpers.items() if entry.slug in rungs))


def can_play(entry: LadderEntry) -> bool:
    """Return whether a lock or way of selling runs in any sandbox. Only then can a visitor choose the steps."""
    return entry.slug not in ON_SERVERS


def faults_of(entry: LadderEntry) -> tuple[Fault, ...]:
    """Return the faults that are tried on a rung.

    Flawed rung: the fault that breaks it, or none if it needs no fault. Sound rung: all faults that it survives.
    """
    if entry.claim == "sound":
        return tuple(sorted(entry.survives))
    return (entry.broken_by,) if entry.broken_by else ()
