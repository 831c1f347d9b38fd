"""Fixtures: a shared Valkey server, which `recipe` empties, and private servers for tests that disturb a server."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from locking.redis import connection
from locking.renewal import watchdog
from servers.valkey import Valkey, temporary
from tests.locking.proxy import Link
from tests.locking.support import Patch, RedisRecipe, RemoteRecipe, client_of, renewing
from tests.waiting import wait_for


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    with temporary() as running:
        yield running


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """Yield a server that the test may stop, kill and pause."""
    with temporary() as running:
        yield running


@pytest.fixture
def name() -> str:
    """Return the name of a lock that no other test uses."""
    return f"test {uuid.uuid4()}"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as pool:
        yield pool


@pytest.fixture
def recipe(valkey: Valkey) -> Iterator[RedisRecipe]:
    made = RedisRecipe(valkey.url)
    made.client.flushall()
    yield made
    made.client.close()
    client_of.cache_clear()


@pytest.fixture
def client(recipe: RedisRecipe) -> redis.Redis:
    return recipe.client


@pytest.fixture
def link(recipe: RemoteRecipe) -> Iterator[Link]:
    link = Link(recipe)
    yield link
    link.close()


@pytest.fixture
def flawed(monkeypatch: Patch) -> Callable[[str, str, str], None]:
    """Return a function that replaces a part of a script, for a negative control of that part."""

    def replace(name: str, part: str, by: str) -> None:
        text = connection.script(name)[0]
        if part not in text:
            raise LookupError(f"the script {name} has no part {part!r} any more, so this controls nothing")
        text = text.replace(part, by)
        changed = (text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        original = connection.script
        monkeypatch.setattr(connection, "script", lambda wanted: changed if wanted == name else original(wanted))

    return replace


@pytest.fixture(autouse=True)
def _without_a_watchdog() -> Iterator[None]:
    """Start and end each test without a watchdog thread."""
    end_watchdog()
    yield
    end_watchdog()


def end_watchdog() -> None:
    """Make the watchdog thread find that no lease is left, and end."""
    with watchdog._condition:
        watchdog._watched.clear()
        watchdog._wakes_at = 0.0
        watchdog._condition.notify()
    wait_for(lambda: not renewing(), "the thread that renews leases to end")
