"""One race: `manage.py rush` as a child process, in a shop that shares nothing with this one.

The child has servers of its own in a run folder of its own and none of our settings, so whatever races, nothing of the
shop is touched; and it is nice, so the shop's own work goes first. One race runs at a time: a lock in the shop's Redis
says so to all web processes, and in an hour one visitor's races may take half of it. The child ends when its standard
input does, so it cannot outlive the web process that started it.

What a visitor sees is kept in Redis for an hour under a random id, which whoever started the race has in his address.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from queue import Empty, Queue
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django_redis import get_redis_connection
from redis import RedisError

from inventory.strategies import registry
from lab.ladder.stock import RUNGS
from lab.sandbox import isolation
from locking import Lease, LockUnavailable, RedisLock

logger = logging.getLogger(__name__)

FOLDER = "race"
MOST_RACERS = 6
CLIENTS = (10, 200)
STOCK = (1, 500)
BURST_SECONDS = 15
"""Seconds after which the buyers of one racer come no more, and those who were told to try again give up."""
START_SECONDS = 60
RACER_SECONDS = 30
"""Seconds that a race may take at most: for its shop to start, and for each racer."""
STOP_SECONDS = 15
"""Seconds in which a child has to stop what it started, before it is killed."""
KEEP_SECONDS = 3600
BEAT_SECONDS = 1.0
"""Seconds between two signs of life of a race that says nothing, at most."""
DEAD_SECONDS = 15.0

ELSEWHERE = frozenset({"etcd-lock", "redlock", "zookeeper-lock"})
"""Strategies whose servers are the shop's, which a race does not touch."""
STRATEGIES = tuple(name for name in registry.NAMES if name not in ELSEWHERE)


HOUR = 3600
OF_ONE_VISITOR = 1800.0
"""Seconds of an hour that the races of one visitor may take: the rest is for others."""


class RaceRunning(Exception):
    """Another race runs: one at a time."""


class EnoughRaced(Exception):
    """The visitor's races have taken their share of the hour.

    Attributes:
        wait: seconds until he may start one again.
    """

    def __init__(self, wait: int) -> None:
        super().__init__(wait)
        self.wait = wait


@dataclass
class Racer:
    """One way of selling, and how far it has come.

    Attributes:
        name: of a rung or a strategy.
        wanted: orders that will be tried; 0 until its burst begins.
        answered: buyers who were told that they have it.
        refused: buyers who were told that it is sold out.
        busy: times that a buyer was told to try again.
        p50_ms: what half of those waited who were answered last, in milliseconds; 0 for nobody yet.
        p99_ms: the same for all but one in a hundred.
        result: the verdict, counted from the tables; see `manage.py rush`.
        holds: whether nothing was sold twice, lost or kept back.
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
    """Who races for how much stock, and what is known of it.

    Attributes:
        clients: buyers who ask at the same time.
        stock: units there are, for each racer.
        told: when something was last heard of it, in seconds since 1970.
        over: whether its child has ended.
        cut: whether its time was up before all had a verdict.
    """

    id: str
    clients: int
    stock: int
    racers: list[Racer]
    told: float = field(default_factory=time.time)
    over: bool = False
    cut: bool = False

    @property
    def lost(self) -> bool:
        """Whether whoever ran it is gone."""
        return not self.over and time.time() - self.told > DEAD_SECONDS

    @property
    def limit(self) -> float:
        """Seconds that it may take."""
        return START_SECONDS + RACER_SECONDS * len(self.racers)

    def take(self, said: dict[str, Any]) -> None:
        """Take in a line of the child's."""
        racer = next(racer for racer in self.racers if racer.name == said["name"])
        for name in ("wanted", "answered", "refused", "busy", "result", "holds", "error"):
            if name in said:
                setattr(racer, name, said[name])
        # Nobody was answered since the last line: what was true before still is what is known.
        racer.p50_ms, racer.p99_ms = said.get("p50_ms") or racer.p50_ms, said.get("p99_ms") or racer.p99_ms

    def keep(self) -> None:
        """Let whoever knows the id see how it stands.

        Raises:
            RedisError: Redis did not answer.
        """
        self.told = time.time()
        get_redis_connection("default").set(_key(self.id), json.dumps(asdict(self)), ex=KEEP_SECONDS)


def find(race: UUID) -> Race | None:
    """The race of an id; None when there was none in the last hour.

    Raises:
        RedisError: Redis did not answer.
    """
    kept = get_redis_connection("default").get(_key(str(race)))
    if kept is None:
        return None
    values = json.loads(kept)
    return Race(**{**values, "racers": [Racer(**racer) for racer in values["racers"]]})


def start(names: Sequence[str], *, clients: int, stock: int, visitor: str) -> Race:
    """Let a race begin, and return while it runs.

    Args:
        names: of rungs and strategies, each once.
        clients: buyers who ask at the same time.
        stock: units there are, for each.
        visitor: the address of whoever starts it.

    Raises:
        RaceRunning: another one runs.
        EnoughRaced: his races have taken long enough.
        LockUnavailable, RedisError: Redis did not answer.
        ServerError: another process uses the folder of races.
    """
    lease = RedisLock(get_redis_connection("default"), "lab-race", ttl=10.0).acquire(blocking=False)
    if lease is None:
        raise RaceRunning
    try:
        race = Race(str(uuid4()), clients, stock, [Racer(name) for name in names])
        _charge(race, visitor)
        isolation.folder(FOLDER).delete()
        race.keep()
        threading.Thread(target=_run, args=(race, lease, visitor), name="race", daemon=True).start()
    except BaseException:
        lease.release()
        raise
    return race


def command(race: Race) -> list[str]:
    """What runs the race."""
    kinds = {racer.name: "--rung" if racer.name in RUNGS else "--strategy" for racer in race.racers}
    return [
        *(sys.executable, "manage.py", "rush", "--json-lines"),
        *(part for name, kind in kinds.items() for part in (kind, name)),
        *("--clients", str(race.clients), "--stock", str(race.stock), "--seconds", str(BURST_SECONDS)),
    ]


def _charge(race: Race, visitor: str) -> None:
    """Count a race against its visitor's hour, which begins with the first one, for as long as it may take.

    Raises:
        EnoughRaced: not so much is left.
    """
    client, key = get_redis_connection("default"), _key_of(visitor)
    taken, left = client.pipeline().set(key, 0, ex=HOUR, nx=True).get(key).ttl(key).execute()[1:]
    if float(taken) + race.limit > OF_ONE_VISITOR:
        raise EnoughRaced(max(1, left))
    client.incrbyfloat(key, race.limit)


def _give_change(race: Race, visitor: str, seconds: float) -> None:
    """Count it for as long as it took, now that this is known."""
    client, key = get_redis_connection("default"), _key_of(visitor)
    if client.exists(key):  # his hour may be over
        client.incrbyfloat(key, seconds - race.limit)


def _run(race: Race, lease: Lease, visitor: str) -> None:
    began = time.monotonic()
    try:
        with tempfile.TemporaryFile() as complaints:
            with subprocess.Popen(
                command(race),
                cwd=settings.BASE_DIR,
                env=isolation.environment(isolation.folder(FOLDER)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                start_new_session=True,
            ) as child:
                try:
                    os.setpriority(os.PRIO_PROCESS, child.pid, 10)
                    _follow(race, child, lease)
                finally:
                    _end(child)
            if not all(racer.ended for racer in race.racers):
                complaints.seek(0)
                said = complaints.read()[-2000:].decode(errors="replace")
                logger.error("The race %s ended with status %s. %s", race.id, child.returncode, said)
        isolation.remove(isolation.folder(FOLDER))
    except Exception:
        logger.exception("The race %s was given up.", race.id)
    finally:
        race.over = True
        with suppress(RedisError):
            race.keep()
        with suppress(RedisError):
            _give_change(race, visitor, time.monotonic() - began)
        with suppress(LockUnavailable):
            lease.release()


def _follow(race: Race, child: subprocess.Popen[str], lease: Lease) -> None:
    """Take in what the child says until it ends, or its time is up, or somebody else may race."""
    lines: Queue[str | None] = Queue()
    threading.Thread(target=_read, args=(child, lines), name="race reader", daemon=True).start()
    began = time.monotonic()
    while not lease.lost:
        if time.monotonic() - began > race.limit:
            race.cut = True
            break
        try:
            line = lines.get(timeout=BEAT_SECONDS)
        except Empty:
            line = ""
        if line is None:
            break
        if line:
            race.take(json.loads(line))
        race.keep()


def _read(child: subprocess.Popen[str], lines: Queue[str | None]) -> None:
    for line in child.stdout or ():
        lines.put(line)
    lines.put(None)


def _end(child: subprocess.Popen[str]) -> None:
    """Ask the child to stop what it started, and kill it and its process group when it does not."""
    with suppress(OSError):
        if child.stdin:
            child.stdin.close()
    try:
        child.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        # It has not been waited for, so its number is still its own. What it put into groups of its own ends with it.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _key(race: str) -> str:
    return f"lab:race:{race}"


def _key_of(visitor: str) -> str:
    return f"lab:raced:{visitor}"
