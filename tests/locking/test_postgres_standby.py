"""Locks on Postgres do not survive the loss of the primary, as the table of locks says.

The standby that replaces the primary knows only the grants of InsertLock that had reached it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from psycopg.conninfo import make_conninfo

from locking.postgres import InsertLock, create_lock_tables
from servers.postgres import DATABASE, PORT, USER, Postgres
from servers.standby import Standby
from tests.locking.support import acquired, run_folder, started

pytestmark = pytest.mark.slow

SYNCHRONOUS = "-c synchronous_commit=remote_apply"


@dataclass
class Pair:
    """A primary with the tables of the locks, and its standby."""

    primary: Postgres
    standby: Standby

    def lock(self, client: str, **parameters: str) -> InsertLock:
        """Return a lock of the client. It connects to whichever server accepts writes."""
        hosts = f"{self.primary.folder},{self.standby.folder}"
        place = {"host": hosts, "port": PORT, "user": USER, "dbname": DATABASE, "target_session_attrs": "read-write"}
        # Give each client its own conninfo, because threads of one process share the sessions of a conninfo.
        conninfo = make_conninfo(**place, fallback_application_name=client, **parameters)
        return InsertLock(conninfo, "stock", ttl=60.0)

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with run_folder() as run:
        primary = Postgres(run.path / "one", extra={"synchronous_commit": "local", "synchronous_standby_names": "*"})
        standby = Standby(run.path / "two", primary=primary.folder)
        with started(primary):
            create_lock_tables(f"host={primary.folder} dbname={DATABASE} user={USER}")
            with started(standby):
                standby.attach()
                yield Pair(primary, standby)


def test_a_grant_that_the_standby_has_not_received_is_granted_twice(pair: Pair) -> None:
    pair.standby.detach()
    first = acquired(pair.lock("A"))
    pair.fail_over()
    second = acquired(pair.lock("B"), blocking=False)
    assert not first.lost
    assert second.fence <= first.fence  # Fences do not help: the standby has not received the last one either.
    second.release()


def test_a_grant_that_waits_for_the_standby_is_kept(pair: Pair) -> None:
    """A grant that waits for the standby survives, if primary and conninfo ask for a synchronous standby."""
    first = acquired(pair.lock("A", options=SYNCHRONOUS))
    pair.fail_over()
    assert pair.lock("B").acquire(blocking=False) is None
    assert not first.lost
    assert first.release() is True
    second = acquired(pair.lock("B"), blocking=False)
    assert second.fence > first.fence
    second.release()
