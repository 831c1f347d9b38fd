"""A Valkey for the tests of locks, emptied for each, and private ones for tests that disturb their server."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from servers.folder import RunFolder
from servers.valkey import Valkey
from tests.locking.support import RedisRecipe, renewing, wait_for


@contextmanager
def running_valkey() -> Iterator[Valkey]:
    outer = Path(tempfile.mkdtemp(prefix="lu-"))
    outer.chmod(0o755)
    folder = RunFolder(outer / "run")
    folder.create()
    valkey = Valkey(folder.valkey)
    valkey.start()
    try:
        yield valkey
    finally:
        valkey.stop()
        shutil.rmtree(outer, ignore_errors=True)


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    with running_valkey() as running:
        yield running


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A server that the test may stop, kill and pause."""
    with running_valkey() as running:
        yield running


@pytest.fixture
def other_valkey() -> Iterator[Valkey]:
    with running_valkey() as running:
        yield running


@pytest.fixture
def recipe(valkey: Valkey) -> RedisRecipe:
    made = RedisRecipe(valkey.url)
    made.client.flushall()
    return made


@pytest.fixture
def client(recipe: RedisRecipe) -> redis.Redis:
    return recipe.client


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    yield
    wait_for(lambda: not renewing(), "the thread that renews leases to end")
