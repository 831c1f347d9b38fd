"""What the table of locks says of Postgres in the column "survives node loss": it does not.

A standby takes the place of the primary. It knows the grants that had reached it by then, and no session.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from locking.postgres import AdvisoryLock, InsertLock, RowLock, add_row, create_lock_tables
from servers.folder import RunFolder
from servers.postgres import DATABASE, PORT, USER, Postgres
from servers.standby import Standby
from tests.locking.support import acquired
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

TTL = 60.0
SYNCHRONOUS = "-c synchronous_commit=remote_apply"


@dataclass
class Pair:
    """A primary with the tables of the locks, and its standby."""

    primary: Postgres
    standby: Standby

    def lock(self, kind: Any, client: str, **parameters: str) -> Any:
        """Return a lock of a client that finds whichever server accepts writes."""
        hosts = f"{self.primary.folder},{self.standby.folder}"
        place = {"host": hosts, "port": PORT, "user": USER, "dbname": DATABASE, "target_session_attrs": "read-write"}
        # The threads of one process share the sessions of one conninfo, so each client has its own.
        conninfo = make_conninfo(**place, fallback_application_name=client, **parameters)
        return kind(conninfo, "stock", **({"ttl": TTL} if kind is InsertLock else {}))

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    outer = Path(tempfile.mkdtemp(prefix="lu-"))
    outer.chmod(0o755)
    run = RunFolder(outer / "run")
    run.create()
    primary = Postgres(run.path / "one", extra={"synchronous_commit": "local", "synchronous_standby_names": "*"})
    standby = Standby(run.path / "two", primary=primary.folder)
    primary.start()
    try:
        conninfo = f"host={primary.folder} dbname={DATABASE} user={USER}"
        create_lock_tables(conninfo)
        add_row(conninfo, "stock")
        standby.start()
        standby.attach()
        yield Pair(primary, standby)
    finally:
        standby.stop()
        primary.stop()
        shutil.rmtree(outer, ignore_errors=True)


@pytest.mark.parametrize("kind", [AdvisoryLock, RowLock, InsertLock])
def test_no_lock_on_postgres_declares_that_it_survives(kind: Any) -> None:
    assert not kind.capabilities.survives_node_loss


def test_a_grant_that_the_standby_has_not_received_is_granted_twice(pair: Pair) -> None:
    pair.standby.detach()
    first = acquired(pair.lock(InsertLock, "A"))
    pair.fail_over()
    second = acquired(pair.lock(InsertLock, "B"), blocking=False)
    assert not first.lost
    assert second.fence <= first.fence  # the fence is of no help: it is counted in the table that was lost
    second.release()


def test_a_grant_that_waits_for_the_standby_is_kept(pair: Pair) -> None:
    """A conninfo that asks for it is enough, if the primary names a synchronous standby."""
    first = acquired(pair.lock(InsertLock, "A", options=SYNCHRONOUS))
    pair.fail_over()
    assert pair.lock(InsertLock, "B").acquire(blocking=False) is None
    assert not first.lost
    assert first.release() is True
    second = acquired(pair.lock(InsertLock, "B"), blocking=False)
    assert second.fence > first.fence
    second.release()


@pytest.mark.parametrize("kind", [AdvisoryLock, RowLock])
def test_a_lock_of_a_session_ends_with_the_primary_and_its_holder_is_told(pair: Pair, kind: Any) -> None:
    """No setting helps: the standby has no session. Its holder learns of that at the next check."""
    first = acquired(pair.lock(kind, "A"))
    pair.fail_over()
    second = acquired(pair.lock(kind, "B"), blocking=False)
    wait_for(lambda: first.lost)
    second.release()
