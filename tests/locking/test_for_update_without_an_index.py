"""What `SELECT … FOR UPDATE` locks in Postgres if its condition has no index, as the lesson of the lock table says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg.errors import SerializationFailure

from inventory.strategies.locks import conninfo

pytestmark = pytest.mark.django_db(transaction=True)

ROWS = 1000
LOCK = "SELECT FROM lock_by_code WHERE code = %s FOR UPDATE"
WRITE = "UPDATE lock_by_code SET taken = taken + 1 WHERE code = %s"
LOCKS = """
    SELECT locktype, mode FROM pg_locks
    WHERE pid = %s AND locktype <> 'virtualxid' AND (relation IS NULL OR relation = 'lock_by_code'::regclass)
"""
Session = psycopg.Connection[Any]


@pytest.fixture(params=[False, True], ids=["no index", "index"])
def indexed(request: pytest.FixtureRequest) -> Iterator[bool]:
    """A table with a row for each lock, as in article 002 of docs/teaching.md, with and without an index."""
    with connection.cursor() as admin:
        # Leave room on each page, so that an UPDATE adds no index entry. A predicate lock covers a whole index page.
        columns = "code text NOT NULL, taken int NOT NULL DEFAULT 0"
        admin.execute(f"CREATE TABLE lock_by_code ({columns}) WITH (fillfactor = 50)")
        admin.execute("INSERT INTO lock_by_code (code) SELECT 'lock ' || n FROM generate_series(1, %s) AS n", [ROWS])
        if request.param:
            admin.execute("CREATE UNIQUE INDEX ON lock_by_code (code)")
        admin.execute("ANALYZE lock_by_code")
        yield request.param
        admin.execute("DROP TABLE lock_by_code")


@pytest.fixture
def session(indexed: bool) -> Iterator[Callable[[], Session]]:
    """Return a function that opens sessions. They are closed before the table is dropped."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(psycopg.connect(conninfo(), options="-c lock_timeout=10s")))


def plan(session: Session) -> str:
    lines = session.execute(f"EXPLAIN (ANALYZE, COSTS off, TIMING off) {LOCK}", ["lock 1"]).fetchall()
    return "\n".join(line for (line,) in lines)


def locks_of(session: Session, observer: Session) -> set[tuple[str, str]]:
    return set(observer.execute(LOCKS, [session.info.backend_pid]).fetchall())


def test_only_the_row_that_matches_is_locked(indexed: bool, session: Callable[[], Session]) -> None:
    """Rows that do not match the condition are not locked. An index changes only which rows are read."""
    holder, other = session(), session()
    assert (f"Rows Removed by Filter: {ROWS - 1}" in plan(holder)) is not indexed
    holder.execute(LOCK, ["lock 1"])
    free = other.execute("SELECT code FROM lock_by_code FOR UPDATE SKIP LOCKED").fetchall()
    assert len(free) == ROWS - 1
    assert ("lock 1",) not in free
    other.rollback()
    assert locks_of(holder, other) == {("relation", "RowShareLock"), ("transactionid", "ExclusiveLock")}
    other.rollback()
    assert other.execute(WRITE, ["lock 2"]).rowcount == 1
    other.execute("INSERT INTO lock_by_code (code) VALUES ('new')")
    other.rollback()


@pytest.mark.parametrize("level", ["READ COMMITTED", "SERIALIZABLE"])
def test_two_holders_of_two_rows_disturb_each_other_only_under_serializable(
    indexed: bool, session: Callable[[], Session], level: str
) -> None:
    """Under SERIALIZABLE and without an index, the whole table counts as read. That blocks nobody before the commit."""
    one, two = session(), session()
    for number, holder in enumerate((one, two), 1):
        holder.isolation_level = psycopg.IsolationLevel[level.replace(" ", "_")]
        holder.execute(LOCK, [f"lock {number}"])
    read = {"SERIALIZABLE": {"tuple"} if indexed else {"relation"}, "READ COMMITTED": set()}
    assert {kind for kind, mode in locks_of(one, session()) if mode == "SIReadLock"} == read[level]
    for number, holder in enumerate((one, two), 1):
        holder.execute(WRITE, [f"lock {number}"])
    one.commit()
    if level == "SERIALIZABLE" and not indexed:
        with pytest.raises(SerializationFailure):
            two.commit()
    else:
        two.commit()
