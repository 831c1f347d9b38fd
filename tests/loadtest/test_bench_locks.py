"""`python -m loadtest.bench locks`: what it prints has the form that it promises. Not what the figures are."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from loadtest.bench.contenders import ALL, LOCKS, PEERS, TTL
from servers import zookeeper

FIGURES = {
    "pair_us",
    "handoff_p50_ms",
    "handoff_p95_ms",
    "handoff_p99_ms",
    "greedy_min",
    "greedy_max",
    "commands_per_pair",
    "idle_commands_per_s",
}


@pytest.mark.skipif(
    not zookeeper.available() and not os.environ.get("CI"),
    reason="ZooKeeper is not installed; on Debian: apt-get install zookeeper default-jre-headless",
)
def test_the_last_line_is_one_json_object_with_all_locks_and_peers() -> None:
    command = [sys.executable, "-m", "loadtest.bench", "locks", "--json"]
    sizes = ["--rounds", "1", "--pairs", "3", "--handoffs", "2", "--seconds", "0.1", "--idle", "0.2"]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (set(said["locks"]), set(said["peers"])) == (set(LOCKS), set(PEERS))
    rows = said["locks"] | said["peers"]
    assert {name: set(row) for name, row in rows.items()} == dict.fromkeys(ALL, FIGURES)
    assert all(isinstance(figure, int | float) for row in rows.values() for figure in row.values())
    assert rows["redis"]["commands_per_pair"] == rows["redis-py"]["commands_per_pair"] == 2
    assert rows["redis"]["idle_commands_per_s"] < rows["redis-py"]["idle_commands_per_s"]


def test_a_peer_whose_holder_dies_is_waited_for_until_its_time_is_over() -> None:
    """Its waiter is blocked for longer than redis-py waits for an answer unless told otherwise."""
    command = [sys.executable, "-m", "loadtest.bench", "locks", "--recovery", "--only", "python-redis-lock", "--json"]
    sizes = ["--rounds", "1", "--pairs", "3", "--handoffs", "2", "--seconds", "0.1", "--idle", "0.2"]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["peers"].values()
    assert TTL / 2 < row["recovery_s"] < 2 * TTL
