"""Health checks: whether a web process has started, and whether it can serve requests now.

The front of the web server (`shop.runtime.door`) handles the liveness check.
"""

from __future__ import annotations

import threading
import time

from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django_redis import get_redis_connection
from drf_spectacular.utils import extend_schema
from redis import RedisError
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from inventory.outages import ANSWERING, outages
from shop.look import look

TIMEOUT = 2
"""Seconds to wait for each server. libpq accepts no shorter timeout, and `CACHES` sets the same one for Redis."""


class Readiness:
    """Checks Postgres and Redis, and caches the result, so that frequent health checks do not load the servers.

    A check opens a new connection to Postgres. Those in the pool may all be busy, or still be connected to a server
    that no longer answers.
    """

    REMEMBERED = 1.0
    """Seconds for which a result is cached."""

    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._found: dict[str, bool] = {}
        self._until = 0.0

    def __call__(self) -> dict[str, bool]:
        """Return whether each server can be used. Only one thread at a time checks; others get the last result."""
        if time.monotonic() >= self._until and self._looking.acquire(blocking=not self._found):
            try:
                if time.monotonic() >= self._until:
                    self._found = {**_postgres(), "redis": _redis_answers()}
                    self._until = time.monotonic() + self.REMEMBERED
            finally:
                self._looking.release()
        return self._found


def _postgres() -> dict[str, bool]:
    # `web=False` skips the check of the time limits, which a web process makes when it starts. A later change of the
    # role must not make all processes unready in the middle of a sale.
    found = look(TIMEOUT, web=False, target_session_attrs="read-write")
    if found.writes:
        outages.worked(ANSWERING)
    # Report a pooler only if the settings do not fit it.
    return {"postgres": found.writes, **({"pooler": False} if found.wrong else {})}


def _redis_answers() -> bool:
    try:
        get_redis_connection("default").ping()
    except RedisError:
        return False
    return True


readiness = Readiness()
"""The health check of this process, with its cached result."""


class HealthView(APIView):
    """Base class of the health checks, which need no authentication."""

    authentication_classes = ()
    permission_classes = (AllowAny,)


class Ready(HealthView):
    """Readiness check: Redis answers, and Postgres answers, accepts writes and fits the settings."""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        found = readiness()
        return Response(found, status=200 if all(found.values()) else 503)


class Started(HealthView):
    """Startup check: this process has once found both servers ready and all migrations applied. It then stays true."""

    started = False

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        if not Started.started:
            Started.started = all(readiness().values()) and _migrated()
        return Response({"started": Started.started}, status=200 if Started.started else 503)


def _migrated() -> bool:
    executor = MigrationExecutor(connection)
    return not executor.migration_plan(executor.loader.graph.leaf_nodes())
