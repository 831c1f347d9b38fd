"""Locks on Postgres: `AdvisoryLock` (no table), `RowLock` (a locked row) and `InsertLock` (a row with an expiry)."""

from locking.postgres.advisory import AdvisoryLock
from locking.postgres.insert import InsertLock
from locking.postgres.row import RowLock
from locking.postgres.session_lock import SessionLease
from locking.postgres.tables import NoSuchLock, add_row, create_lock_tables

__all__ = [
    "AdvisoryLock",
    "InsertLock",
    "NoSuchLock",
    "RowLock",
    "SessionLease",
    "add_row",
    "create_lock_tables",
]
