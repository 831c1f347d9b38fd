"""A world for lock rungs: actors whose every command can be stopped at, time that passes when told, and schedules.

A schedule drives two or three actors step by step and returns the invariant that is broken at its end, or None. It is
the same for a flawed rung and for the one that fixes it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

import redis
from redis.connection import UnixDomainSocketConnection

from lab.ladder.locks import LOCKS, LockRung
from lab.ladder.locks.merge_without_a_lock import MergeWithoutALock
from lab.ladder.locks.rung import Rung
from locking import Lease, Lock, LockTimeout, RedisLock, ReentrantLock
from locking.renewal import watchdog
from tests.locking import actors
from tests.locking.support import Clock, RedisCell, client_of, process, run_threads

TTL = 30.0
"""Seconds of the world's time: so many that the time which passes by itself does not matter."""

PASS_TIME = """
-- ARGV: milliseconds. Whatever expires does so that much earlier.
for _, key in ipairs(redis.call('KEYS', '*')) do
    local left = redis.call('PTTL', key)
    if left >= 0 then
        redis.call('PEXPIRE', key, left - ARGV[1])
    end
end
"""


class Crash(BaseException):
    """The actor is dead: neither this command nor a later one goes out."""


class Steps:
    """What one actor sends, and what happens in between.

    Attributes:
        sent: the names of its commands, in order; a transaction counts as one, MULTI.
        crash_before: with which of them it crashes, the first being 0.
    """

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.crash_before: int | None = None
        self._elsewhere: tuple[Callable[[], Any], Collection[str]] | None = None
        self._after = 0

    def before(self, action: Callable[[], Any], *commands: str, after: int = 0) -> None:
        """Run an action once, just before this actor sends one of these commands; without a name: whichever is next.

        So many of them go out first as `after` says.
        """
        self._elsewhere = action, commands
        self._after = after

    @property
    def stopped(self) -> bool:
        """Whether the action was run."""
        return self._elsewhere is None

    def __call__(self, *command: str) -> None:
        if self._elsewhere is not None:
            action, commands = self._elsewhere
            if not commands or set(commands) & set(command):
                self._after -= 1
                if self._after < 0:
                    self._elsewhere = None
                    action()
        if self.crash_before is not None and len(self.sent) >= self.crash_before:
            if command[0] == "UNWATCH":  # sent by redis-py while a transaction is cleared away
                raise redis.ConnectionError("dead")
            raise Crash
        self.sent.append(command[0])


class SteppedConnection(UnixDomainSocketConnection):
    """Says each command before it is sent, the greeting excepted."""

    def __init__(self, *args: Any, steps: Callable[..., None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._steps = steps
        self._greets = False

    def on_connect_check_health(self, check_health: bool = True) -> None:
        self._greets = True
        super().on_connect_check_health(check_health)
        self._greets = False

    def send_command(self, *command: Any, **options: Any) -> None:
        if not self._greets:
            self._steps(str(command[0]))
        super().send_command(*command, **options)

    def pack_commands(self, commands: Any) -> Any:
        commands = list(commands)
        if not self._greets:
            self._steps(*[str(command[0]) for command in commands])
        return super().pack_commands(commands)


def stepped_client(socket: str, steps: Callable[..., None]) -> redis.Redis:
    """A client that says each of its commands to `steps` before it is sent."""
    return redis.Redis(
        connection_pool=redis.ConnectionPool(connection_class=SteppedConnection, path=socket, steps=steps)
    )


class Actor:
    """Somebody with a client, and so a lock object, of his own."""

    def __init__(self, world: World, rung: type[Rung]) -> None:
        self.steps = Steps()
        self.client = stepped_client(world.socket, self.steps)
        self.lock = world.new_lock(rung, self.client)

    def takes(self, timeout: float = 0) -> Lease | None:
        """Ask for the lock and wait for so many seconds of the world's time."""
        return self.lock.acquire(timeout=timeout)

    def enters(self, timeout: float = 0) -> bool:
        return self.takes(timeout) is not None


class World:
    """A server, a lock's name, and time, which passes only when told: on the clocks of actors and in TTLs alike."""

    def __init__(self, client: redis.Redis, socket: str, name: str) -> None:
        self.client = client
        self.socket = socket
        self.name = name
        self.clock = Clock()
        self._pass = client.register_script(PASS_TIME)
        self._actors: list[Actor] = []

    def actor(self, rung: type[Rung]) -> Actor:
        self._actors.append(Actor(self, rung))
        return self._actors[-1]

    def new_lock(self, rung: type[Rung], client: redis.Redis) -> Lock:
        if issubclass(rung, LockRung):
            return rung(client, self.name, ttl=TTL, sleep=self.pass_time, clock=self.clock)
        assert issubclass(rung, Sound)
        lock = RedisLock(client, self.name, ttl=TTL, clock=self.clock)
        return ReentrantLock(lock) if rung is ReEntrant else lock

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self._pass(args=[round(seconds * 1000)])

    def close(self) -> None:
        for actor in self._actors:
            actor.client.close()


class Sound(Rung):
    """A rung that is `locking.RedisLock`: each names one thing that it does."""


class Renewal(Sound):
    slug = "renewal"


class ReEntrant(Sound):
    """In a `locking.ReentrantLock`."""

    slug = "re-entrant"


class Woken(Sound):
    slug = "woken"


class Fair(Sound):
    slug = "fair"


SOUND_HERE: dict[str, type[Rung]] = {made.slug: made for made in Sound.__subclasses__()}


def rung(slug: str) -> type[Rung]:
    return SOUND_HERE.get(slug) or LOCKS[slug]


# Schedules

Schedule = Callable[[World, type[Rung]], str | None]


def reads_before_the_other_writes(world: World, rung: type[Rung]) -> str | None:
    """B sells between A's read and A's write, if he is let in, and else after A."""
    world.client.set("stock", 10)
    a, b = world.actor(rung), world.actor(rung)
    told: list[bool] = []
    a.steps.before(lambda: told.extend(_sells_elsewhere(b, "stock")), "SET")
    told.append(_seller(a).sell("stock", timeout=0))
    assert a.steps.stopped
    if len(told) == 1:
        told += _sells_elsewhere(b, "stock")
    assert told == [True, True]
    return None if int(world.client.get("stock") or 0) == 8 else "conserved"


def _sells_elsewhere(actor: Actor, stock: str) -> list[bool]:
    def sell() -> list[bool]:
        with suppress(LockTimeout):
            return [_seller(actor).sell(stock, timeout=0)]
        return []

    answers: list[bool] = run_threads(sell)[0]
    return answers


def _seller(actor: Actor) -> LockRung:
    assert isinstance(actor.lock, LockRung)
    return actor.lock


def merges_before_the_other_writes(world: World, rung: type[Rung]) -> str | None:
    """The second source merges between the first one's read and write, under the lock if there is one."""
    world.client.set("record", '{"d0": ""}')
    first, second = world.actor(LOCKS["no-lock"]), world.actor(LOCKS["no-lock"])
    locks = [None, None] if rung is MergeWithoutALock else [world.actor(rung).lock for _ in range(2)]
    refused: list[bool] = []

    def merge(actor: Actor, lock: Lock | None, part: str) -> None:
        lease = lock.acquire(blocking=False) if lock else None
        if lock and lease is None:
            refused.append(True)
            return
        MergeWithoutALock.merge(actor.client, "record", part, "")
        if lease:
            lease.release()

    first.steps.before(lambda: run_threads(lambda: merge(second, locks[1], "d2")), "SET")
    merge(first, locks[0], "d1")
    assert first.steps.stopped
    if refused:
        merge(second, locks[1], "d2")
    return None if world.client.get("record") == b'{"d0": "", "d1": "", "d2": ""}' else "conserved"


def two_workers_of_one_parent(world: World, rung: type[Rung]) -> str | None:
    """A forked worker takes the lock, and its parent asks for it."""
    a, b = world.actor(rung), world.actor(rung)
    with forked(lambda: a.enters()) as child:
        assert child.recv() is True
        return "one holder" if b.enters() else None


def two_programs(world: World, rung: type[Rung]) -> str | None:
    """Another process, which has no common parent with this one that knew the lock, takes it; this one asks for it."""
    recipe = RungRecipe(f"unix://{world.socket}", rung.slug)
    with process(actors.hold, recipe, world.name, {}) as (_, pipe):
        pipe.recv()
        return "one holder" if world.actor(rung).enters() else None


def looks_before_the_other_takes(world: World, rung: type[Rung]) -> str | None:
    """B takes the lock just before A's command that would."""
    a, b = world.actor(rung), world.actor(rung)
    entered: list[bool] = []
    a.steps.before(lambda: entered.append(b.enters()), "SET", "SETNX")
    entered.append(a.enters())
    assert a.steps.stopped
    return "one holder" if entered == [True, True] else None


def asks_while_it_is_held(world: World, rung: type[Rung]) -> str | None:
    assert world.actor(rung).enters()
    return "one holder" if world.actor(rung).enters() else None


def crashes_at_work(world: World, rung: type[Rung]) -> str | None:
    """A takes the lock and dies. B waits for three TTLs."""
    a = world.actor(rung)
    assert a.enters()
    a.steps.crash_before = 0
    return None if world.actor(rung).enters(3 * TTL) else "progress"


def crashes_after_its_first_command(world: World, rung: type[Rung]) -> str | None:
    """A dies when one command of his has gone out. B waits for three TTLs."""
    a = world.actor(rung)
    a.steps.crash_before = 1
    with suppress(Crash):
        a.takes()
    assert len(a.steps.sent) == 1
    return None if world.actor(rung).enters(3 * TTL) else "progress"


def releases_late(world: World, rung: type[Rung], *, before: Collection[str] = (), wait: float = 0) -> str | None:
    """A is done and releases. Before his command arrives his TTL passes and B takes the lock. C asks after it."""
    a, b, c = (world.actor(rung) for _ in range(3))
    lease = a.takes()
    assert lease is not None

    def the_ttl_passes_and_b_enters() -> None:
        if not wait:
            world.pass_time(TTL + 0.01)
        assert b.enters(wait)

    a.steps.before(the_ttl_passes_and_b_enters, *before)
    lease.release()
    assert a.steps.stopped
    return "one holder" if c.enters() else None


def releases_late_after_looking(world: World, rung: type[Rung]) -> str | None:
    """As `releases_late`, but A has looked already when his TTL passes."""
    return releases_late(world, rung, before=("DEL",))


def releases_late_and_both_asked_in_one_tick(world: World, rung: type[Rung]) -> str | None:
    """As `releases_late`, but B has been waiting since the moment in which A asked."""
    return releases_late(world, rung, wait=2 * TTL)


def asks_after_the_release(world: World, rung: type[Rung]) -> str | None:
    """A takes the lock and releases it. B waits for half a TTL."""
    lease = world.actor(rung).takes()
    assert lease is not None
    lease.release()
    return None if world.actor(rung).enters(TTL / 2) else "progress"


def works_longer_than_the_ttl(world: World, rung: type[Rung]) -> str | None:
    """A works for one TTL and more, and whoever renews for him gets his turns. B asks while A still works."""
    a, b = world.actor(rung), world.actor(rung)
    lease = a.takes()
    assert lease is not None
    for _ in range(3):
        watchdog.tick()
        world.pass_time(0.35 * TTL)
    entered = b.enters()
    lease.release()
    return "one holder" if entered else None


def releases_the_inner_one(world: World, rung: type[Rung]) -> str | None:
    """A enters twice and releases once. B asks while A is still inside."""
    a, b = world.actor(rung), world.actor(rung)
    outer, inner = a.takes(), a.takes()
    assert outer is not None
    assert inner is not None
    inner.release()
    entered = b.enters()
    outer.release()
    return "one holder" if entered else None


def releases_before_the_waiter_sleeps(world: World, rung: type[Rung]) -> str | None:
    """B is refused. A releases before B's command that he would sleep by. B waits for three TTLs."""
    a, b = world.actor(rung), world.actor(rung)
    lease = a.takes()
    assert lease is not None
    b.steps.before(lease.release, "SUBSCRIBE", "BLPOP")
    entered = b.enters(3 * TTL)
    assert b.steps.stopped
    return None if entered else "progress"


def a_waiter_dies(world: World, rung: type[Rung]) -> str | None:
    """A holds the lock, B is refused, waits and dies. A releases. C waits for three TTLs."""
    a, b, c = (world.actor(rung) for _ in range(3))
    lease = a.takes()
    assert lease is not None
    b.steps.crash_before = 1
    with suppress(Crash):
        b.takes(TTL)
    assert len(b.steps.sent) == 1
    assert lease.release() is True
    return None if c.enters(3 * TTL) else "progress"


# Other processes


@contextmanager
def forked(body: Callable[[], object]) -> Iterator[Pipe]:
    """Run `body` in a forked child, which sends what it returns and then lives until it is killed."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def run() -> None:
        theirs.send(body())
        ours.close()
        theirs.recv()

    child = context.Process(target=run)
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        child.kill()
        child.join()
        ours.close()


class Asleep:
    """A sleep that counts who sleeps in it: the waiters of the locks under test."""

    def __init__(self) -> None:
        self.count = 0
        self._mutex = threading.Lock()

    def __call__(self, seconds: float) -> None:
        self._add(1)
        try:
            time.sleep(seconds)
        finally:
            self._add(-1)

    def _add(self, one: int) -> None:
        with self._mutex:
            self.count += one


asleep = Asleep()


@dataclass(frozen=True)
class RungRecipe:
    """Makes locks of a rung on the server at `url`, for the conformance suite."""

    url: str
    slug: str

    def __call__(self, name: str, **options: Any) -> LockRung:
        options.pop("renew", None)
        made = LOCKS[self.slug]
        assert issubclass(made, LockRung)
        return made(self.client, name, sleep=asleep, **options)

    def cell(self, name: str) -> RedisCell:
        return RedisCell(self.client, f"cell:{name}")

    @property
    def client(self) -> redis.Redis:
        return client_of(self.url, os.getpid())


@dataclass(frozen=True)
class MeetingRecipe(RungRecipe):
    """As `RungRecipe`, for threads that share a client made by `meeting_client`."""

    meeting: redis.Redis

    @property
    def client(self) -> redis.Redis:
        return self.meeting


def meeting_client(socket: str) -> redis.Redis:
    """A client on which a SET waits until another is about to be sent too, or for a second when none comes."""
    arrived = 0
    condition = threading.Condition()

    def meet(*command: str) -> None:
        nonlocal arrived
        if "SET" in command:
            with condition:
                arrived += 1
                condition.notify_all()
                condition.wait_for(lambda: arrived > 1, timeout=1.0)

    return stepped_client(socket, meet)
