"""`python -m loadtest.bench strategies`: what it prints has the form that it promises. Not how fast they are."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from loadtest.bench import locks, strategies
from tests.loadtest.conftest import CHECKOUT

pytestmark = pytest.mark.slow

FIGURES = {
    *("orders_per_s", "refusals_per_s", "p50_ms", "p95_ms", "p99_ms", "client_min", "client_max", "generator_cpu"),
    *("least", "most", "others", "conserved"),
}
COSTS = {"sql_per_order", "redis_per_order", "recovery_s"}


def test_the_last_line_has_every_figure_and_a_dead_holder_of_a_lock_is_waited_for(environment: dict[str, str]) -> None:
    sizes = ["--rounds", "1", "--seconds", "0.2", "--clients", "4", "--only", "redis-lock", "guarded-update"]
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.bench", "strategies", "--recovery", "--json", *sizes],
        cwd=CHECKOUT,
        env={**environment, "STOCK_LOCK_TTL": "4"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert set(said) == {
        *("machine", "empty", "peer:redis-py-lock", "strategies", "segments", "queue_saved_per_s", "copy_per_s"),
        *("redis_lock_alone_per_s", "pgbench_hot_row_per_s"),
    }
    assert said["empty"]["requests_per_s"] > 0
    alone = said["redis_lock_alone_per_s"], said["pgbench_hot_row_per_s"]
    saved = said["queue_saved_per_s"], said["copy_per_s"]
    assert all(per_s > 0 for per_s in (*saved, *alone, *said["segments"].values()))
    assert set(said["segments"]) == {"1", "5"}
    assert set(said["strategies"]) == {"redis-lock", "guarded-update"}
    assert set(said["peer:redis-py-lock"]) == FIGURES
    locked, unlocked = said["strategies"]["redis-lock"], said["strategies"]["guarded-update"]
    assert set(locked) == set(unlocked) == FIGURES | COSTS
    assert all(row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] for row in (locked, unlocked))
    assert all(0 <= row["client_min"] <= row["client_max"] for row in (locked, unlocked))
    # Nobody can know that the holder is dead before its time to live is over; a transaction ends with its connection.
    assert locked["recovery_s"] > 2 > unlocked["recovery_s"]


@pytest.mark.parametrize("what", ["strategies", "locks"])
@pytest.mark.parametrize("wrong", [("--rounds", "0"), ("--seconds", "0"), ("--seconds", "soon")], ids=" ".join)
def test_what_nothing_can_be_measured_with_is_refused(what: str, wrong: tuple[str, str]) -> None:
    module = {"strategies": strategies, "locks": locks}[what]
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    with pytest.raises(SystemExit) as refused:
        parser.parse_args(wrong)
    assert refused.value.code == 2
    parser.parse_args([wrong[0], "1"])
