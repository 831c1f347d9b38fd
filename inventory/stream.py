"""The queue of accepted orders in Redis: one script takes the stock and appends the order, workers save it later.

An order is on the queue, with a note of whose units it has, until a worker has saved it and says so. What a worker has
read and not finished is taken over by another; saving the same draft twice is saving it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
from redis import Redis, RedisError
from redis.exceptions import ResponseError

from inventory.counters import NOTES, SCRIPTS, UNITS, counter_key, text
from inventory.draft import Draft, Line, Returned
from inventory.errors import Duplicate, OverLimit, SoldOut, StockNotLoaded, StockUnavailable

STREAM = "{stock}:queue"
GROUP = "workers"
LAST = "{stock}:queue:last"
DONE = "{stock}:queue:done"
WOKEN = "{stock}:queue:woken"
ASIDE = "{stock}:queue:aside"
REMEMBERED = 86400
"""Seconds for which Redis knows who has an idempotency key, and what has become of a draft that is no order."""


def bought_key(sku: str) -> str:
    """The key that counts what each customer has queued or bought of a sku, by sale."""
    return f"{{stock}}:bought:{sku}"


def key_key(customer: int, key: str) -> str:
    """The key that tells which draft has a customer's idempotency key."""
    return f"{{stock}}:key:{customer}:{key}"


def outcome_key(draft: UUID) -> str:
    """The key that tells what has become of a draft that is not an order of its own."""
    return f"{{stock}}:outcome:{draft}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A draft on the queue.

    Args:
        number: the entry's own id.
        draft: None where the entry cannot be read.
        raw: what the entry says.
    """

    number: str
    id: UUID
    draft: Draft | None
    raw: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is known of a draft that is no order yet.

    Args:
        draft: while it is on the queue.
        place: in the queue, from 1.
        instead: the order that stands for it: the customer had used the key before.
        reason: why it was set aside, and will not become an order.
    """

    draft: Draft | None = None
    place: int = 0
    instead: UUID | None = None
    reason: str = ""


class Queue:
    """The queue of one Redis.

    Args:
        client: a redis-py client, text or bytes.
        forgotten: seconds after which a wake-up that no worker came to is sent again.
        dead: seconds without a sign after which what a worker has read is taken over.
    """

    def __init__(self, client: Redis, *, forgotten: float = 10.0, dead: float = 10.0) -> None:
        self.client: Any = client
        self.forgotten = forgotten
        self.dead = dead
        self._enqueue: Any = client.register_script(SCRIPTS["enqueue"])
        self._done: Any = client.register_script(SCRIPTS["done"])

    def put(self, draft: Draft) -> bool:
        """Take the stock of a draft and append it, all or nothing. The same draft is appended once.

        Returns:
            Whether a worker has to be told: nobody was for a while.

        Raises:
            SoldOut, OverLimit, Duplicate, StockNotLoaded: nothing was taken.
            StockUnavailable: Redis did not answer. The draft may be on the queue: its key tells.
        """
        note = {
            "lines": [(line.sku, line.quantity, line.limit or 0) for line in draft.lines],
            "buyer": f"{draft.sale}:{draft.customer}",
            "draft": orjson.dumps(draft, default=str).decode(),
        }
        keys = [NOTES, UNITS, STREAM, key_key(draft.customer, draft.key), LAST, WOKEN, *_of_lines(draft.skus)]
        try:
            arguments = [str(draft.id), orjson.dumps(note), round(self.forgotten), REMEMBERED]
            answer, what, left = self._enqueue(keys, arguments)
        except RedisError as error:
            raise StockUnavailable(f"Redis did not answer: {error}") from error
        match text(answer):
            case "queued":
                return bool(what)
            case "duplicate":
                raise Duplicate(UUID(text(what)))
        line = draft.lines[int(what) - 1]
        match text(answer):
            case "sold out":
                raise SoldOut(line.sku, wanted=line.quantity, left=int(left))
            case "over limit":
                raise OverLimit(line.sku, limit=line.limit or 0, taken=int(left))
        raise StockNotLoaded(f"{line.sku} has no counter in Redis: preheat its sale.")

    def read(self, worker: str, count: int) -> list[Entry]:
        """Up to `count` drafts for a worker to save: those that a dead worker has left, then new ones."""
        try:
            entries = self.client.xautoclaim(STREAM, GROUP, worker, round(self.dead * 1000), count=count)[1]
            if not entries:
                found = self.client.xreadgroup(GROUP, worker, {STREAM: ">"}, count=count)
                entries = found[0][1] if found else []
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            with suppress(ResponseError):  # another worker was faster
                self.client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
            return self.read(worker, count)
        return [_entry(number, fields) for number, fields in entries if fields]

    def put_back(self, worker: str, entries: Sequence[Entry]) -> None:
        """Let the next who reads have what a worker could not save now; nobody has to wait until it seems dead."""
        numbers = [entry.number for entry in entries]
        self.client.xclaim(STREAM, GROUP, worker, 0, numbers, idle=round(self.dead * 1000), justid=True)

    def rest(self) -> None:
        """The next draft shall wake a worker again. Whoever says so looks once more afterwards."""
        self.client.delete(WOKEN)

    def leave(self, worker: str) -> None:
        """Forget a worker that has finished all that it has read."""
        self.client.xgroup_delconsumer(STREAM, GROUP, worker)

    def done(self, entries: Iterable[Entry], *, sold: bool, instead: UUID | None = None) -> None:
        """Take drafts off the queue that are orders now, or whose units go back.

        Args:
            instead: the order that stands for them.
        """
        with self.client.pipeline(transaction=False) as pipe:
            for entry in entries:
                skus = entry.draft.skus if entry.draft else [line[0] for line in self._note(entry.id)["lines"]]
                key = key_key(entry.draft.customer, entry.draft.key) if entry.draft else outcome_key(entry.id)
                keys = [NOTES, UNITS, STREAM, key, DONE, outcome_key(entry.id), *_of_lines(skus)]
                how = "sold" if sold else "back"
                arguments = [str(entry.id), entry.number, GROUP, how, str(instead or ""), REMEMBERED]
                self._done(keys, arguments, client=pipe)
            pipe.execute()

    def set_aside(self, entry: Entry, reason: str) -> None:
        """Keep for people to look at what cannot be saved, and go on without it."""
        self.client.xadd(ASIDE, {"id": str(entry.id), "draft": entry.raw, "reason": reason}, maxlen=1000)
        self.client.set(outcome_key(entry.id), f"!{reason}", ex=REMEMBERED)
        self.done([entry], sold=False)

    def aside(self, count: int = 100) -> list[tuple[datetime, UUID, str, str]]:
        """What was set aside, the newest first: when, which draft, what it says, and why."""
        return [
            (datetime.fromtimestamp(int(text(number).split("-")[0]) / 1000).astimezone(), *_aside(fields))
            for number, fields in self.client.xrevrange(ASIDE, count=count)
        ]

    def __len__(self) -> int:
        return int(self.client.xlen(STREAM))

    def has(self, entry: str) -> bool:
        """Whether an entry is still on the queue."""
        return bool(self.client.xrange(STREAM, entry, entry))

    def get(self, draft: UUID) -> Waiting | None:
        """What is known of a draft; None when Redis knows nothing."""
        note = self._note(draft)
        if "entry" in note:
            entries = self.client.xrange(STREAM, note["entry"], note["entry"])
            place = int(note["place"]) - int(self.client.get(DONE) or 0)
            return Waiting(draft=_entry(*entries[0]).draft, place=max(1, place)) if entries else None
        outcome = self.client.get(outcome_key(draft))
        if outcome is None:
            return None
        said = text(outcome)
        return Waiting(reason=said[1:]) if said.startswith("!") else Waiting(instead=UUID(said))

    def under(self, customer: int, key: str) -> Waiting | None:
        """The queued draft that has a customer's idempotency key."""
        draft = self.client.get(key_key(customer, key))
        waiting = None if draft is None else self.get(UUID(text(draft)))
        return waiting if waiting is not None and waiting.draft is not None else None

    def allow(self, returned: Iterable[Returned]) -> None:
        """Customers have given units back, and may buy as many again."""
        with self.client.pipeline(transaction=False) as pipe:
            for each in returned:
                pipe.hincrby(bought_key(each.sku), f"{each.sale}:{each.customer}", -each.quantity)
            pipe.execute()

    def forget(self, skus: Sequence[str]) -> None:
        """Forget who has bought how many of skus whose sale is over."""
        if skus:
            self.client.delete(*map(bought_key, skus))

    def _note(self, draft: UUID) -> dict[str, Any]:
        note = self.client.hget(NOTES, str(draft))
        return {"lines": []} if note is None else orjson.loads(note)


def _of_lines(skus: Iterable[str]) -> list[str]:
    return [key for sku in skus for key in (counter_key(sku), bought_key(sku))]


def _entry(number: Any, fields: dict[Any, Any]) -> Entry:
    said = {text(name): text(value) for name, value in fields.items()}
    try:
        draft = _draft(said["draft"])
    except (ValueError, KeyError, TypeError, ArithmeticError):
        draft = None
    return Entry(text(number), UUID(said["id"]), draft, said.get("draft", ""))


def _aside(fields: dict[Any, Any]) -> tuple[UUID, str, str]:
    said = {text(name): text(value) for name, value in fields.items()}
    return UUID(said["id"]), said["draft"], said["reason"]


def _draft(raw: str) -> Draft:
    said = orjson.loads(raw)
    lines = [Line(line["sku"], line["quantity"], Decimal(line["price"]), line["limit"]) for line in said.pop("lines")]
    return Draft(
        **{**said, "id": UUID(said["id"]), "created_at": datetime.fromisoformat(said["created_at"])},
        lines=tuple(lines),
    )
