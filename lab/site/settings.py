"""Settings of the measured code that the lab's pages quote. They are read from the code, so they are always current."""

from __future__ import annotations

import inspect
import re

import redis.lock

from locking.postgres.session import CONNECTION_PARAMETERS, SETTINGS
from locking.redis.redlock import Redlock
from shop import limits


def _default(function: object, name: str) -> float:
    """Return the default value of an argument."""
    return float(inspect.signature(function).parameters[name].default)  # type: ignore[arg-type]


def _silence(idle: str, interval: str, count: str) -> int:
    """Return the seconds after which TCP keepalives close a silent connection."""
    return int(idle) + int(interval) * int(count)


_server = dict(re.findall(r"\('tcp_keepalives_(\w+)', '(\d+)'\)", SETTINGS))
SERVER_KEEPALIVE = _silence(_server["idle"], _server["interval"], _server["count"])
"""Seconds after which Postgres ends the session of a lock if its client is silent."""
CLIENT_KEEPALIVE = _silence(*(CONNECTION_PARAMETERS[f"keepalives_{name}"] for name in ("idle", "interval", "count")))
"""Seconds after which the holder of a lock in Postgres notices that the server is silent."""
IDLE_TRANSACTION = limits.POSTGRES["idle_in_transaction_session_timeout"]
"""Seconds after which Postgres ends a session of the shop that is idle in a transaction."""
REDLOCK_RETRY_DELAY = _default(Redlock, "retry_delay")
"""Average number of seconds between two attempts of a `Redlock`."""
REDIS_PY_SLEEP = _default(redis.lock.Lock, "sleep")
"""Seconds between two attempts of redis-py's lock."""
