"""RedisLock under the conformance suite, and Redisson's protocol in Python, for comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from loadtest.bench.redisson_recipe import RedissonRecipeLock
from locking import Lock
from servers.valkey import Valkey
from tests.locking import conformance as suite
from tests.locking.conformance import LONG, RENEWED, SHORT
from tests.locking.support import RedisRecipe, RedisTraces


class OnRedis(RedisTraces, suite.LeaseConformance, suite.ScriptsConformance):
    """What RedisLock and Redisson's protocol both guarantee."""

    OPTIONS = {"ttl": LONG}

    @pytest.fixture(autouse=True)
    def _server(self, valkey: Valkey, client: redis.Redis) -> None:
        self.valkey, self.client = valkey, client

    def restart(self) -> None:
        self.valkey.child.kill()
        self.valkey.start()


class TestRedisLock(OnRedis, suite.FairConformance, suite.FencedConformance, suite.QuietWaitConformance):
    CRASH_OPTIONS = {"ttl": RENEWED}
    IMPATIENT = {"ttl": 2 * SHORT}


@pytest.mark.slow
class TestRedissonRecipeLock(OnRedis, suite.ReentrantConformance):
    CRASH_OPTIONS = {"ttl": SHORT}
    RELEASE_WRITES = 2  # one for the count, one for the key
    FAILS = frozenset(
        {
            # A renewal may take as long as the client's timeout, which is longer than the TTL of the test.
            "test_the_holder_is_told_when_the_server_hangs",
            # The recipe does not check how long the answer took.
            "test_a_grant_that_comes_too_late_is_given_back",
        }
    )

    @pytest.fixture
    def recipe(self, recipe: RedisRecipe) -> RedisRecipe:
        return replace(recipe, kind=RedissonRecipeLock)

    def waiters(self, lock: Lock) -> int:
        ((_, subscribed),) = self.client.pubsub_numsub(f"redisson:{lock.name}")
        return int(subscribed)

    def traces(self, lock: Lock) -> dict[str, int]:
        return {
            "keys": self.client.exists(f"redisson:{lock.name}"),
            "waiters": self.waiters(lock),
            "connections in use": len(self.client.connection_pool._in_use_connections),
        }
