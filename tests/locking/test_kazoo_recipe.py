"""What kazoo's own lock keeps of the promises of every lock: for comparison with `ZooKeeperLock`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.kazoo_recipe import KazooRecipeLock
from locking import Lock
from servers.zookeeper import ZooKeeper
from tests.locking.conformance import (
    LONG,
    AcrossMachinesConformance,
    AcrossProcessesConformance,
    FairConformance,
    QuietWaitConformance,
    SurvivesHolderCrashConformance,
)
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
    """Makes kazoo's own locks. They know no option."""

    def __call__(self, name: str, *, ttl: float = LONGEST, **options: Any) -> Lock:
        return KazooRecipeLock(self.client(ttl), name)


class TestKazooRecipeLock(
    ZooKeeperTraces,
    AcrossMachinesConformance,
    AcrossProcessesConformance,
    FairConformance,
    QuietWaitConformance,
    SurvivesHolderCrashConformance,
):
    OPTIONS = {"ttl": LONG}
    CRASH_OPTIONS = {"ttl": SHORTEST}
    CRASH_GRACE = 0.4  # the server ends sessions at every other of its ticks of 0.2 s
    IMPATIENT = {"ttl": SHORTEST}
    PAIRS = 1000
    FAILS = frozenset(
        {
            # It cleans up after kazoo's errors, not after KeyboardInterrupt.
            "test_an_interrupted_waiter_leaves_nothing_behind",
            # Each leaves a watch behind, as long as the same one holds it.
            "test_100_failed_tries_that_wait_leave_nothing_behind",
            # Its wait begins anew with each wake.
            "test_a_timeout_is_a_total_deadline_although_wakes_are_in_vain",
        }
    )

    def waiters(self, lock: Lock) -> int:
        """Those that stand in line behind somebody, and watch him; who has given up has left his watch, and no node.

        Who is interrupted while he still asks never learns of it: kazoo takes it for a connection that is closed.
        """
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
