"""Flawed update: each client adds its part to one record by writing the whole record."""

from __future__ import annotations

import json
from typing import Any

from lab.ladder.locks.rung import Rung


class MergeWithoutALock(Rung):
    """Flawed: each source writes the whole record, and so overwrites the other parts with the copy that it has read.

    The schedule that breaks it: the record of a machine contains d0. Source A reads it to add d1. B reads it to add d2
    and writes d0 + d2. A writes d0 + d1. No source has changed another's part, but d2 is lost.

    This is the lost update of `no-lock`. A stock that is wrong by one is noticed; a missing part of a record is not.

    Fixed by a lock on a server that every source can reach: `setnx`. For the threads of one process, `thread-lock` is
    enough. Source: article 001.
    """

    slug = "merge-without-a-lock"
    title = "Merge without a lock"
    flaw = "The whole record is written back, so a part that was added after the read is lost."
    breaks = "conserved"
    fixed_by = "setnx"
    source = "001"

    @staticmethod
    def merge(client: Any, record: str, part: str, data: str) -> None:
        """Add a part to a record.

        Args:
            client: client of the Redis that keeps the record.
            record: key of the record.
            part: name of the part that this source provides.
            data: content of the part.
        """
        whole = json.loads(client.get(record) or "{}")
        client.set(record, json.dumps({**whole, part: data}))
