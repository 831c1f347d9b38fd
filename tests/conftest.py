"""Real servers for the whole run, and an empty Redis for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.core.cache import caches
from django_redis import get_redis_connection
from redis import Redis

from servers import Servers


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers(settings.RUN_FOLDER) as running:
        yield running


@pytest.fixture(scope="session")
def django_db_modify_db_settings(servers: Servers) -> None:
    """The database is there before Django asks for it."""


@pytest.fixture
def redis(servers: Servers) -> Redis:
    """The shop's Redis, emptied."""
    client = get_redis_connection("default")
    client.flushall()
    caches["offers"].clear()
    return client
