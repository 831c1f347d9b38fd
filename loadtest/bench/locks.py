"""Locks side by side: an uncontended pair, a hand-over, eight greedy processes, and how much an idle waiter says."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.arguments import positive, seconds
from loadtest.bench.contenders import ALL, LOCKS, ON_ZOOKEEPER, PEERS, TTL, Addresses, Take, session
from locking.postgres import create_lock_tables
from servers.etcd import Etcd
from servers.folder import RunFolder
from servers.postgres import Postgres
from servers.valkey import Valkey
from servers.zookeeper import ZooKeeper

GREEDY = 8
"""Processes that take the lock again as soon as they have released it."""

PHASE = 0.12
"""Seconds. The longest wait before a release: longer than any waiter's pause, so that none profits from its beat."""

LEGEND = (
    "pair: acquire and release, uncontended. hand-over: from before a release until a waiter in another process holds "
    "the lock. greedy: turns of the unluckiest and of the luckiest of eight processes. idle: of a waiter, without what "
    "its holder sends. One machine for all, so only ratios count."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=positive, default=3, help="rounds; medians are reported (3)")
    parser.add_argument("--pairs", type=positive, default=300, help="uncontended pairs a round (300)")
    parser.add_argument("--handoffs", type=positive, default=40, help="hand-overs a round (40)")
    parser.add_argument("--seconds", type=seconds, default=1.0, help="of greed a round (1)")
    parser.add_argument("--idle", type=seconds, default=8.0, help="seconds to listen to an idle waiter, once (8)")
    parser.add_argument(
        "--recovery",
        action="store_true",
        help="also how long a killed holder keeps others out, once, in the JSON",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=sorted(ALL),
        metavar="NAME",
        help=f"of {', '.join(ALL)}; ZooKeeper has to be installed for {' and '.join(ON_ZOOKEEPER)} alone",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure in turn, round by round, so that a slow moment of the machine meets all alike; pairs even one by one."""
    if options.idle > TTL - 1:
        raise SystemExit(f"--idle: {TTL - 1:g} seconds at most: some peers renew nothing, and their TTL is {TTL:g}.")
    console = Console(stderr=True)
    names = options.only or list(ALL)
    rounds: dict[str, list[dict[str, float | None]]] = {name: [] for name in names}
    with running(names) as at, console.status("") as status:
        for number in range(options.rounds):
            status.update(f"Round {number + 1} of {options.rounds}: pairs")
            alone = pairs(names, at, options.pairs)
            for name in names:
                status.update(f"Round {number + 1} of {options.rounds}: {name}")
                rounds[name].append({**alone[name], **measure(name, f"{name} {number}", at, options)})
        idle = {}
        for name in names:
            status.update(f"An idle waiter: {name}")
            idle[name] = idle_commands(name, at, options.idle)
        deaths: dict[str, dict[str, float | None]] = {}
        for name in names if options.recovery else ():
            status.update(f"The death of a holder: {name}")
            deaths[name] = {"recovery_s": recovery(name, at)}
    report = {
        name: {
            **{figure: middle([row[figure] for row in measured]) for figure in measured[0]},
            "idle_commands_per_s": idle[name],
            **deaths.get(name, {}),
        }
        for name, measured in rounds.items()
    }
    if options.json:
        print(  # noqa: T201
            json.dumps(
                {
                    "locks": {name: row for name, row in report.items() if name in LOCKS},
                    "peers": {name: row for name, row in report.items() if name in PEERS},
                }
            )
        )
    else:
        Console().print(table(report))
    return 0


@contextmanager
def running(names: Collection[str]) -> Iterator[Addresses]:
    """The servers that they want, of our own, whatever the settings say: what is measured shares nothing with a shop.

    Raises:
        ServerError: ZooKeeper is wanted and not installed, or one of them does not start.
    """
    outer = Path(tempfile.mkdtemp(prefix="lu-"))
    outer.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, outer, ignore_errors=True)
        folders = [RunFolder(outer / f"run{number}") for number in range(5)]
        for folder in folders:
            folder.create()
        valkeys = [Valkey(folder.valkey) for folder in folders]
        home = folders[0].path
        postgres, etcd, zookeeper = Postgres(folders[0].postgres), Etcd(home / "etcd"), ZooKeeper(home / "zookeeper")
        servers: list[Any] = [*valkeys, postgres, etcd]
        if any(name in ON_ZOOKEEPER for name in names):
            servers.append(zookeeper)
        for server in servers:
            server.start()
            stack.callback(server.stop)
        create_lock_tables(postgres.url)
        yield Addresses(
            [valkey.url for valkey in valkeys], postgres.url, zookeeper.hosts, (etcd.host, etcd.port), outer
        )


def measure(name: str, lock: str, at: Addresses, options: argparse.Namespace) -> dict[str, float | None]:
    """One round of a contender with others who want the same lock."""
    handed = handoffs(name, lock, at, options.handoffs)
    turns = greedy(name, lock, at, options.seconds)
    percentiles = [each * 1000 for each in quantiles(handed, n=100, method="inclusive")]
    return {
        "handoff_p50_ms": median(handed) * 1000,
        "handoff_p95_ms": percentiles[94],
        "handoff_p99_ms": percentiles[98],
        "greedy_min": min(turns),
        "greedy_max": max(turns),
    }


def pairs(names: Sequence[str], at: Addresses, count: int) -> dict[str, dict[str, float | None]]:
    """Microseconds of an uncontended pair, and the commands that it takes: one of each contender in turn.

    In another order each time: after one that lets the machine rest everybody is slower than after a quick one.
    """
    with ExitStack() as stack:
        mine = {name: stack.enter_context(session(name, at)) for name in names}
        takes = {name: one.make(f"{name} pair") for name, one in mine.items()}
        for take in takes.values():
            for _ in range(20):
                take()()
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(count):
            for name in random.sample(list(names), len(names)):
                take = takes[name]
                start = time.perf_counter()
                take()()
                times[name].append(time.perf_counter() - start)
        return {
            name: {"pair_us": median(times[name]) * 1e6, "commands_per_pair": commands(takes[name], mine[name].sent)}
            for name in names
        }


def commands(take: Take, sent: Callable[[], int] | None) -> float | None:
    """How many commands a pair sends."""
    if sent is None:
        return None
    before = sent()
    for _ in range(50):
        take()()
    return round((sent() - before) / 50, 1)


def handoffs(name: str, lock: str, at: Addresses, count: int) -> list[float]:
    """Seconds from before a release until a waiter holds the lock: in another process, but for a lock of threads."""
    if name == "thread":
        return _handoffs_to_a_thread(name, lock, at, count)
    with process(_wait_in_turn, name, lock, at) as pipe, session(name, at) as mine:
        take = mine.make(lock)
        pipe.recv()
        times = []
        for _ in range(count):
            release = take()
            pipe.send("wait")
            time.sleep(random.uniform(PHASE / 4, PHASE))  # noqa: S311
            start = time.monotonic()
            release()
            times.append(pipe.recv() - start)
        pipe.send("enough")
        return times


def _wait_in_turn(name: str, lock: str, at: Addresses, pipe: Pipe) -> None:
    with session(name, at) as mine:
        take = mine.make(lock)
        mine.make(f"{lock} warm-up")()()
        pipe.send("ready")
        while pipe.recv() == "wait":
            release = take()
            now = time.monotonic()
            release()
            pipe.send(now)


def _handoffs_to_a_thread(name: str, lock: str, at: Addresses, count: int) -> list[float]:
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=_wait_in_turn, args=(name, lock, at, theirs))
    thread.start()
    with session(name, at) as mine:
        take = mine.make(lock)
        ours.recv()
        times = []
        for _ in range(count):
            release = take()
            ours.send("wait")
            time.sleep(random.uniform(PHASE / 4, PHASE))  # noqa: S311
            start = time.monotonic()
            release()
            times.append(ours.recv() - start)
    ours.send("enough")
    thread.join()
    return times


def greedy(name: str, lock: str, at: Addresses, seconds: float) -> list[int]:
    """How many turns each of eight processes gets; threads, for a lock of threads."""
    with ExitStack() as stack:
        if name == "thread":
            pipes = []
            for _ in range(GREEDY):
                ours, theirs = multiprocessing.Pipe()
                thread = threading.Thread(target=_be_greedy, args=(name, lock, at, seconds, theirs))
                thread.start()
                stack.callback(thread.join)
                pipes.append(ours)
        else:
            pipes = [stack.enter_context(process(_be_greedy, name, lock, at, seconds)) for _ in range(GREEDY)]
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send("go")
        return [pipe.recv() for pipe in pipes]


def _be_greedy(name: str, lock: str, at: Addresses, seconds: float, pipe: Pipe) -> None:
    with session(name, at) as mine:
        take = mine.make(lock)
        mine.make(f"{lock} warm-up of {multiprocessing.current_process().name}")()()
        pipe.send("ready")
        pipe.recv()
        # The first quarter does not count: by then all are there.
        counts_from = time.monotonic() + seconds / 4
        until = counts_from + seconds
        turns = 0
        while (now := time.monotonic()) < until:
            take()()
            turns += now > counts_from
        pipe.send(turns)


def idle_commands(name: str, at: Addresses, seconds: float) -> float | None:
    """Commands a second that a waiter sends while nothing happens, and none of those that its holder sends.

    Each has a session of its own. Redis, etcd: what its client sends. ZooKeeper: what the server receives on its
    connection, so that the pings count. Postgres: all statements of this process but the renewals, as a holder sends
    nothing else.
    """
    with session(name, at) as holder, session(name, at) as mine:
        if mine.sent is None:
            return None
        release = holder.make(f"{name} idle")()
        waiter = threading.Thread(target=lambda: mine.make(f"{name} idle")()())
        waiter.start()
        time.sleep(1.0)  # it has asked, and sleeps or polls
        before = mine.sent()
        time.sleep(seconds)
        said = mine.sent() - before
        release()
        waiter.join()
        return round(said / seconds, 3)


def recovery(name: str, at: Addresses) -> float | None:
    """Seconds from the death of a process that holds the lock until a waiter in another one has it.

    None for a lock of threads, which dies with the only process that knows it.
    """
    if name == "thread":
        return None
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    holder = context.Process(target=_hold, args=(name, f"{name} death", at, theirs), daemon=True)
    with session(name, at) as mine:
        take = mine.make(f"{name} death")
        holder.start()
        try:
            ours.recv()
        finally:
            holder.kill()
        died = time.monotonic()
        take()()
        took = time.monotonic() - died
    holder.join()
    return round(took, 3)


def _hold(name: str, lock: str, at: Addresses, pipe: Pipe) -> None:
    with session(name, at) as mine:
        release = mine.make(lock)()
        pipe.send("held")
        threading.Event().wait()
        release()  # never: but a lease that nobody keeps is given back


@contextmanager
def process(target: Any, *args: Any) -> Iterator[Pipe]:
    """Run `target(*args, pipe)` in a process of its own, and yield the other end of the pipe.

    It is forked from one that has imported what they need and nothing else: no connection, no thread of ours.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe()
    child = context.Process(target=target, args=(*args, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours
        child.join(10)
    finally:
        child.kill()
        child.join()
        ours.close()


def middle(figures: list[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return round(median(known), 3) if known else None


def table(report: dict[str, dict[str, float | None]]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption_justify="left", caption=LEGEND)
    made.add_column("", no_wrap=True)
    for heading in ("pair µs", "commands", "hand-over p50 ms", "p99 ms", "greedy min", "max", "idle commands/s"):
        made.add_column(heading, justify="right")
    for name, row in report.items():
        if name == next(iter(PEERS)):
            made.add_section()
        figures = ("pair_us", "commands_per_pair", "handoff_p50_ms", "handoff_p99_ms", "greedy_min", "greedy_max")
        made.add_row(
            name,
            *("–" if (said := row[figure]) is None else f"{said:,.5g}" for figure in (*figures, "idle_commands_per_s")),
        )
    return made
