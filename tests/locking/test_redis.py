"""RedisLock under the conformance suite."""

from __future__ import annotations

import pytest
import redis

from servers.valkey import Valkey
from tests.locking import conformance as suite
from tests.locking.conformance import LONG, RENEWED, SHORT
from tests.locking.support import RedisTraces


class TestRedisLock(
    RedisTraces,
    suite.AcrossMachinesConformance,
    suite.AcrossProcessesConformance,
    suite.ExpiresConformance,
    suite.FairConformance,
    suite.FencedConformance,
    suite.ForkConformance,
    suite.QuietWaitConformance,
    suite.RenewsConformance,
    suite.ScriptsConformance,
    suite.SurvivesHolderCrashConformance,
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
