"""The clock that decides when a sale is open and when an order expires: that of Postgres, on whatever machine we run.

In a query, `django.db.models.functions.Now` is this clock. On the path of an order, an offer carries it along.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection


@dataclass(frozen=True, slots=True)
class Clock:
    """Postgres's clock as it was read once, carried on by the monotonic clock of this process.

    It may be slow by the time that the answer to the reading took, and by what the two clocks drift apart afterwards.

    Args:
        read: the time that was read.
        at: the monotonic time at which the answer came, in seconds.
    """

    read: datetime
    at: float

    def now(self) -> datetime:
        """Return the present time, without a query."""
        return self.read + timedelta(seconds=time.monotonic() - self.at)


def now() -> datetime:
    """Ask Postgres for the present time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        found: datetime = cursor.fetchone()[0]
    return found
