"""`python -m loadtest.bench retry-delay`: the form of its output. The delay reaches the lock."""

from __future__ import annotations

import argparse
import os
from functools import partial

import pytest

from loadtest.bench import retry_delay
from tests.loadtest.conftest import bench, report_of
from tests.lock_servers import needs_zookeeper

bench_delays = partial(bench, os.environ, "retry-delay", "--rounds", "1", "--handoffs", "3", "--idle", "1")


@pytest.mark.slow
@needs_zookeeper
def test_a_waiter_asks_less_often_with_a_longer_delay() -> None:
    report = report_of(bench_delays("--delays", "200", "10", "200", "--json"))
    assert report["machine"] == {"cpus": os.cpu_count(), "nodes": 5, "rounds": 1, "handoffs": 3, "seconds": 1.0}
    short, long, *told = report["locks"]
    assert [(row["lock"], row["retry_delay_ms"]) for row in report["locks"]] == [
        ("redlock", 10.0),
        ("redlock", 200.0),
        ("redis", None),
        ("zookeeper", None),
    ]
    assert all(0 < row["handoff_p50_ms"] <= row["handoff_p99_ms"] for row in report["locks"])
    assert short["idle_commands_per_s"] > 2 * long["idle_commands_per_s"] > 0
    assert all(row["idle_commands_per_s"] < long["idle_commands_per_s"] for row in told)


def test_percentiles_are_in_milliseconds() -> None:
    assert retry_delay.figures([0.001] * 98 + [0.5] * 3) == {"handoff_p50_ms": 1.0, "handoff_p99_ms": 500.0}
    assert retry_delay.figures([0.25]) == {"handoff_p50_ms": 250.0, "handoff_p99_ms": 250.0}


def test_the_table_shows_every_figure() -> None:
    rows = [
        {"lock": "redlock", "retry_delay_ms": 5.0, **retry_delay.figures([0.004]), "idle_commands_per_s": 512.5},
        {"lock": "redis", "retry_delay_ms": None, **retry_delay.figures([0.0005]), "idle_commands_per_s": 0.0},
    ]
    assert [list(column.cells) for column in retry_delay.report_table(rows).columns] == [
        ["redlock 5 ms", "redis"],
        ["4", "0.5"],
        ["4", "0.5"],
        ["512.5", "0"],
    ]


@pytest.mark.parametrize("wrong", [("--delays", "0"), ("--delays", "-5"), ("--delays", "1001"), ("--rounds", "0")])
def test_an_unusable_size_is_refused(wrong: tuple[str, str]) -> None:
    parser = argparse.ArgumentParser()
    retry_delay.add_arguments(parser)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(wrong)
    parser.parse_args([wrong[0], "1"])


def test_a_count_that_outlasts_the_ttl_is_refused() -> None:
    parser = argparse.ArgumentParser()
    retry_delay.add_arguments(parser)
    with pytest.raises(SystemExit, match="--idle: at most 9 seconds"):
        retry_delay.run(parser.parse_args(["--idle", "10"]))
