"""Locks on Redis or Valkey: `RedisLock` on one server, `Redlock` on several independent servers."""

from locking.redis.lock import FairRedisLock, RedisLock
from locking.redis.redlock import Redlock

__all__ = ["FairRedisLock", "RedisLock", "Redlock"]
