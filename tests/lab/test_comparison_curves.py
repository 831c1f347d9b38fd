"""The curves of the comparison page: what they show. The page's conclusions follow from the figures."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from lab.claims import comparisons, measuring, staleness
from lab.claims.comparisons import Part
from lab.claims.definitions import ROOT
from lab.management.commands.compare import Command
from lab.site.comparison.chart import BOTTOM, LEFT, NAME_HEIGHT, RIGHT, TOP, Series, line_chart
from loadtest.bench import bursts, clients
from loadtest.preparation import create_customers
from tests.lab.comparison_support import calls, contended, handed_over, left_out, page, segmented, store, stored
from tests.lock_servers import needs_zookeeper

pytestmark = pytest.mark.usefixtures("unhashed", "measured")

PAGE = "/lab/comparison/"
CURVES: dict[Part, str] = {"segments": "segments", "contention": "clients", "retry-delay": "locks"}
"""The parts with curves, and the key of the rows in each part's report."""
MISSING = "This has not been measured yet."
STALE = "Out of date: the code has changed since."


def change_rows(file: Path, part: Part, *rows: dict[str, Any]) -> None:
    store(file, part, "report", CURVES[part], value=rows)


def section(part: Part, language: str = "en") -> str:
    shown = " ".join(page(PAGE, language).split())
    return str(re.findall(rf'<section id="{part}".*?</section>', shown)[0])


def texts(tag: str, shown: str) -> list[str]:
    return [re.sub("<.*?>", "", each) for each in re.findall(rf"<{tag}\b.*?</{tag}>", shown)]


def said(part: Part) -> str:
    return " ".join(texts("li", section(part)))


TABLES: dict[Part, list[str]] = {
    "segments": [
        "Segments0 ms of work20 ms of workAll locks",
        "1200/s 1.0 ×, CPU 75%40/s 1.0 ×, CPU 20%0/33",
        "2320/s 1.6 ×, CPU 95%80/s 2.0 ×, CPU 30%1/33",
        "5340/s 1.7 ×, CPU 100%190/s 4.8 ×, CPU 60%3/33",
    ],
    "contention": [
        "ClientsFailed updates per orderOrders: optimisticOrders: row-lockWait: optimisticWait: row-lock",
        "10.0300/s310/s3 ms p95 9 ms3 ms p95 9 ms",
        "162.5200/s400/s70 ms p95 210 ms40 ms p95 120 ms",
        "25612.080/s350/s7,000 ms p95 21,000 ms700 ms p95 2,100 ms",
    ],
    "retry-delay": [
        "LockHand-over p50Hand-over p99Commands of an idle waiter",
        "redlock, 5 ms4.0 ms8.0 ms500/s",
        "redlock, 10 ms5.0 ms10 ms310/s",
        "redlock, 100 ms60 ms120 ms50/s",
        "redis0.6 ms1.2 ms0/s",
        "zookeeper4.6 ms9.2 ms0.5/s",
    ],
}
"""The rows of each table, without the borders of its cells."""
SIZES: dict[Part, str] = {
    "segments": "median of 3 × 2 s with 64 clients",
    "retry-delay": "Each line is of 2 × 20 hand-overs to another process",
}


def charts(part: Part) -> list[tuple[int, int]]:
    """Return the numbers of lines and of points of each chart."""
    found = re.findall("<figure.*?</figure>", section(part))
    return [(chart.count('class="line"'), chart.count("<circle")) for chart in found]


def test_each_curve_is_a_line() -> None:
    """Each measured series is a line with points. The claim, and a lock without a delay, are lines without points."""
    assert charts("segments") == [(3, 6)]
    assert {"as claimed", "0 ms", "20 ms", "5×", "segments"} <= set(texts("text", section("segments")))
    assert charts("contention") == [(1, 3), (2, 6), (2, 6)]
    captions = ["Failed updates per order", "Orders per second", "Median wait for an order, in ms"]
    assert texts("figcaption", section("contention")) == captions
    assert charts("retry-delay") == [(4, 6), (1, 3)]
    names = {"p50", "p99", "redis", "zookeeper", "retry delay, in ms"}
    assert names <= set(texts("text", section("retry-delay").partition("</figure>")[0]))


CONCLUSIONS: dict[Part, tuple[str, ...]] = {
    "segments": (
        "Five segments sold this many times the orders of one lock: 1.7 with 0 ms, 4.8 with 20 ms.",
        "The claim holds, to within a tenth, with 20 ms of work; it does not with 0 ms.",
        "up to 2 segments with 0 ms, 5 segments with 20 ms. No more than 5 segments were measured.",
        "Where a step gained less, the processors were at least 100% busy.",
        "When 100 units were sold in 33 orders of 3",
        "1 with 2 segments, 3 with 5 segments.",
    ),
    "contention": (
        "Failed updates for each order placed: 0.0 with 1 client, 2.5 with 16 clients, 12.0 with 256 clients.",
        "The claim holds: from 16 clients on, more updates failed than succeeded.",
        "optimistic sold at least nine orders for every ten of row-lock; from 16 clients on, it sold less.",
        "half of the orders waited longer than 7,000 ms with optimistic and 700 ms with row-lock",
        "5.0% of the answers of optimistic were “try again”: all 20 attempts had failed.",
    ),
    "retry-delay": (
        "With the default of 100 ms, half of the hand-overs of redlock take longer than 60 ms; p99 is 120 ms.",
        "Each idle waiter sends 50 commands per second.",
        "With no measured delay does redlock hand over as soon as redis, whose p50 is 0.6 ms: even with 5 ms",
        "it takes 6.7 times as long. Each idle waiter then sends 500 commands per second, and one of redis 0.",
        "With a retry delay of 10 ms or less, redlock hands over as soon as zookeeper, whose p50 is 4.6 ms.",
        "Each idle waiter then sends 310 commands per second, and one of zookeeper 0.5.",
    ),
}


@pytest.mark.parametrize("part", CONCLUSIONS)
def test_a_table_has_every_figure_and_the_claim_is_judged(part: Part) -> None:
    assert texts("tr", section(part)) == TABLES[part]
    assert SIZES.get(part, "") in section(part)
    assert [sentence for sentence in CONCLUSIONS[part] if sentence not in said(part)] == []
    assert "less than a tenth" not in said("retry-delay")


LITTLE_WORK = segmented(1, 0, (200.0, 0.5), (40.0, 0.2))
CLAIM_HOLDS, UP_TO = "The claim holds, to within a tenth, with every measured amount of work.", "up to the 5 that were"
CLAIM_FAILS, GAINED_LESS = "The claim does not hold, even to within a tenth", "Where a step gained less"
IDLE = "the processors were 25% to 60% busy. Where they had time left"
FAILING_FEW = (contended(300, 3), contended(300, 9, 1.0))
FAILING_MANY = (contended(200, 3, 1.5), contended(100, 9, 3.0))
FAILING_LESS = (contended(100, 3, 1.5), contended(300, 9, 0.5))
"""Many failures with few clients, and few with many clients, are no trend."""
NOT_HERE, CLOSE = "The claim does not hold here", "The curves stay close"
EVERYWHERE = "sold less than nine orders for every ten of row-lock with every number of clients"
NO_GAIN = "A delay below {} ms shortens the hand-over by less than a tenth."
NEVER = "With no measured delay does redlock hand over as soon as zookeeper"


def of_strategies(optimistic: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = zip((2, 8), optimistic, strict=True)
    return [{"clients": clients, "optimistic": ours, "row-lock": contended(310, 3)} for clients, ours in rows]


def of_locks(*p50: float) -> list[dict[str, Any]]:
    redlock = [handed_over("redlock", delay, ms, 50.0) for delay, ms in zip((5.0, 10.0, 100.0), p50, strict=True)]
    return [*redlock, handed_over("zookeeper", None, 4.6, 0.5)]


@pytest.mark.parametrize(
    ("part", "rows", "sentences", "left_out"),
    [
        ("segments", [LITTLE_WORK, segmented(5, 3, (900, 0.9), (180, 0.5))], (CLAIM_HOLDS, UP_TO), GAINED_LESS),
        ("segments", [LITTLE_WORK, segmented(5, 3, (899, 0.9), (179, 0.5))], (CLAIM_FAILS, UP_TO), GAINED_LESS),
        ("segments", [LITTLE_WORK, segmented(5, 3, (210, 0.6), (41, 0.25))], (IDLE,), CLAIM_HOLDS),
        ("contention", of_strategies(FAILING_FEW), (NOT_HERE, f"{CLOSE}: with 8 clients"), "try again"),
        ("contention", of_strategies(FAILING_MANY), ("The claim holds: from 2 clients on", EVERYWHERE), "try again"),
        ("contention", of_strategies(FAILING_LESS), (NOT_HERE, CLOSE), "try again"),
        ("retry-delay", of_locks(9.0, 4.0, 60.0), (NEVER,), "or less, redlock"),  # One longer delay is fast by chance.
        ("retry-delay", of_locks(4.0, 4.1, 4.2), ("With a retry delay of 100 ms or less", NO_GAIN.format(100)), NEVER),
        (
            "retry-delay",
            of_locks(7.0, 7.5, 60.0),
            (f"{NO_GAIN.format(10)} Each pause is at least 10 times",),
            "or less, redlock",
        ),
    ],
)
def test_the_conclusions_follow_from_the_figures(
    file: Path, part: Part, rows: Sequence[dict[str, Any]], sentences: Sequence[str], left_out: str
) -> None:
    change_rows(file, part, *rows)
    assert [sentence for sentence in sentences if sentence not in said(part)] == []
    assert left_out not in said(part)


@pytest.mark.parametrize("part", CURVES)
def test_no_conclusion_rests_on_figures_that_are_out_of_date(file: Path, part: Part) -> None:
    assert texts("li", section(part))
    store(file, part, "source", value="0" * 64)
    shown = section(part)
    assert STALE in shown
    assert texts("li", shown) == []
    assert "<figure" in shown


@pytest.mark.parametrize("part", CURVES)
def test_the_sections_are_translated(part: Part) -> None:
    english, chinese = section(part), section(part, "zh-hans")
    for tag in ("h2", "li", "figcaption", "p"):
        ours, theirs = texts(tag, english), texts(tag, chinese)
        assert len(ours) == len(theirs)
        assert not set(ours) & set(theirs)
    # Both languages show the same figures.
    assert set(re.findall(r"[\d.,]*\d", " ".join(texts("td", english)))) == set(
        re.findall(r"[\d.,]*\d", " ".join(texts("td", chinese)))
    )


ONE_SEGMENT = segmented(1, 0, (9.0, 0.5), (40.0, 0.2))
REDLOCK, REDIS = handed_over("redlock", 5.0, 4.0, 500.0), handed_over("redis", None, 0.6, 0.0)


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        *((part, None) for part in CURVES),
        *((part, []) for part in CURVES),
        ("segments", [segmented(1, 0, (0.0, 0.5), (40.0, 0.2))]),
        ("segments", [ONE_SEGMENT, {"segments": 2, "held_all": 0, "work": []}]),
        ("contention", [{"clients": 1, "optimistic": contended(1, 0), "row-lock": contended(1, 1)}]),
        ("contention", [{"clients": 1, "optimistic": contended(1, 1)}]),
        ("retry-delay", [REDLOCK]),
        ("retry-delay", [REDIS]),
        ("retry-delay", [handed_over("redlock", 5.0, 0.0, 500.0), REDIS]),
    ],
)
def test_a_report_without_a_curve_counts_as_not_measured(
    file: Path, part: Part, rows: Sequence[dict[str, Any]] | None
) -> None:
    if rows is None:
        store(file, part, "report", value={})
    else:
        change_rows(file, part, *rows)
    shown = section(part)
    assert MISSING in shown
    assert "<figure" not in shown


def test_a_single_point_is_drawn(file: Path) -> None:
    change_rows(file, "segments", ONE_SEGMENT)
    assert "<figure" in section("segments")
    change_rows(file, "contention", {"clients": 1, "optimistic": contended(1, 1), "row-lock": contended(1, 1)})
    assert "<figure" in section("contention")
    change_rows(file, "retry-delay", REDLOCK, REDIS)
    assert "<figure" in section("retry-delay")


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("values", [(1, 20), (0.004, 7), (3, 3), (812, 12_345), (19.9, 20.1)])
def test_a_chart_stays_within_its_plot(values: tuple[float, float], logarithmic: bool) -> None:
    low, high = values
    series = [Series(str(number), "first", [(1, low), (2, high), (256, high)]) for number in range(5)]
    chart = line_chart("y", "x", series, logarithmic=logarithmic)
    points = [(float(x), float(y)) for line in chart.lines for x, y in line.dots]
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in points)
    assert 1 <= len(chart.y_ticks) <= 7
    names = sorted(float(line.name_at) for line in chart.lines)
    assert all(after - before >= NAME_HEIGHT - 0.11 for before, after in itertools.pairwise(names))
    assert TOP <= names[0] <= names[-1] <= BOTTOM


def test_a_logarithmic_chart_has_the_same_step_for_the_same_ratio() -> None:
    chart = line_chart("y", "x", [Series("", "first", [(1, 1), (2, 2), (4, 4)])], logarithmic=True)
    (first, second, third) = [(float(x), float(y)) for x, y in chart.lines[0].dots]
    assert second[0] - first[0] == pytest.approx(third[0] - second[0], abs=0.11)
    assert first[1] - second[1] == pytest.approx(second[1] - third[1], abs=0.11)
    # A linear chart begins at zero.
    chart = line_chart("y", "x", [Series("", "first", [(1, 0), (256, 12)])], logarithmic=False)
    assert [tick.text for tick in chart.y_ticks] == ["0", "5", "10", "15"]
    assert chart.lines[0].dots[0] == (f"{LEFT:.1f}", f"{BOTTOM:.1f}")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize(
    ("part", "strategy"),
    [
        ("contention", "optimistic"),
        pytest.param("contention", "row-lock", marks=pytest.mark.slow),
        pytest.param("segments", "segmented-lock", marks=pytest.mark.slow),
    ],
)
def test_all_that_runs_for_a_figure_is_hashed(part: Part, strategy: str) -> None:
    customers = create_customers(2)
    with calls(threading) as called:
        assert bursts.measure(clients.run, strategy, customers, seconds=60, units=5).placed == 5
    assert left_out(part, called, least=5) == []


IMPORTED = """
import sys
from importlib import import_module
import django
django.setup()
for modules in sys.argv[1:]:
    for name in [name for name in sys.modules if name.startswith("loadtest.bench")]:
        del sys.modules[name]
    for module in modules.split():
        import_module(f"loadtest.bench.{module}")
    print(*(name for name in sys.modules if name.startswith("loadtest.bench.")))
"""
BENCHMARKS: dict[Part, tuple[str, str]] = {
    "strategies": ("growth strategies wsgi", "views"),
    "locks": ("locks", "redisson_recipe"),
    "segments": ("segments", "client_processes"),
    "contention": ("contention", "client_processes"),
    "retry-delay": ("retry_delay", "redisson_recipe"),
}
"""For each part, the modules that measure it and a file that they import."""


@pytest.mark.slow
def test_all_that_a_benchmark_imports_from_its_folder_is_hashed() -> None:
    command = [sys.executable, "-c", IMPORTED, *(modules for modules, _ in BENCHMARKS.values())]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "loadtest.bench.settings"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    for (part, (_, among)), names in zip(BENCHMARKS.items(), done.stdout.splitlines(), strict=True):
        imported = {f"{name.replace('.', '/')}.py" for name in names.split()}
        assert f"loadtest/bench/{among}.py" in imported, part
        assert [file for file in imported if not file.startswith(staleness.MEASURED[part])] == [], part


COMMANDS: dict[Part, str] = {
    "segments": "--segments 1 2 --work 0 --clients 4 --seconds 1",
    "contention": "--clients 1 6 --seconds 1",
    "retry-delay": "--delays 200 10 200 --handoffs 3 --idle 1",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[needs_zookeeper] if part == "retry-delay" else []) for part in COMMANDS]
)
def test_the_command_stores_a_curve_that_a_page_shows(file: Path, monkeypatch: pytest.MonkeyPatch, part: Part) -> None:
    file.write_text(json.dumps({"locks": stored()["locks"]}))
    assert MISSING in section(part)
    monkeypatch.setitem(measuring.SHORT, part, ("--rounds", "1", *COMMANDS[part].split()))
    call_command(Command(), part, short=True)

    assert json.loads(file.read_text())["locks"] == stored()["locks"]
    measured = comparisons.load(part)
    assert (measured.short, measured.stale) == (True, False)
    rows: Any = measured.rows
    if part == "segments":
        assert [row.segments for row in rows] == [1, 2]
        assert all(0 < sale.cpu <= 1 for row in rows for sale in row.sales)
    elif part == "contention":
        assert [row.clients for row in rows] == [1, 6]
        assert rows[1].optimistic.failed_per_order > 0, "clients of several processes: the report adds them up"
    else:
        short, long, *told = rows
        delays = [("redlock", 10.0), ("redlock", 200.0), ("redis", None), ("zookeeper", None)]
        assert [(row.lock, row.retry_delay_ms) for row in rows] == delays
        assert short.commands_per_s > 2 * long.commands_per_s > 0
        assert all(row.commands_per_s < long.commands_per_s for row in told)
    assert texts("li", section(part)), "the page draws conclusions"
    assert "This was a short run" in section(part)
