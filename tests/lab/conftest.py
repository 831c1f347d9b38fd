"""Fixtures of the tests of the lab."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from psycopg import sql
from pytest_django import DjangoDbBlocker

from lab.claims import comparisons, refresh, witness
from lab.claims.witness import Witness
from lab.sandbox import databases
from lab.sandbox.databases import MADE, MOST
from lab.sandbox.pool import open_sandbox
from lab.sandbox.sandbox import Sandbox
from lab.site.pages import example_run
from servers import Servers
from tests import migrated
from tests.lab import comparison_support
from tests.lab.schedule_support import Player
from tests.locking.conftest import _without_a_watchdog
from tests.shop.conftest import buyer, visitor
from tests.waiting import WAIT_TIMEOUT

__all__ = ["_without_a_watchdog", "buyer", "visitor"]


@pytest.fixture(scope="session", autouse=True)
def _copied_databases() -> Iterator[None]:
    """Copy a migrated database for every sandbox, because migrations take longer than most tests."""

    def copy(alias: str, database: dict[str, Any]) -> None:
        with databases.server(database, time.monotonic() + WAIT_TIMEOUT) as server:
            copied = sql.Identifier(database["NAME"])
            for statement in (
                "DROP DATABASE {}",
                f"CREATE DATABASE {{}} TEMPLATE {migrated.COPY}",
                "ALTER DATABASE {} SET synchronous_commit = off",
            ):
                server.execute(sql.SQL(statement).format(copied))
            server.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(copied, sql.Literal(MADE)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(databases, "_migrate", copy)
        yield


@pytest.fixture(scope="module")
def sandbox(servers: Servers, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Sandbox]:
    """The last sandbox, because visitors and commands use the others first."""
    with django_db_blocker.unblock(), closing(open_sandbox(MOST - 1)) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def play(sandbox: Sandbox) -> Player:
    """Return a player for a sandbox that only this module uses."""
    return Player(sandbox)


@pytest.fixture(scope="session")
def sandboxes(servers: Servers, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Create the databases of all sandboxes in advance, because a test may migrate only its own database."""
    with django_db_blocker.unblock():
        for number in range(django_settings.LAB_SANDBOXES):
            open_sandbox(number).close()


WITNESSES = {
    "no-lock": Witness("no-lock", "conserved", 2, ("A", "B", "B", "A"), 1, 0),
    "get-compare-del": Witness(
        "get-compare-del", "one holder", 3, ("A", "A", "A", "A", "late release", "B", "A", "C"), 1, 1
    ),
}
VERDICT: dict[str, Any] = {
    "verdict": "held",
    "schedules": 113,
    "exhausted": True,
    "clients": 2,
    "preemptions": 2,
    "faults": 1,
    "deep": [
        {"verdict": "held", "schedules": 2000, "exhausted": False, "clients": 3, "preemptions": 2, "faults": 2},
    ],
    "outdated": False,
}
STRESS = {"broken": 17, "tries": 500, "outdated": False}


@pytest.fixture
def stored(sandboxes: None, unhashed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the stored results by two witnesses, one verdict and one stress run."""
    monkeypatch.setattr(witness, "load", WITNESSES.get)
    monkeypatch.setattr(witness, "verdict", lambda slug: VERDICT if slug == "renewal" else None)
    monkeypatch.setattr(witness, "stress", lambda slug: STRESS if slug == "no-lock" else None)
    monkeypatch.setattr(example_run, "_cache", {})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the comparison file, which does not exist yet."""
    path = tmp_path / "comparison.json"
    monkeypatch.setattr(comparisons, "FILE", path)
    return path


@pytest.fixture
def measured(file: Path) -> None:
    """Store a small comparison."""
    comparison_support.store(file)


@pytest.fixture
def unhashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the name of a part or of a rung as the hash of its code, because hashing takes seconds."""
    for module in (comparisons, refresh):
        monkeypatch.setattr(module, "behaviour_of_comparison", str)
    for name in ("behaviour_of_verdict", "behaviour_of_stress"):
        monkeypatch.setattr(witness, name, str)
