"""`python -m loadtest.bench locks`: measure our locks and widely used alternatives."""

from __future__ import annotations

import argparse
import json
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.arguments import positive, seconds
from loadtest.bench.addresses import ON_ZOOKEEPER, running_servers
from loadtest.bench.contenders import ALL, LOCKS, PEERS
from loadtest.bench.lock_measurements import contended, idle_commands, pairs, recovery
from loadtest.bench.lock_sessions import TTL

LEGEND = (
    "pair: acquire and release without contention. hand-over: from just before a release until a waiter in another "
    "process holds the lock. greedy: fewest and most turns of one of eight processes. idle: commands of a "
    "waiter, without those of the holder. redisson: the protocol of Redisson in Python, not the Java library. All run "
    "on one machine: compare ratios only."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=positive, default=3, help="rounds; the table shows medians (default: 3)")
    parser.add_argument("--pairs", type=positive, default=300, help="uncontended pairs per round (default: 300)")
    parser.add_argument("--handoffs", type=positive, default=40, help="hand-overs per round (default: 40)")
    parser.add_argument("--seconds", type=seconds, default=1.0, help="time of greedy processes per round (default: 1)")
    parser.add_argument(
        "--idle", type=seconds, default=8.0, help="time to count an idle waiter's commands (default: 8)"
    )
    parser.add_argument(
        "--recovery", action="store_true", help="add to the JSON how long a killed holder blocks others (measured once)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=sorted(ALL),
        metavar="NAME",
        help=f"contenders (default: all): {', '.join(ALL)}. {' and '.join(ON_ZOOKEEPER)} need an installed ZooKeeper",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure every lock once per round, so that a slow moment of the machine affects all locks alike.

    Then measure idle waiters and, if wanted, killed holders: once for each lock.
    """
    if options.idle > TTL - 1:
        raise SystemExit(f"--idle: at most {TTL - 1:g} seconds, since some peers do not renew and the TTL is {TTL:g}.")
    console = Console(stderr=True)
    names = options.only or list(ALL)
    rounds: dict[str, list[dict[str, float | None]]] = {name: [] for name in names}
    with running_servers(names) as at, console.status("") as status:
        for number in range(options.rounds):
            status.update(f"Round {number + 1} of {options.rounds}: pairs")
            uncontended = pairs(names, at, options.pairs)
            for name in names:
                status.update(f"Round {number + 1} of {options.rounds}: {name}")
                measured = contended(name, f"{name} {number}", at, count=options.handoffs, seconds=options.seconds)
                rounds[name].append({**uncontended[name], **measured})
        idle = {}
        for name in names:
            status.update(f"Idle waiter: {name}")
            idle[name] = idle_commands(name, at, options.idle)
        recoveries: dict[str, dict[str, float | None]] = {}
        for name in names if options.recovery else ():
            status.update(f"Killed holder: {name}")
            recoveries[name] = {"recovery_s": recovery(name, at)}
    report = {
        name: {
            **{figure: _median([row[figure] for row in measured]) for figure in measured[0]},
            "idle_commands_per_s": idle[name],
            **recoveries.get(name, {}),
        }
        for name, measured in rounds.items()
    }
    if options.json:
        locks, peers = ({name: row for name, row in report.items() if name in group} for group in (LOCKS, PEERS))
        print(json.dumps({"locks": locks, "peers": peers}))  # noqa: T201
    else:
        Console().print(report_table(report))
    return 0


def report_table(report: dict[str, dict[str, float | None]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption_justify="left", caption=LEGEND)
    table.add_column("", no_wrap=True)
    for heading in ("pair µs", "commands", "hand-over p50 ms", "p99 ms", "greedy min", "max", "idle commands/s"):
        table.add_column(heading, justify="right")
    for name, row in report.items():
        if name == next(iter(PEERS)):
            table.add_section()
        figures = ("pair_us", "commands_per_pair", "handoff_p50_ms", "handoff_p99_ms", "greedy_min", "greedy_max")
        table.add_row(
            name,
            *(
                "–" if (value := row[figure]) is None else f"{value:,.5g}"
                for figure in (*figures, "idle_commands_per_s")
            ),
        )
    return table


def _median(figures: list[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return round(median(known), 3) if known else None
