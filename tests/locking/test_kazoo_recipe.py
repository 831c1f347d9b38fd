"""What kazoo's own lock keeps of the promises of every lock: for comparison with `ZooKeeperLock`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.kazoo_recipe import KazooRecipeLock
from locking import Lock
from tests.locking.conformance import (
    LONG,
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
    running_zookeeper,
)


@dataclass(frozen=True)
class KazooRecipe(ZooKeeperRecipe):
    """Makes kazoo's own locks. They know no option."""

    def __call__(self, name: str, *, ttl: float = LONGEST, **options: Any) -> Lock:
        return KazooRecipeLock(self.client(ttl), name)


class TestKazooRecipeLock(
    ZooKeeperTraces,
    AcrossProcessesConformance,
    FairConformance,
    QuietWaitConformance,
    SurvivesHolderCrashConformance,
):
    OPTIONS = {"ttl": LONG}
    CRASH_OPTIONS = {"ttl": SHORTEST}
    IMPATIENT = {"ttl": SHORTEST}
    PAIRS = 1000
    FAILS = frozenset(
        {
            # It cleans up after kazoo's errors, not after KeyboardInterrupt.
            "test_an_interrupted_waiter_leaves_nothing_behind",
        }
    )

    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Iterator[KazooRecipe]:
        with running_zookeeper() as zookeeper:
            yield KazooRecipe(zookeeper.hosts, tmp_path)
            clients.close()
