"""The ladder: all rungs of both tracks in order. A rung is a lock or a way of selling, either flawed or sound."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inventory.strategies import (
    advisory_lock,
    group_commit,
    guarded_update,
    locked,
    lua,
    lua_queue,
    optimistic,
    row_lock,
    segmented_lock,
    segmented_redis,
    unit_rows,
)
from lab.explorer.terms import Fault, Invariant
from lab.ladder.locks import LOCKS, SOUND
from lab.ladder.stock import RUNGS
from lab.ladder.stock.sync_standby_failover import SyncStandbyFailover

Track = Literal["locks", "stock"]
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class LadderEntry:
    """A rung and its claim.

    Attributes:
        track: the protected data: a counter in Redis (`locks`), or stock and orders in Postgres (`stock`).
        code: the class that implements it.
        flaw: the mistake in the rung, in one sentence. None for a sound rung.
        slug, title, breaks, broken_by, survives, clients, preemptions, fixed_by, source: see `lab.ladder.locks.Rung`.
    """

    slug: str
    track: Track
    title: str
    code: type
    flaw: str | None
    breaks: Invariant | None
    broken_by: Fault | None
    survives: frozenset[Fault]
    clients: int
    preemptions: int
    fixed_by: str | None
    source: str

    @property
    def claim(self) -> Literal["flawed", "sound"]:
        return "sound" if self.flaw is None else "flawed"

    @property
    def file(self) -> str:
        """The path of the source file, relative to the project folder."""
        return str(Path(inspect.getfile(self.code)).resolve().relative_to(ROOT))


def _flawed(track: Track, rung: Any) -> LadderEntry:
    code = rung if isinstance(rung, type) else type(rung)
    return LadderEntry(
        rung.slug,
        track,
        rung.title,
        code,
        rung.flaw,
        rung.breaks,
        rung.broken_by,
        rung.survives,
        rung.clients,
        rung.preemptions,
        rung.fixed_by,
        rung.source,
    )


def _sound(track: Track, slug: str, title: str, code: type, survives: Iterable[Fault], source: str) -> LadderEntry:
    return LadderEntry(slug, track, title, code, None, None, None, frozenset(survives), 2, 2, None, source)


RENEWED: tuple[Fault, ...] = ("late release", "tick", "expiry", "crash")
FENCED: tuple[Fault, ...] = (*RENEWED, "pause", "clock jump")
BY_MAJORITY: tuple[Fault, ...] = (*RENEWED, "restart", "failover")
"""Faults that a lock on independent nodes survives if the nodes keep grants on disk. No replica replaces a lost
node."""
BY_ELECTION: tuple[Fault, ...] = (*RENEWED, "failover")
"""Faults that a lock survives on a cluster with an elected leader. The leader knows every write that was confirmed."""
AROUND_A_GUARDED_WRITE: tuple[Fault, ...] = ("tick", "pause", "crash")
"""Faults that a sale with a lock in Redis survives because its SQL write checks the stock again."""
IN_POSTGRES: tuple[Fault, ...] = ("crash",)

_SOUND_LOCKS: dict[str, tuple[str, tuple[Fault, ...], str]] = {
    "renewal": ("Renewal", RENEWED, "000, 002"),
    "fence": ("Fence claimed by the first statement", FENCED, "002"),
    "re-entrant": ("Re-entrant, with a count", RENEWED, "002"),
    "woken": ("Woken, not polling", RENEWED, "002"),
    "fair": ("Fair: in order of arrival", RENEWED, "002"),
    "redisson-watchdog": ("Redisson's way, with its watchdog", RENEWED, "002"),
    "redlock": ("Redlock", BY_MAJORITY, "000, 001, 002, 003, 004"),
    "zookeeper": ("ZooKeeper", RENEWED, "000, 002"),
    "kazoo-recipe": ("Curator's recipe in kazoo", ("late release", "expiry", "crash"), "002"),
    "etcd": ("etcd", RENEWED, "002"),
    "zookeeper-quorum": ("ZooKeeper, three servers", BY_ELECTION, "000, 002"),
    "etcd-quorum": ("etcd, three servers", BY_ELECTION, "002"),
    "lock-table-for-update": ("Lock table, SELECT … FOR UPDATE", IN_POSTGRES, "002"),
    "lock-table-insert": (
        "Lock table, unique insert with owner and expiry",
        RENEWED,
        "002",
    ),
    "postgres-advisory-lock": ("Postgres advisory lock", IN_POSTGRES, "pretix"),
}

_ORDER_OF_LOCKS = (
    "no-lock",
    "merge-without-a-lock",
    "thread-lock",
    "process-lock",
    "get-then-set",
    "answer-not-read",
    "busy-as-success",
    "setnx",
    "setnx-then-expire",
    "wrong-key-expires",
    "ttl-healed-by-waiters",
    "ttl-zero-prolongs",
    "ttl-healed-in-one-script",
    "set-nx-ex",
    "chain-of-freed-locks",
    "wrong-argument",
    "get-compare-del",
    "owner-as-text",
    "owner-is-thread-id",
    "owner-is-ip-pid-thread-time",
    "setnx-watch-release",
    "watch-release",
    "lua-release",
    "watchdog-compares-a-constant",
    "renews-nothing",
    "renewal-and-plain-release",
    "renewal",
    "renewal-and-a-pause",
    "fence-on-write-only",
    "fence",
    "re-entrant-without-the-count",
    "re-entrant",
    "lost-wake-up",
    "woken",
    "dead-head",
    "fair",
    "redisson-lease-time",
    "redisson-watchdog",
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
    "for-update-without-the-row",
    "lock-table-for-update",
    "insert-without-owner-and-expiry",
    "lock-table-insert",
    "postgres-advisory-lock",
)

_SOUND_STOCK: dict[str, tuple[str, type, tuple[Fault, ...], str]] = {
    "file-lock": ("Lock around the transaction", locked.Locked, ("crash",), "002"),
    "redis-lock": ("Redis lock around the transaction", locked.Locked, AROUND_A_GUARDED_WRITE, "002"),
    "segmented-redis": (
        "Segmented keys with gathering",
        segmented_redis.SegmentedRedis,
        AROUND_A_GUARDED_WRITE,
        "000, 002",
    ),
    "segmented-lock": ("Segmented stock with gathering", segmented_lock.SegmentedLock, AROUND_A_GUARDED_WRITE, "002"),
    "row-lock": ("Row lock", row_lock.RowLockStrategy, ("crash",), "002"),
    "advisory-lock": ("Advisory lock", advisory_lock.AdvisoryLockStrategy, ("crash",), "pretix"),
    "guarded-update": ("Guarded update", guarded_update.GuardedUpdate, ("crash",), "002"),
    "sync-standby-failover": ("Synchronous standby", SyncStandbyFailover, ("crash", "failover"), "002"),
    "unit-rows": ("One row per unit", unit_rows.UnitRows, ("crash",), "common practice"),
    "optimistic": ("Compare and set on a version", optimistic.Optimistic, ("crash",), "002"),
    "lua": ("Lua script with a reservation, and a guard in SQL", lua.Lua, ("crash", "restart"), "002"),
    "lua-queue": ("One script takes and enqueues", lua_queue.LuaQueue, ("crash",), "common practice"),
    "group-commit": ("Group commit", group_commit.GroupCommit, ("crash",), "common practice"),
}

_ORDER_OF_STOCK = (
    "compute-and-overwrite",
    "subtract-in-sql",
    "lock-inside-the-transaction",
    "file-lock",
    "lock-under-the-wrong-isolation",
    "commit-after-return",
    "refusal-swallowed",
    "order-after-the-unlock",
    "redis-lock",
    "exception-leaves-the-lock",
    "segmented-keys",
    "segmented-redis",
    "segmented-lock",
    "row-lock",
    "advisory-lock",
    "guarded-update",
    "async-standby-failover",
    "sync-standby-failover",
    "unit-rows",
    "retries-reported-as-sold-out",
    "optimistic",
    "lua-off-by-one",
    "decr-and-look-at-the-sign",
    "redis-taken-then-the-process-dies",
    "queue-after-decrement-as-two-calls",
    "redis-loses-its-last-second",
    "lua",
    "lua-queue",
    "duplicate-click",
    "group-commit",
)


def _lock(slug: str) -> LadderEntry:
    if slug in LOCKS:
        return _flawed("locks", LOCKS[slug])
    title, survives, source = _SOUND_LOCKS[slug]
    return _sound("locks", slug, title, SOUND[slug], survives, source)


def _stock(slug: str) -> LadderEntry:
    if slug in RUNGS:
        return _flawed("stock", RUNGS[slug])
    title, code, survives, source = _SOUND_STOCK[slug]
    return _sound("stock", slug, title, code, survives, source)


LADDER: dict[str, LadderEntry] = {
    **{slug: _lock(slug) for slug in _ORDER_OF_LOCKS},
    **{slug: _stock(slug) for slug in _ORDER_OF_STOCK},
}


def next_rung(slug: str) -> LadderEntry | None:
    """Return the rung that fixes a flawed rung.

    For a sound rung, return the next rung of its track; None at the end.
    """
    entry = LADDER[slug]
    if entry.fixed_by is not None:
        return LADDER[entry.fixed_by]
    rungs = [other for other in LADDER.values() if other.track == entry.track]
    place = rungs.index(entry) + 1
    return rungs[place] if place < len(rungs) else None
