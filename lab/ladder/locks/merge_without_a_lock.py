"""`merge-without-a-lock`: many sources each add their part to one record, and each writes the whole record."""

from __future__ import annotations

import json
from typing import Any

from lab.ladder.locks.rung import Rung


class MergeWithoutALock(Rung):
    """Flawed: each source writes back all that it has read, old parts of the others included.

    The record of a machine holds d0. The schedule: one worker reads d0 to add d1, another reads d0 to add d2; the first
    writes d0 + d1, the second writes d0 + d2. Nobody has touched the part of another, and d1 is gone. It is the lost
    update of `no-lock`; a stock that is off by one gets noticed, a missing part of a record does not.
    Fixed by doing it under a lock that all of them see, one on the server: `setnx`. For the threads of one process
    `thread-lock` is enough. Source: article 001.
    """

    slug = "merge-without-a-lock"
    title = "Merge without a lock"
    flaw = "The whole record is written back, so a part that was added since it was read is lost."
    breaks = "conserved"
    fixed_by = "setnx"
    source = "001"

    @staticmethod
    def merge(client: Any, record: str, part: str, data: str) -> None:
        """Add a part to a record.

        Args:
            client: the Redis that keeps the record.
            record: its key.
            part: the name of what this source knows.
            data: what it says now.
        """
        whole = json.loads(client.get(record) or "{}")
        client.set(record, json.dumps({**whole, part: data}))
