"""Health checks: whether a web process has started, and whether it can serve now. The door answers whether it lives."""

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
"""Seconds for each server to answer. libpq does not accept less, and `CACHES` gives Redis the same."""


class Readiness:
    """What a look at Postgres and Redis found, remembered, so that frequent questions cost them nothing.

    A look opens its own connection to Postgres. One from the pool would say less: all of them may be busy, or still be
    connected to a server that no longer answers.
    """

    REMEMBERED = 1.0
    """Seconds."""

    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._found: dict[str, bool] = {}
        self._until = 0.0

    def __call__(self) -> dict[str, bool]:
        """Return which servers can be used. Only one caller at a time looks; others get what was found before."""
        if time.monotonic() >= self._until and self._looking.acquire(blocking=not self._found):
            try:
                if time.monotonic() >= self._until:
                    self._found = {**_postgres(), "redis": _redis_answers()}
                    self._until = time.monotonic() + self.REMEMBERED
            finally:
                self._looking.release()
        return self._found


def _postgres() -> dict[str, bool]:
    # The limits on waiting are looked at when a server starts: a role that is changed in between must not end the sale.
    found = look(TIMEOUT, web=False, target_session_attrs="read-write")
    if found.writes:
        outages.worked(ANSWERING)
    # A pooler is named only if the settings do not fit it.
    return {"postgres": found.writes, **({"pooler": False} if found.wrong else {})}


def _redis_answers() -> bool:
    try:
        get_redis_connection("default").ping()
    except RedisError:
        return False
    return True


readiness = Readiness()
"""Of this process."""


class HealthView(APIView):
    """A check that anyone may ask for."""

    authentication_classes = ()
    permission_classes = (AllowAny,)


class Ready(HealthView):
    """Whether requests can be served: Postgres answers, can write and fits the settings, and Redis answers."""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        found = readiness()
        return Response(found, status=200 if all(found.values()) else 503)


class Started(HealthView):
    """Whether this process has once found both servers, and all migrations applied. It stays true."""

    started = False

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        if not Started.started:
            Started.started = all(readiness().values()) and _migrated()
        return Response({"started": Started.started}, status=200 if Started.started else 503)


def _migrated() -> bool:
    executor = MigrationExecutor(connection)
    return not executor.migration_plan(executor.loader.graph.leaf_nodes())
