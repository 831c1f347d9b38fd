"""Redisson's protocol in Python under the conformance suite, for comparison with `RedisLock`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from loadtest.bench.redisson_recipe import RedissonRecipeLock
from locking import Lock
from servers.valkey import Valkey
from tests.locking import conformance as suite
from tests.locking.conformance import LONG, SHORT
from tests.locking.support import RedisRecipe, client_of, separate_clients

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class RedissonRecipe(RedisRecipe):
    """Makes locks that use Redisson's protocol."""

    def __call__(self, name: str, **options: Any) -> Lock:  # type: ignore[override]
        return RedissonRecipeLock(self.client, name, **options)


class TestRedissonRecipeLock(
    suite.AcrossMachinesConformance,
    suite.AcrossProcessesConformance,
    suite.ExpiresConformance,
    suite.ForkConformance,
    suite.ReentrantConformance,
    suite.RenewsConformance,
    suite.ScriptsConformance,
    suite.SurvivesHolderCrashConformance,
):
    OPTIONS = {"ttl": LONG}
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
    def recipe(self, valkey: Valkey) -> Iterator[RedissonRecipe]:
        made = RedissonRecipe(valkey.url)
        made.client.flushall()
        self.valkey, self.client = valkey, made.client
        yield made
        made.client.close()
        client_of.cache_clear()

    def waiters(self, lock: Lock) -> int:
        ((_, subscribed),) = self.client.pubsub_numsub(f"redisson:{lock.name}")
        return int(subscribed)

    def traces(self, lock: Lock) -> dict[str, int]:
        return {
            "keys": self.client.exists(f"redisson:{lock.name}"),
            "waiters": self.waiters(lock),
            "connections in use": len(self.client.connection_pool._in_use_connections),
        }

    def written(self, lock: Lock) -> int:
        return int(self.client.info("persistence")["rdb_changes_since_last_save"])

    def lose_the_scripts(self) -> None:
        self.client.script_flush()

    def restart(self) -> None:
        self.valkey.child.kill()
        self.valkey.start()

    clients = staticmethod(separate_clients)
