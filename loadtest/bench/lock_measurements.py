"""Measurements of one lock: latency, hand-over, fairness, the cost of waiting, and recovery from a killed holder."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection as Pipe
from statistics import median, quantiles
from typing import Any

from loadtest.bench.addresses import Addresses
from loadtest.bench.contenders import session
from loadtest.bench.lock_sessions import Acquire

GREEDY = 8
"""Number of processes that take the lock again as soon as they have released it."""

MAX_HOLD = 0.12
"""Longest time in seconds for which the lock is held before a release. The average pause of a polling waiter is
usually 0.1 seconds or less, so a release may come at any point of such a pause."""


def contended(name: str, lock: str, at: Addresses, *, count: int, seconds: float) -> dict[str, float | None]:
    """Measure one round on a lock: hand-overs, then greedy processes (see `handoffs` and `greedy`).

    Args:
        name: the contender.
        lock: name of the lock to contend for.
        count: number of hand-overs.
        seconds: duration of the greedy processes.

    Returns:
        Percentiles of the hand-overs in milliseconds; fewest and most turns of a greedy process.
    """
    waits = handoffs(name, lock, at, count)
    turns = greedy(name, lock, at, seconds)
    percentiles = [each * 1000 for each in quantiles(waits, n=100, method="inclusive")]
    return {
        "handoff_p50_ms": median(waits) * 1000,
        "handoff_p95_ms": percentiles[94],
        "handoff_p99_ms": percentiles[98],
        "greedy_min": min(turns),
        "greedy_max": max(turns),
    }


def pairs(names: Sequence[str], at: Addresses, count: int) -> dict[str, dict[str, float | None]]:
    """Return the microseconds and commands of an uncontended acquire and release, by contender.

    Each pass measures every contender once, in a new random order. The order matters: after a contender that was mostly
    idle, the next contender is slower.
    """
    with ExitStack() as stack:
        sessions = {name: stack.enter_context(session(name, at)) for name in names}
        locks = {name: opened.make(f"{name} pair") for name, opened in sessions.items()}
        for acquire in locks.values():
            for _ in range(20):
                acquire()()
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(count):
            for name in random.sample(list(names), len(names)):
                acquire = locks[name]
                start = time.perf_counter()
                acquire()()
                times[name].append(time.perf_counter() - start)
        return {
            name: {
                "pair_us": median(times[name]) * 1e6,
                "commands_per_pair": commands_per_pair(locks[name], sessions[name].sent),
            }
            for name in names
        }


def commands_per_pair(acquire: Acquire, sent: Callable[[], int] | None) -> float | None:
    if sent is None:
        return None
    before = sent()
    for _ in range(50):
        acquire()()
    return round((sent() - before) / 50, 1)


def handoffs(
    name: str, lock: str, at: Addresses, count: int, *, longest: float = MAX_HOLD, **options: Any
) -> list[float]:
    """Return the seconds from just before each release until the waiter holds the lock.

    The waiter is another process, or another thread for a thread lock.

    Args:
        name: the contender.
        lock: name of the lock to contend for.
        count: number of hand-overs.
        longest: longest time in seconds for which the lock is held before a release.
        options: further arguments, as in `session`.
    """
    with worker(name, _take_turns, name, lock, at, options) as pipe, session(name, at, **options) as own:
        acquire = own.make(lock)
        pipe.recv()
        waits = []
        for _ in range(count):
            release = acquire()
            pipe.send("wait")
            time.sleep(random.uniform(longest / 4, longest))  # noqa: S311
            start = time.monotonic()
            release()
            waits.append(pipe.recv() - start)
        pipe.send("end")
        return waits


def _take_turns(name: str, lock: str, at: Addresses, options: dict[str, Any], pipe: Pipe) -> None:
    with session(name, at, **options) as own:
        acquire = own.make(lock)
        own.make(f"{lock} warm-up")()()
        pipe.send("ready")
        while pipe.recv() == "wait":
            release = acquire()
            now = time.monotonic()
            release()
            pipe.send(now)


def greedy(name: str, lock: str, at: Addresses, seconds: float) -> list[int]:
    """Return how often each of `GREEDY` processes gets the lock. A thread lock is measured with threads."""
    with ExitStack() as stack:
        pipes = [stack.enter_context(worker(name, _be_greedy, name, lock, at, seconds)) for _ in range(GREEDY)]
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send("go")
        return [pipe.recv() for pipe in pipes]


def _be_greedy(name: str, lock: str, at: Addresses, seconds: float, pipe: Pipe) -> None:
    with session(name, at) as own:
        acquire = own.make(lock)
        own.make(f"{lock} warm-up of {multiprocessing.current_process().name}")()()
        pipe.send("ready")
        pipe.recv()
        # Count no turn in the first quarter of `seconds`, in which some processes may still be starting.
        counts_from = time.monotonic() + seconds / 4
        until = counts_from + seconds
        turns = 0
        while (now := time.monotonic()) < until:
            acquire()()
            turns += now > counts_from
        pipe.send(turns)


def idle_commands(name: str, at: Addresses, seconds: float, **options: Any) -> float | None:
    """Return the commands per second that a waiter sends while the lock is held and nothing happens.

    For Redis and etcd locks, these are the commands of the waiter's client. For ZooKeeper locks, these are the packets
    that the server receives from the waiter, including pings. For Postgres locks, these are all statements of this
    process except renewals, because the holder sends only renewals. A file lock and a thread lock send none. The result
    is None if a session cannot count.

    Args:
        name: the contender.
        seconds: how long to count.
        options: further arguments, as in `session`.
    """
    with session(name, at, **options) as holder, session(name, at, **options) as own:
        if own.sent is None:
            return None
        release = holder.make(f"{name} idle")()
        waiter = threading.Thread(target=lambda: own.make(f"{name} idle")()())
        waiter.start()
        time.sleep(1.0)  # Wait until the waiter has sent its request, and sleeps or polls.
        before = own.sent()
        time.sleep(seconds)
        sent = own.sent() - before
        release()
        waiter.join()
        return round(sent / seconds, 3)


def recovery(name: str, at: Addresses) -> float | None:
    """Return the seconds from the death of a holder process until a waiter in another process has the lock.

    The result is None for a thread lock, because its waiters die with the process.
    """
    if name == "thread":
        return None
    context = multiprocessing.get_context("spawn")
    pipe, their_pipe = context.Pipe()
    holder = context.Process(target=_hold, args=(name, f"{name} death", at, their_pipe), daemon=True)
    with session(name, at) as own:
        acquire = own.make(f"{name} death")
        holder.start()
        try:
            pipe.recv()
        finally:
            holder.kill()
        died = time.monotonic()
        acquire()()
        took = time.monotonic() - died
    holder.join()
    return round(took, 3)


def _hold(name: str, lock: str, at: Addresses, pipe: Pipe) -> None:
    with session(name, at) as own:
        release = own.make(lock)()
        pipe.send("held")
        threading.Event().wait()
        # This line is never reached. The function needs `release` until here, which keeps the lease alive: some locks
        # release a lease that is garbage-collected.
        release()


@contextmanager
def worker(name: str, target: Any, *args: Any) -> Iterator[Pipe]:
    """Run `target(*args, pipe)` for a contender in a new process, or in a thread for a thread lock.

    Yields:
        The other end of the pipe.
    """
    if name == "thread":
        pipe, their_pipe = multiprocessing.Pipe()
        thread = threading.Thread(target=target, args=(*args, their_pipe))
        thread.start()
        yield pipe
        thread.join()
        return
    # Fork from a process that has only imported this module, so that the child inherits no connection and no thread.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pipe, their_pipe = context.Pipe()
    child = context.Process(target=target, args=(*args, their_pipe), daemon=True)
    child.start()
    their_pipe.close()
    try:
        yield pipe
        child.join(10)
    finally:
        child.kill()
        child.join()
        pipe.close()
