"""The state of a race. Redis stores it for an hour under a random id, which is a part of the page's address."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from django_redis import get_redis_connection

START_SECONDS = 60
"""Seconds that the shop of a race may take to start."""
RACER_SECONDS = 30
"""Seconds that each racer may take."""
KEEP_SECONDS = 3600
"""Seconds for which the state of a race is stored."""
DEAD_SECONDS = 40.0
"""The process that runs a race counts as dead after this number of seconds without a sign of life.

It gives none for up to 30 seconds at the end of a race, while it stops the shop and removes its folder.
"""


@dataclass
class Racer:
    """One way of selling in a race, and its progress.

    Attributes:
        name: slug of a flawed way of selling, or name of a strategy.
        wanted: number of orders that the burst will try; 0 until the burst begins.
        answered: number of customers who were told that they have bought.
        refused: number of customers who were told "sold out".
        busy: how often a customer was told to try again.
        p50_ms: median wait in milliseconds of the customers who were answered last; 0 before the first answer.
        p99_ms: the 99th percentile of these waits.
        result: the verdict, computed from the tables; see `manage.py rush`.
        holds: whether no unit was sold twice, lost or withheld.
        error: why there is no verdict.
    """

    name: str
    wanted: int = 0
    answered: int = 0
    refused: int = 0
    busy: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    result: dict[str, Any] | None = None
    holds: bool = False
    error: str = ""

    @property
    def ended(self) -> bool:
        return self.result is not None or bool(self.error)


@dataclass
class Race:
    """A race and its progress.

    Attributes:
        id: a random UUID.
        clients: number of customers who order at the same time.
        stock: units for each racer.
        racers: the racers, in the order in which they race.
        updated: when the process that runs the race last gave a sign of life, in seconds since 1970.
        over: whether the child process of the race has ended.
        timed_out: whether the time limit was reached before every racer had a verdict.
    """

    id: str
    clients: int
    stock: int
    racers: list[Racer]
    updated: float = field(default_factory=time.time)
    over: bool = False
    timed_out: bool = False

    @property
    def lost(self) -> bool:
        """Whether the process that ran the race has died."""
        return not self.over and time.time() - self.updated > DEAD_SECONDS

    @property
    def running(self) -> bool:
        return not self.over and not self.lost

    @property
    def limit(self) -> float:
        """The time limit of the race, in seconds."""
        return START_SECONDS + RACER_SECONDS * len(self.racers)

    def update(self, line: dict[str, Any]) -> None:
        """Update the state from one line of the child's output."""
        racer = next(racer for racer in self.racers if racer.name == line["name"])
        for name in ("wanted", "answered", "refused", "busy", "result", "holds", "error"):
            if name in line:
                setattr(racer, name, line[name])
        # If no customer was answered after the last line, keep the last known waits.
        racer.p50_ms, racer.p99_ms = line.get("p50_ms") or racer.p50_ms, line.get("p99_ms") or racer.p99_ms

    def save(self) -> None:
        """Store the state in Redis, with the present time as the last sign of life of this process.

        Raises:
            RedisError: Redis did not answer.
        """
        self.updated = time.time()
        get_redis_connection("default").set(_key(self.id), json.dumps(asdict(self)), ex=KEEP_SECONDS)


def find_race(race: UUID) -> Race | None:
    """Return the race with this id. None if there was none in the last hour.

    Raises:
        RedisError: Redis did not answer.
    """
    stored = get_redis_connection("default").get(_key(str(race)))
    if stored is None:
        return None
    values = json.loads(stored)
    return Race(**{**values, "racers": [Racer(**racer) for racer in values["racers"]]})


def _key(race: str) -> str:
    return f"lab:race:{race}"
