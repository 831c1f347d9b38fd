"""Locks on Redis or Valkey: one server (`RedisLock`, `FairRedisLock`) or several independent ones (`Redlock`)."""
