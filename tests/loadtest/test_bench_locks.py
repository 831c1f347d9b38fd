"""`python -m loadtest.bench locks`: the form of its output, and what it counts."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from loadtest.bench.addresses import running_servers
from loadtest.bench.contenders import LOCKS, PEERS, session
from loadtest.bench.lock_sessions import TTL
from locking import Lease
from locking.renewal import watchdog
from servers import zookeeper
from tests.loadtest.conftest import bench, report_of
from tests.lock_servers import needs_zookeeper

pytestmark = pytest.mark.slow

FIGURES = {
    *("pair_us", "handoff_p50_ms", "handoff_p95_ms", "handoff_p99_ms", "greedy_min", "greedy_max"),
    *("commands_per_pair", "idle_commands_per_s"),
}


SIZES = ["--rounds", "1", "--pairs", "3", "--handoffs", "2", "--seconds", "0.1", "--idle", "0.2"]
bench_locks = partial(bench, os.environ, "locks", "--json", *SIZES)


@needs_zookeeper
def test_the_last_line_is_json_with_all_locks_and_peers() -> None:
    report = report_of(bench_locks())
    assert (set(report["locks"]), set(report["peers"])) == (set(LOCKS), set(PEERS))
    rows = report["locks"] | report["peers"]
    assert all(set(row) == FIGURES for row in rows.values())
    assert all(isinstance(figure, int | float) for row in rows.values() for figure in row.values())
    assert rows["redis"]["commands_per_pair"] == rows["redis-py"]["commands_per_pair"] == 2
    assert rows["redis"]["idle_commands_per_s"] < rows["redis-py"]["idle_commands_per_s"]


def test_recovery_of_a_peer_takes_its_ttl() -> None:
    """A peer's waiter gets the lock of a killed holder after the TTL. No socket timeout ends its wait earlier."""
    (row,) = report_of(bench_locks("--recovery", "--only", "python-redis-lock"))["peers"].values()
    assert TTL / 2 < row["recovery_s"] < 2 * TTL


def test_only_contenders_on_zookeeper_need_it(tmp_path: Path) -> None:
    """Only locks on ZooKeeper need Java. An empty PATH simulates a machine without Java."""
    done = bench_locks(PATH=str(tmp_path))
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (2, ["ZooKeeper is not installed: " + zookeeper.INSTALL])
    assert list(report_of(bench_locks("--only", "redis", PATH=str(tmp_path)))["locks"]) == ["redis"]


@needs_zookeeper
def test_commands_of_the_holder_are_not_counted_for_the_waiter() -> None:
    names = ("zookeeper", "etcd", "insert")
    with running_servers(names) as at:
        for name in names:
            with session(name, at) as holder, session(name, at) as own:
                assert own.sent is not None
                release = holder.make("held")()
                lease = release.__self__
                assert isinstance(lease, Lease)
                renewer = watchdog._watched[lease.token].renewer
                assert renewer is not None
                before = own.sent()
                assert [renewer.renew([lease], 5.0) for _ in range(20)] == [[True]] * 20
                assert own.sent() - before <= 1  # the session's own ping
                before = own.sent()
                for _ in range(10):
                    own.make("own")()()
                assert own.sent() - before >= 20
                release()
