"""Health checks: their cost, and the difference between live, ready and started."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db.migrations.recorder import MigrationRecorder
from rest_framework.test import APIClient

from inventory.caching import Cache
from shop.api import health
from shop.postgres import BoundedConnection
from tests.shop.conftest import Gone
from tests.waiting import WAIT_TIMEOUT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget earlier checks, as in a new process."""
    monkeypatch.setattr(health, "cache", Cache())
    monkeypatch.setattr(health.Started, "started", False)


@pytest.fixture
def connections_made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The connections to Postgres that health checks have opened."""
    made: list[Any] = []
    real = BoundedConnection.connect

    def counted(**parameters: Any) -> Any:
        made.append(real(**parameters))
        return made[-1]

    monkeypatch.setattr(BoundedConnection, "connect", counted)
    return made


def test_forty_checks_at_once_open_one_connection(connections_made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TTL", 600.0)
    with ThreadPoolExecutor(40) as clients:
        statuses = list(clients.map(lambda _: APIClient().get("/health/").status_code, range(40)))
    assert (set(statuses), len(connections_made)) == ({200}, 1)


def test_without_memory_each_check_opens_one(connections_made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without a cache, each check opens a connection."""
    monkeypatch.setattr(health, "TTL", 0)
    for _ in range(3):
        assert APIClient().get("/health/").status_code == 200
    assert len(connections_made) == 3


def test_while_one_caller_checks_others_get_the_last_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise frequent checks of a server that does not answer would keep all threads of the process waiting."""
    checking, go_on = threading.Event(), threading.Event()

    def check() -> dict[str, bool]:
        checking.set()
        assert go_on.wait(WAIT_TIMEOUT)
        return {"postgres": False, "redis": True}

    health.cache.put("servers", {"postgres": True, "redis": True}, refresh_at=0.0, expires_at=0.0)
    monkeypatch.setattr(health, "_check", check)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(health.readiness)
        assert checking.wait(WAIT_TIMEOUT)
        assert health.readiness() == {"postgres": True, "redis": True}
        go_on.set()
        assert first.result(WAIT_TIMEOUT) == {"postgres": False, "redis": True}


def test_started_waits_for_servers_and_migrations_and_then_stays(visitor: APIClient, postgres_gone: Gone) -> None:
    with postgres_gone():
        assert visitor.get("/health/started/").status_code == 503
    health.cache.clear()
    applied = MigrationRecorder.Migration.objects.filter(app="shop").latest("pk")
    applied.delete()
    try:
        assert visitor.get("/health/started/").status_code == 503
    finally:
        applied.save(force_insert=True)
    assert visitor.get("/health/started/").status_code == 200
    with postgres_gone():
        assert visitor.get("/health/started/").status_code == 200
