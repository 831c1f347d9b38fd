"""RedisLock keeps the promises of every lock, and those that it declares."""

from __future__ import annotations

import pytest
import redis

from servers.valkey import Valkey
from tests.locking.conformance import (
    LONG,
    RENEWED,
    SHORT,
    AcrossMachinesConformance,
    AcrossProcessesConformance,
    ExpiresConformance,
    FairConformance,
    FencedConformance,
    ForkConformance,
    QuietWaitConformance,
    RenewsConformance,
    ScriptsConformance,
    SurvivesHolderCrashConformance,
)
from tests.locking.support import RedisTraces


class TestRedisLock(
    RedisTraces,
    AcrossMachinesConformance,
    AcrossProcessesConformance,
    ExpiresConformance,
    FairConformance,
    FencedConformance,
    ForkConformance,
    QuietWaitConformance,
    RenewsConformance,
    ScriptsConformance,
    SurvivesHolderCrashConformance,
):
    OPTIONS = {"ttl": LONG}
    CRASH_OPTIONS = {"ttl": RENEWED}
    IMPATIENT = {"ttl": 2 * SHORT}

    @pytest.fixture(autouse=True)
    def _client(self, client: redis.Redis) -> None:
        self.client = client

    @pytest.fixture(autouse=True)
    def _server(self, valkey: Valkey) -> None:
        self.valkey = valkey

    def restart(self) -> None:
        self.valkey.child.kill()
        self.valkey.start()
