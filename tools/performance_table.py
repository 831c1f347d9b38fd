"""Write the table of goals in docs/performance.md from the stored comparison of strategies.

    python tools/performance_table.py           write it
    python tools/performance_table.py --check   exit status 1 if it would change

The comparison is lab/claims/comparison.json, which `manage.py lab refresh` measures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
STORED = ROOT / "lab" / "claims" / "comparison.json"
BEGIN, END = "<!-- figures: make refresh -->", "<!-- end of figures -->"
QUEUES = {"lua-queue"}
"""Strategies that answer before the order is saved in Postgres."""


def main(arguments: list[str]) -> int:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    stored = json.loads(STORED.read_text())["strategies"]
    written = f"{before}{BEGIN}\n{table(stored['made'], stored['report'])}\n{END}{after}"
    if written == page:
        return 0
    if "--check" in arguments:
        print(f"{PAGE.relative_to(ROOT)} is out of date: make refresh", file=sys.stderr)  # noqa: T201
        return 1
    PAGE.write_text(written)
    return 0


def table(made: str, report: Mapping[str, Any]) -> str:
    """Return the table of goals in Markdown.

    Args:
        made: the day of the measurement.
        report: the JSON of `python -m loadtest.bench strategies --json`.
    """
    if "plain" not in report:
        return "The stored comparison is older than the plain endpoint: `make refresh` measures the goals."
    machine = report["machine"]
    processors, clients, rounds = machine["cpus"], machine["clients"], machine["rounds"]
    lines = [
        f"Measured on {made}: {processors} processors, {clients} clients, medians of {rounds} interleaved rounds.",
        "",
        "| figure | measured | at least | aim | |",
        "|---|---|---|---|---|",
    ]
    for name, figure, least, aim, more_is_better in goals(report):
        met = figure >= least if more_is_better else figure <= least
        reached = figure >= aim if more_is_better else figure <= aim
        verdict = "aim reached" if reached else "met" if met else "**missed**"
        lines.append(f"| {name} | {figure:.2f} | {least} | {aim} | {verdict} |")
    best = fastest(report)
    plain, durable = report["plain"], report["strategies"][best]
    steal = report["machine"]["steal"]
    said = (
        f"The plain endpoint answered {plain['requests_per_s']:.0f} requests a second at {plain['cpu_ms']:.2f} ms of "
        f"CPU time, `{best}` {durable['orders_per_s']:.0f} orders at {durable['cpu_ms']:.2f} ms. During the run, the "
        f"host gave {100 * steal:.0f} % of the processors' time to other machines."
    )
    lines += ["", said]
    return "\n".join(lines)


def fastest(report: Mapping[str, Any]) -> str:
    """Return the fastest strategy, in orders per second, of those that save the order before they answer."""
    rows = report["strategies"]
    best: str = max(rows.keys() - QUEUES, key=lambda name: float(rows[name]["orders_per_s"]))
    return best


def goals(report: Mapping[str, Any]) -> Iterator[tuple[str, float, float, float, bool]]:
    """Yield each goal: name, measured figure, limit that it must meet, stricter aim, and whether more is better."""
    plain, rows, peer = report["plain"], report["strategies"], report["peer:redis-py-lock"]
    best = fastest(report)
    durable, guarded, locked = rows[best], rows["guarded-update"], rows["redis-lock"]
    rate = durable["orders_per_s"]
    cost = [row["cpu_ms"] for row in report["cost_growth"]]
    yield f"fastest durable strategy (`{best}`), orders/s ÷ plain", rate / plain["requests_per_s"], 0.75, 1.0, True
    yield "its CPU ms an order ÷ CPU ms of a plain request", durable["cpu_ms"] / plain["cpu_ms"], 1.5, 1.1, False
    yield "`guarded-update`, CPU ms ÷ plain", guarded["cpu_ms"] / plain["cpu_ms"], 2.0, 1.6, False
    yield "fastest durable ÷ pgbench's hot row", rate / report["pgbench_hot_row_per_s"], 1.0, 1.5, True
    yield "fastest durable ÷ redis-py's lock in the view", rate / peer["orders_per_s"], 6, 10, True
    alone = locked["orders_per_s"] / report["redis_lock_alone_per_s"]
    yield "`redis-lock` ÷ one client alone in the same section", alone, 0.75, 0.85, True
    yield "`redis-lock` ÷ redis-py's lock", locked["orders_per_s"] / peer["orders_per_s"], 1.3, 2, True
    refusal = durable["refusal_cpu_ms"] / plain["cpu_ms"]
    yield "CPU ms of a refusal after sold out ÷ plain", refusal, 1.0, 0.5, False
    yield "refusals/s ÷ plain", durable["refusals_per_s"] / plain["requests_per_s"], 1.0, 1.5, True
    yield (
        "the default (`group-commit`) ÷ the fastest durable",
        rows["group-commit"]["orders_per_s"] / rate,
        0.7,
        0.9,
        True,
    )
    yield "queue saved ÷ COPY", report["queue_saved_per_s"] / report["copy_per_s"], 0.25, 0.5, True
    yield (
        "cost growth: the dearest order ÷ the cheapest, 1 to 1,000 SKUs, 8 to 512 clients",
        max(cost) / min(cost),
        1.3,
        1.0,
        False,
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
