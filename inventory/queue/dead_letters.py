"""Dead letters: queued orders that cannot be saved. Redis keeps them for an operator, and the queue goes on."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from redis import Redis

from inventory.counters.whole import text
from inventory.queue.entries import QueueEntry

DEAD_LETTERS = "{stock}:queue:dead-letters"
KEPT = 1000
"""Number of dead letters that Redis keeps at least. It may delete older dead letters."""


class DeadLetters:
    """The dead letters in one Redis server."""

    def __init__(self, client: Redis) -> None:
        self.client: Any = client

    def add(self, entry: QueueEntry, reason: str) -> None:
        """Store an entry of the queue as a dead letter."""
        fields = {"id": str(entry.order_id or entry.entry_id), "request": entry.raw, "reason": reason}
        self.client.xadd(DEAD_LETTERS, fields, maxlen=KEPT)

    def newest(self, count: int | None = None) -> list[tuple[datetime, str, str, str]]:
        """Return dead letters as (time, id, queued order, reason), newest first.

        The id is that of the order, or of the queue's entry if the order's id cannot be read.

        Args:
            count: maximum number of dead letters. None for all.
        """
        return [
            (datetime.fromtimestamp(int(text(number).split("-")[0]) / 1000).astimezone(), *_values(fields))
            for number, fields in self.client.xrevrange(DEAD_LETTERS, count=count)
        ]

    def last_id(self) -> str:
        """Return the id of the newest dead letter in its Redis stream. Empty if there is none."""
        return "".join(text(number) for number, _ in self.client.xrevrange(DEAD_LETTERS, count=1))

    def delete_until(self, last: str) -> int:
        """Delete the dead letters up to an id, and return how many were deleted.

        Args:
            last: a value of `last_id` that is not empty. Dead letters that arrived later stay.
        """
        milliseconds, _, number = last.partition("-")
        after = f"{milliseconds}-{int(number) + 1}"
        return int(self.client.xtrim(DEAD_LETTERS, minid=after, approximate=False))


def _values(fields: dict[Any, Any]) -> tuple[str, str, str]:
    values = {text(name): text(value) for name, value in fields.items()}
    return values["id"], values["request"], values["reason"]
