"""Which trial shows a rung, on how many clients, and what is tried on it."""

from __future__ import annotations

from lab.explorer.terms import Fault
from lab.ladder.catalogue import LadderEntry
from lab.sandbox.sandbox import Sandbox
from lab.workloads import fence, fleet, line, lock, postgres, process, stock
from lab.workloads.base import NAMES, Trial

LOCK_TRIALS: dict[str, type[lock.LockTrial]] = {
    "busy-as-success": lock.SellTrial,
    "merge-without-a-lock": lock.MergeTrial,
    "fence-on-write-only": lock.FenceTrial,
    "fence": fence.LeapTrial,
    "re-entrant-without-the-count": lock.TwiceTrial,
    "re-entrant": lock.TwiceTrial,
    "for-update-without-the-row": postgres.PostgresTrial,
    "lock-table-for-update": postgres.PostgresTrial,
    "insert-without-owner-and-expiry": postgres.PostgresTrial,
    "lock-table-insert": postgres.PostgresTrial,
    "postgres-advisory-lock": postgres.PostgresTrial,
    "one-primary-with-replicas": fleet.PrimaryTrial,
    "redlock": fleet.RedlockTrial,
    "redlock-no-fsync": fleet.RedlockTrial,
    "redlock-replicated-nodes": fleet.RedlockTrial,
    "redlock-clock-jump": fleet.RedlockTrial,
    "woken-means-mine": line.ZooKeeperTrial,
    "watch-set-too-late": line.ZooKeeperTrial,
    "zookeeper": line.ZooKeeperTrial,
    "kazoo-recipe": line.ZooKeeperTrial,
    "etcd": line.EtcdTrial,
    "thread-lock": process.MemoryTrial,
    "process-lock": process.MachinesTrial,
    "owner-is-thread-id": process.ProcessTrial,
}

ON_SERVERS = (fleet.FleetTrial, line.LineTrial)
"""Trials that need servers of their own. A random sample of their schedules is tried, and nobody chooses there."""

OTHERS: dict[type[Trial], str] = {stock.QueueTrial: "W", fleet.RedlockTrial: fleet.MINORITY}
"""Whoever takes steps in a trial beside its clients."""


def new_trial(entry: LadderEntry, stage: Sandbox, clients: int | None = None) -> Trial:
    """What is tried on a rung.

    Args:
        clients: how many; None: as many as it takes to show the rung.
    """
    return _kind(entry)(entry, stage, clients or entry.clients)


def actors(entry: LadderEntry, clients: int) -> tuple[str, ...]:
    """Who takes steps on a rung, by the names that stand in a schedule: so many clients, and whoever works for them."""
    return (*NAMES[:clients], *OTHERS.get(_kind(entry), ""))


def _kind(entry: LadderEntry) -> type[Trial]:
    if entry.track == "locks":
        return LOCK_TRIALS.get(entry.slug, lock.LockTrial)
    if entry.claim == "flawed":
        return stock.RungTrial
    return stock.QueueTrial if entry.slug == "lua-queue" else stock.StrategyTrial


def can_play(entry: LadderEntry) -> bool:
    """Whether the rung's schedules run on a stage, so that a visitor may choose who goes next."""
    return not issubclass(LOCK_TRIALS.get(entry.slug, lock.LockTrial), ON_SERVERS)


def events_of(entry: LadderEntry) -> tuple[Fault, ...]:
    """What is tried on a rung: what breaks a flawed one, or all that a sound one claims to survive."""
    if entry.claim == "sound":
        return tuple(sorted(entry.survives))
    return (entry.broken_by,) if entry.broken_by else ()
