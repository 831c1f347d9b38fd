"""Health checks: whether a web process has started, and whether it can serve requests now.

The web server's door (`shop.runtime.door`) handles the liveness check.
"""

from __future__ import annotations

from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django_redis import get_redis_connection
from drf_spectacular.utils import extend_schema
from redis import RedisError
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from inventory.caching import Cache
from inventory.outages import ANSWERING, outages
from shop.look import look

TIMEOUT = 2
"""Seconds to wait for each server. libpq accepts no shorter timeout, and `CACHES` sets the same timeout for Redis."""


TTL = 1.0
"""Seconds for which the result of a check is cached."""

cache: Cache[str, dict[str, bool]] = Cache()


def readiness() -> dict[str, bool]:
    """Return whether Postgres and Redis can be used.

    Frequent health checks must not load the servers, so a result is cached for `TTL` seconds. Then one thread checks
    again, which may take 6 s. Meanwhile the other threads return the last result.

    A check opens a new connection to Postgres. The connections in the pool may all be busy, or may still be connected
    to a server that no longer answers.
    """
    checked = cache.get_or_load("servers", lambda _: _check(), ttl=TTL, stale_while_loading=True)
    return checked or {}


def _check() -> dict[str, bool]:
    return {**_postgres(), "redis": _redis_answers()}


def _postgres() -> dict[str, bool]:
    # `web=False` skips the check of the time limits that the shop's role in Postgres sets behind a pooler. A web
    # process checks these limits when it starts. If somebody changes the role later, in the middle of a sale, this must
    # not make all processes unready.
    found = look(TIMEOUT, web=False, target_session_attrs="read-write")
    if found.writes:
        outages.worked(ANSWERING)
    # Add "pooler" only if DATABASE_POOLER is not set although there is a pooler, or the pooler refuses the connection.
    return {"postgres": found.writes, **({"pooler": False} if found.wrong else {})}


def _redis_answers() -> bool:
    try:
        get_redis_connection("default").ping()
    except RedisError:
        return False
    return True


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
    """Startup check: true as soon as this process has found Postgres and Redis ready and all migrations applied."""

    started = False

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        if not Started.started:
            Started.started = all(readiness().values()) and _migrated()
        return Response({"started": Started.started}, status=200 if Started.started else 503)


def _migrated() -> bool:
    executor = MigrationExecutor(connection)
    return not executor.migration_plan(executor.loader.graph.leaf_nodes())
