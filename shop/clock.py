"""The clock of Postgres, which decides on every machine when a sale is open and when an order expires.

In a query, use `django.db.models.functions.Now`. When an order is placed, use the `Clock` in the cached offer of the
sale: it needs no query.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection


@dataclass(frozen=True, slots=True)
class Clock:
    """One reading of Postgres's clock, plus the time that has passed since on the monotonic clock of this process.

    The time that `now` returns may be too early by the duration of the query that read the clock. The drift between the
    two clocks since then adds to this error.

    Args:
        read: the time that Postgres returned.
        at: the monotonic time at which Postgres's answer arrived, in seconds.
    """

    read: datetime
    at: float

    def now(self) -> datetime:
        """Return the present time, without a query."""
        return self.read + timedelta(seconds=time.monotonic() - self.at)


def now() -> datetime:
    """Query Postgres for the present time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        found: datetime = cursor.fetchone()[0]
    return found
