"""`python -m loadtest.bench locks`: what it prints has the form that it promises. Not what the figures are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.bench.contenders import ALL, LOCKS, PEERS, TTL, Addresses, session
from loadtest.bench.locks import running
from locking import Lease
from locking.renewal import watchdog
from servers import zookeeper

pytestmark = pytest.mark.slow

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


needs_zookeeper = pytest.mark.skipif(
    not zookeeper.available() and not os.environ.get("CI"),
    reason="ZooKeeper is not installed; on Debian: apt-get install zookeeper default-jre-headless",
)


@needs_zookeeper
def test_the_last_line_is_one_json_object_with_all_locks_and_peers() -> None:
    command = [sys.executable, "-m", "loadtest.bench", "locks", "--json"]
    sizes = ["--rounds", "1", "--pairs", "3", "--handoffs", "2", "--seconds", "0.1", "--idle", "0.2"]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=280, check=False)
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
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["peers"].values()
    assert TTL / 2 < row["recovery_s"] < 2 * TTL


def test_without_zookeeper_it_says_what_to_install_and_measures_the_others(tmp_path: Path) -> None:
    """Java is looked up on the PATH. What needs no ZooKeeper must not start one: that would fail in the same way."""
    command = [sys.executable, "-m", "loadtest.bench", "locks", "--json"]
    sizes = ["--rounds", "1", "--pairs", "3", "--handoffs", "2", "--seconds", "0.1", "--idle", "0.2"]
    without = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=60, check=False, env=without)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (2, ["ZooKeeper is not installed: " + zookeeper.INSTALL])
    alone = [*command, *sizes, "--only", "redis"]
    done = subprocess.run(alone, capture_output=True, text=True, timeout=60, check=False, env=without)
    assert (done.returncode, list(json.loads(done.stdout.splitlines()[-1])["locks"])) == (0, ["redis"]), done.stderr


@pytest.fixture(scope="module")
def at() -> Iterator[Addresses]:
    with running(ALL) as addresses:
        yield addresses


@needs_zookeeper
@pytest.mark.parametrize("name", ["zookeeper", "etcd", "insert"])
def test_what_a_holder_sends_is_not_counted_as_a_waiters(at: Addresses, name: str) -> None:
    """It renews its lease twenty times, and the other one is only there. What that one sends counts in full."""
    with session(name, at) as holder, session(name, at) as mine:
        assert mine.sent is not None
        release = holder.make("held")()
        lease = release.__self__
        assert isinstance(lease, Lease)
        renewer = watchdog._watched[lease.token].renewer
        assert renewer is not None
        before = mine.sent()
        assert [renewer.renew([lease], 5.0) for _ in range(20)] == [[True]] * 20
        assert mine.sent() - before <= 1  # a ping of its own session
        before = mine.sent()
        for _ in range(10):
            mine.make("mine")()()
        assert mine.sent() - before >= 20
        release()
