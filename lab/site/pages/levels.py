"""The levels of the ladder: consecutive locks or ways of selling that are about one question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.utils.translation import gettext_noop

from lab.ladder.catalogue import LADDER, LadderEntry, Track


@dataclass(frozen=True)
class Level:
    """Consecutive rungs of a track. A level ends before the first rung of the next level.

    Attributes:
        name: its name in URLs.
        track: its track.
        first: slug of its first rung.
        title: name for readers.
    """

    name: str
    track: Track
    first: str
    title: str


LEVELS = (
    Level("no-lock", "locks", "no-lock", gettext_noop("No lock that all clients share")),
    Level("one-command", "locks", "get-then-set", gettext_noop("Ask a server, and read its answer")),
    Level("crash", "locks", "setnx", gettext_noop("The holder dies")),
    Level("owner", "locks", "set-nx-ex", gettext_noop("Whose lock is it?")),
    Level("renewal", "locks", "watchdog-compares-a-constant", gettext_noop("Work that outlasts the TTL")),
    Level("waiting", "locks", "re-entrant-without-the-count", gettext_noop("Enter twice, and wait well")),
    Level("redlock", "locks", "one-primary-with-replicas", gettext_noop("Several Redis servers")),
    Level("consensus", "locks", "woken-means-mine", gettext_noop("ZooKeeper and etcd")),
    Level("postgres", "locks", "for-update-without-the-row", gettext_noop("A lock in Postgres")),
    Level("subtract", "stock", "compute-and-overwrite", gettext_noop("Check, then subtract")),
    Level("around", "stock", "lock-inside-the-transaction", gettext_noop("A lock around the sale")),
    Level("segments", "stock", "segmented-keys", gettext_noop("Split stock")),
    Level("database", "stock", "row-lock", gettext_noop("The database decides")),
    Level("counter", "stock", "lua-off-by-one", gettext_noop("A counter in Redis")),
    Level("requests", "stock", "duplicate-click", gettext_noop("The same request again, and many at once")),
)


def levels_of(track: Track) -> Iterator[tuple[Level, list[LadderEntry]]]:
    """Yield each level of a track with its rungs, in order."""
    starts = {level.first: level for level in LEVELS if level.track == track}
    level, rungs = None, list[LadderEntry]()
    for entry in LADDER.values():
        if entry.track != track:
            continue
        if entry.slug in starts:
            if level is not None:
                yield level, rungs
            level, rungs = starts[entry.slug], []
        rungs.append(entry)
    if level is not None:
        yield level, rungs
