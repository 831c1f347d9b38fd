"""kazoo's own lock under the conformance suite, for comparison with `ZooKeeperLock`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.kazoo_recipe import KazooRecipeLock
from locking import Lock
from servers.zookeeper import ZooKeeper
from tests.locking import conformance as suite
from tests.locking.conformance import LONG
from tests.locking.zookeeper_support import (
    LONGEST,
    SHORTEST,
    ZooKeeperRecipe,
    ZooKeeperTraces,
    clients,
    parts,
    running_zookeeper,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with running_zookeeper() as running:
        yield running


@dataclass(frozen=True)
class KazooRecipe(ZooKeeperRecipe):
    """Makes kazoo's own locks, which accept no options."""

    def __call__(self, name: str, *, ttl: float = LONGEST, **options: Any) -> Lock:
        return KazooRecipeLock(self.client(ttl), name)


class TestKazooRecipeLock(
    ZooKeeperTraces,
    suite.AcrossMachinesConformance,
    suite.AcrossProcessesConformance,
    suite.FairConformance,
    suite.QuietWaitConformance,
    suite.SurvivesHolderCrashConformance,
):
    OPTIONS = {"ttl": LONG}
    CRASH_OPTIONS = {"ttl": SHORTEST}
    CRASH_GRACE = 0.4  # ZooKeeper may end a session up to two ticks of 0.2 s late.
    IMPATIENT = {"ttl": SHORTEST}
    FAILS = frozenset(
        {
            # kazoo cleans up after its own errors, but not after KeyboardInterrupt.
            "test_an_interrupted_waiter_leaves_nothing",
            # Each failed wait leaves a watch until the holder changes.
            "test_failed_waits_leave_nothing",
            # Each wake-up restarts the timeout.
            "test_wake_ups_do_not_extend_the_timeout",
        }
    )

    def waiters(self, lock: Lock) -> int:
        """Count the queued clients that watch the node before their own."""
        client, path = parts(lock)
        *before, _ = line = self.line(lock) or [""]
        watching = {watch.__self__.node for node in before for watch in client._data_watchers.get(f"{path}/{node}", ())}
        return len(watching.intersection(line))

    @pytest.fixture(autouse=True)
    def _server(self, zookeeper: ZooKeeper) -> None:
        self.zookeeper = zookeeper

    @pytest.fixture
    def recipe(self, zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[KazooRecipe]:
        yield KazooRecipe(zookeeper.hosts, tmp_path)
        clients.close()
