"""RedisLock keeps the promises of every lock, and those that it declares."""

from __future__ import annotations

import pytest
import redis

from locking import Lock
from tests.locking.conformance import (
    LONG,
    SHORT,
    AcrossProcessesConformance,
    ExpiresConformance,
    FairConformance,
    FencedConformance,
    ForkConformance,
    QuietWaitConformance,
    RenewsConformance,
    SurvivesHolderCrashConformance,
)
from tests.locking.support import RedisTraces


class TestRedisLock(
    RedisTraces,
    AcrossProcessesConformance,
    ExpiresConformance,
    FairConformance,
    FencedConformance,
    ForkConformance,
    QuietWaitConformance,
    RenewsConformance,
    SurvivesHolderCrashConformance,
):
    OPTIONS = {"ttl": LONG}
    CRASH_OPTIONS = {"ttl": SHORT}
    IMPATIENT = {"ttl": SHORT}

    @pytest.fixture(autouse=True)
    def _client(self, client: redis.Redis) -> None:
        self.client = client

    def waiters(self, lock: Lock) -> int:
        """Those that are on the list and asleep, too."""
        return min(self.client.zcard(f"lock:{{{lock.name}}}:waiters"), self.client.info("clients")["blocked_clients"])
