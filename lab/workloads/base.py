"""What the actors of a schedule do, what may happen to them, and what must hold: one for each kind of rung."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.explorer.actor import Actor
from lab.explorer.terms import Fault, Invariant
from lab.ladder.catalogue import LadderEntry
from lab.sandbox.sandbox import MARK, Sandbox
from lab.sandbox.watchdogs import IN_THE_MODULES, SteppedWatchdog

NAMES = "ABCDEF"
Broken = tuple[Invariant, str]
"""An invariant, and how it was broken."""


class Trial(ABC):
    """A rung, and clients who use it.

    Args:
        entry: the rung.
        stage: where they do.
        clients: how many.
    """

    def __init__(self, entry: LadderEntry, stage: Sandbox, clients: int) -> None:
        self.entry = entry
        self.stage = stage
        self.names = NAMES[:clients]
        self.inside: list[str] = []
        self.crashed: set[str] = set()
        self.broken: Broken | None = None
        self.events = 0
        self.watchdogs: dict[str, SteppedWatchdog] = {}

    def begin(self) -> Mapping[str, Callable[[], str]]:
        """Prepare the servers, and return the job of each actor by name."""
        self.inside.clear()
        self.crashed.clear()
        self.broken = None
        self.events = 0
        self.stage.empty()
        IN_THE_MODULES.enter(self)
        jobs = self.prepare()
        self.watchdogs = {name: SteppedWatchdog() for name in jobs}
        return jobs

    def end(self) -> None:
        """Everybody is gone: undo what `begin` did beyond the stage's servers. It may be called more than once."""
        for watchdog in self.watchdogs.values():
            watchdog.close()
        self.watchdogs.clear()
        IN_THE_MODULES.leave(self)

    @abstractmethod
    def prepare(self) -> Mapping[str, Callable[[], str]]:
        """Put the first figures into the emptied servers, and return the job of each actor by name."""

    @abstractmethod
    def verdict(self, answers: Mapping[str, str]) -> Sequence[Broken]:
        """All that is broken when everybody is done."""

    @abstractmethod
    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        """The figures at the end."""

    def state(self) -> tuple[Mapping[str, Any], ...]:
        """What the servers keep, for people."""
        return keys(self.stage.redis)

    def enters(self, name: str) -> None:
        """Somebody has been granted the lock and begins to work."""
        self.inside.append(name)
        if len(self.inside) > 1 and self.broken is None:
            self.broken = "one holder", f"{' and '.join(self.inside)} are inside at the same time."

    def leaves(self, name: str) -> None:
        """His work is done. He has still to release."""
        self.inside.remove(name)

    def dies(self, actor: Actor) -> None:
        """Somebody has crashed: he is not inside any more, and nobody renews for him."""
        self.crashed.add(actor.name)
        self.watchdogs[actor.name].close()
        if actor.name in self.inside:
            self.inside.remove(actor.name)

    def offers(self, event: Fault, who: str = "") -> bool:
        """Whether this may happen at this moment.

        Args:
            who: the actor to whom, if it is one of `OF_AN_ACTOR`.
        """
        if event == "tick":
            return self.watchdogs[who].renews
        if event == "late release":
            return not self.inside and self._expires()
        if event == "expiry":
            return bool(self.inside or self.works_unseen) and self._expires()
        if event == "pause":
            return (who in self.inside or self.watchdogs[who].renews) and self._expires()
        return False

    ticks = 3
    """How many turns of the watchdogs are longer than a server keeps a grant that nobody renews."""
    works_unseen = False
    """Whether nobody can tell who is inside."""
    alike = True
    """Whether all clients do the same."""

    def _expires(self) -> bool:
        left = self.stage.until_expiry()
        return left is not None

    def happens(self, event: Fault, who: str = "") -> None:
        """Let it happen. See `offers`."""
        self.events += 1
        if event == "tick":
            self.stage.pass_time(TICK)
            self.watchdogs[who].tick()
            return
        for _ in range(self.ticks):
            for name, watchdog in self.watchdogs.items():
                if name != who:
                    watchdog.tick()
            self.stage.pass_time(TICK)


TTL = 30.0
"""Seconds of the schedule's time: so many that the time which passes by itself does not matter."""
TICK = 0.35 * TTL
"""Seconds after which a watchdog has something to renew."""


def keys(client: Any) -> tuple[Mapping[str, Any], ...]:
    """What a Redis database keeps, for people."""
    found = []
    for name in sorted({*client.keys("*")} - {MARK.encode()}):
        kind = client.type(name)
        value: Any
        if kind == b"string":
            value = text(client.get(name))
        elif kind == b"list":
            value = [text(item) for item in client.lrange(name, 0, 9)]
        elif kind == b"hash":
            value = {text(field): text(item) for field, item in client.hgetall(name).items()}
        elif kind == b"zset":
            value = [text(member) for member, _ in client.zrange(name, 0, 9, withscores=True)]
        else:
            value = text(kind)
        left = client.pttl(name)
        found.append({"where": "redis", "name": text(name), "value": value, "ttl": None if left < 0 else left / 1000})
    return tuple(found)


def text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")
