"""Locks on Postgres do not survive the loss of the primary, as the table of locks says.

The standby that replaces the primary knows no session, and only the grants of InsertLock that had reached it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from locking.postgres import AdvisoryLock, InsertLock, RowLock, add_row, create_lock_tables
from servers.postgres import DATABASE, PORT, USER, Postgres
from servers.standby import Standby
from tests.locking.support import acquired, run_folder, started
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
        """Return a lock of the client. It connects to whichever server accepts writes."""
        hosts = f"{self.primary.folder},{self.standby.folder}"
        place = {"host": hosts, "port": PORT, "user": USER, "dbname": DATABASE, "target_session_attrs": "read-write"}
        # Give each client its own conninfo, because threads of one process share the sessions of a conninfo.
        conninfo = make_conninfo(**place, fallback_application_name=client, **parameters)
        return kind(conninfo, "stock", **({"ttl": TTL} if kind is InsertLock else {}))

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with run_folder() as run:
        primary = Postgres(run.path / "one", extra={"synchronous_commit": "local", "synchronous_standby_names": "*"})
        standby = Standby(run.path / "two", primary=primary.folder)
        with started(primary):
            conninfo = f"host={primary.folder} dbname={DATABASE} user={USER}"
            create_lock_tables(conninfo)
            add_row(conninfo, "stock")
            with started(standby):
                standby.attach()
                yield Pair(primary, standby)


def test_a_grant_that_the_standby_has_not_received_is_granted_twice(pair: Pair) -> None:
    pair.standby.detach()
    first = acquired(pair.lock(InsertLock, "A"))
    pair.fail_over()
    second = acquired(pair.lock(InsertLock, "B"), blocking=False)
    assert not first.lost
    assert second.fence <= first.fence  # Fences do not help: the standby has not received the last one either.
    second.release()


def test_a_grant_that_waits_for_the_standby_is_kept(pair: Pair) -> None:
    """A grant that waits for the standby survives, if primary and conninfo ask for a synchronous standby."""
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
    """A session lock ends with the primary, whatever the settings, and the next check tells its holder."""
    first = acquired(pair.lock(kind, "A"))
    pair.fail_over()
    second = acquired(pair.lock(kind, "B"), blocking=False)
    wait_for(lambda: first.lost)
    second.release()
