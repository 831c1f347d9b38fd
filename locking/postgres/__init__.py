"""Locks on Postgres: an advisory lock, a locked row, and a row that only one session can insert."""

from locking.postgres.advisory import AdvisoryLock
from locking.postgres.tables import InsertLock, RowLock, add_row, create_lock_tables

__all__ = ["AdvisoryLock", "InsertLock", "RowLock", "add_row", "create_lock_tables"]
