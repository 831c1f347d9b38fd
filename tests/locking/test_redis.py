"""RedisLock keeps the promises of every lock."""

from __future__ import annotations

import pytest
import redis

from locking import Lock
from tests.locking.conformance import LockConformance


class TestRedisLock(LockConformance):
    @pytest.fixture(autouse=True)
    def _client(self, client: redis.Redis) -> None:
        self.client = client

    def waiters(self, lock: Lock) -> int:
        """Those that are on the list and asleep, too."""
        return min(self.client.zcard(f"lock:{{{lock.name}}}:waiters"), self.client.info("clients")["blocked_clients"])

    def test_it_declares_what_it_can_do(self, make_lock) -> None:  # type: ignore[no-untyped-def]
        can = make_lock().capabilities
        assert (can.fenced, can.renews, can.quiet_wait, can.survives_holder_crash) == (True, True, True, True)
        assert (can.fair, can.reentrant, can.survives_node_loss) == (False, False, False)
