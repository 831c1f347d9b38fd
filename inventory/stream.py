"""The queue of accepted orders in Redis: one script takes the stock and appends the order, workers save it later.

An order is on the queue, with a note of whose units it has, until a worker has saved it and says so. What a worker has
read and not finished is taken over by another; saving the same draft twice is saving it once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
from redis import Redis, RedisError
from redis.exceptions import ResponseError

from inventory.counters import NOTES, SCRIPTS, UNITS, Note, counter_key, text
from inventory.draft import Buyer, Draft, Line, Returned
from inventory.errors import Duplicate, OverLimit, SoldOut, StockNotLoaded, StockUnavailable

logger = logging.getLogger(__name__)

STREAM = "{stock}:queue"
GROUP = "workers"
LAST = "{stock}:queue:last"
PUT_BACK = "nobody"
"""The worker that has what others could not save. It is never at work."""
DONE = "{stock}:queue:done"
WOKEN = "{stock}:queue:woken"
ASIDE = "{stock}:queue:aside"
KINDS = {"customer": int, "sale": int, "key": str, "body_hash": str}
"""What an entry says beside its lines."""
KINDS_OF_LINES = {"sku": str, "quantity": int}
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
        id: of the draft; None where the entry does not say that either.
        draft: None where the entry cannot be read.
        raw: what the entry says.
    """

    number: str
    id: UUID | None
    draft: Draft | None
    raw: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is known of a draft that is no order yet.

    Args:
        draft: while it is on the queue.
        place: in the queue, from 1.
        instead: the order that stands for it: the customer had used the key before.
        reason: why it is no order, and will not become one.
        sale: where there is a reason, and
        customer: whose it is, and
        body_hash: of his request.
    """

    draft: Draft | None = None
    place: int = 0
    instead: UUID | None = None
    reason: str = ""
    sale: int = 0
    customer: int = 0
    body_hash: str = ""


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
        self._allow: Any = client.register_script(SCRIPTS["allow"])
        self._leave: Any = client.register_script(SCRIPTS["leave"])
        self._correct: Any = client.register_script(SCRIPTS["correct"])

    def put(self, draft: Draft) -> tuple[int, bool]:
        """Take the stock of a draft and append it, all or nothing. The same draft is appended once.

        Returns:
            Its place in the queue, from 1, and whether a worker has to be told: nobody was for a while.

        Raises:
            SoldOut, OverLimit, Duplicate, StockNotLoaded: nothing was taken.
            StockUnavailable: Redis did not answer. The draft may be on the queue: its key tells.
        """
        note = {
            "lines": [(line.sku, line.quantity, line.limit or 0, str(line.price)) for line in draft.lines],
            "buyer": _buyer(draft.sale, draft.customer),
            "key": draft.key,
            "hash": draft.body_hash,
            "draft": orjson.dumps(draft, default=str).decode(),
        }
        keys = [NOTES, UNITS, STREAM, key_key(draft.customer, draft.key), LAST, DONE, WOKEN, *_of_lines(draft.skus)]
        try:
            arguments = [str(draft.id), orjson.dumps(note), round(self.forgotten), REMEMBERED]
            answer, what, left = self._enqueue(keys, arguments)
        except RedisError as error:
            raise StockUnavailable(f"Redis did not answer: {error}") from error
        match text(answer):
            case "queued":
                return int(left), bool(what)
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
            if entries:
                logger.warning("Queued orders taken over from a worker that did not finish them: %d.", len(entries))
            else:
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
        self.client.xclaim(STREAM, GROUP, PUT_BACK, 0, numbers, idle=round(self.dead * 1000), justid=True)
        self.leave(worker)

    def rest(self) -> None:
        """The next draft shall wake a worker again. Whoever says so looks once more afterwards."""
        self.client.delete(WOKEN)

    def leave(self, worker: str) -> None:
        """Forget a worker that has finished all that it has read, and with it those that died and had done so."""
        self._leave([STREAM], [GROUP, worker, round(self.dead * 1000)])

    def done(self, entries: Iterable[Entry]) -> None:
        """Take drafts off the queue that are orders now."""
        ended = list(entries)
        with self.client.pipeline(transaction=False) as pipe:
            for entry in ended:
                self._take_off(pipe, entry, "sold", "")
            for entry, noted in zip(ended, pipe.execute(), strict=True):
                _warn_of_an_orphan(entry, noted)

    def back(self, entry: Entry, *, instead: UUID | None = None, reason: str = "") -> bool:
        """Take a draft off the queue that is no order. Its units go back.

        Args:
            instead: the order that stands for it, and has its key. Where there is none,
            reason: why it is rejected. It keeps its key: who sends that again is told so, and does not buy anew.

        Returns:
            Whether it was noted: its units go back once.
        """
        outcome = str(instead or "")
        if instead is None and (draft := entry.draft) is not None:
            said = {"sale": draft.sale, "customer": draft.customer, "hash": draft.body_hash, "reason": reason}
            outcome = orjson.dumps(said).decode()
        noted = self._take_off(self.client, entry, "back", outcome)
        _warn_of_an_orphan(entry, noted)
        return bool(noted == 1)

    def _take_off(self, client: Any, entry: Entry, how: str, outcome: str) -> Any:
        if entry.draft is None:  # nobody was promised anything; if there is a note all the same, it ends as old ones do
            client.xack(STREAM, GROUP, entry.number)
            client.xdel(STREAM, entry.number)
            return 0
        draft = entry.draft
        keys = [NOTES, UNITS, STREAM, key_key(draft.customer, draft.key), DONE, outcome_key(draft.id)]
        arguments = [str(draft.id), entry.number, GROUP, how, outcome, REMEMBERED]
        return self._done([*keys, *_of_lines(draft.skus)], arguments, client=client)

    def promised(self, entry: Entry) -> Entry:
        """An entry that cannot be read, with what its note says of it; without a draft where that says nothing."""
        draft = entry.id or self._whose(entry.number)
        return entry if draft is None else replace(entry, id=draft, draft=_draft_of(draft, self._note(draft)))

    def _whose(self, number: str) -> UUID | None:
        for draft, said in self.client.hgetall(NOTES).items():
            if _said(said).get("entry") == number:
                with suppress(ValueError):  # whose note this is, nobody knows
                    return UUID(text(draft))
        return None

    def set_aside(self, entry: Entry, reason: str) -> None:
        """Keep for people to look at what cannot be saved, and go on without it."""
        self.client.xadd(
            ASIDE, {"id": str(entry.id or entry.number), "draft": entry.raw, "reason": reason}, maxlen=1000
        )
        self.back(entry, reason=reason)

    def aside(self, count: int = 100) -> list[tuple[datetime, str, str, str]]:
        """What was set aside, the newest first: when, which draft or else which entry, what it says, and why."""
        return [
            (datetime.fromtimestamp(int(text(number).split("-")[0]) / 1000).astimezone(), *_aside(fields))
            for number, fields in self.client.xrevrange(ASIDE, count=count)
        ]

    def __len__(self) -> int:
        return int(self.client.xlen(STREAM))

    def sales_of(self, notes: Iterable[Note], skus: Collection[str]) -> set[int]:
        """The sales whose orders for some of these skus are still on the queue, of all that is noted."""
        sales: set[int] = set()
        for note in notes:
            if note.buyer and note.entry and not {sku for sku, _ in note.lines}.isdisjoint(skus):
                sale, _ = buyer_of(note.buyer)
                if sale not in sales and self.has(note.entry):
                    sales.add(sale)
        return sales

    def has(self, entry: str) -> bool:
        """Whether an entry is still on the queue."""
        return bool(self.client.xrange(STREAM, entry, entry))

    def get(self, draft: UUID) -> Waiting | None:
        """What is known of a draft; None when Redis knows nothing."""
        note = self._note(draft)
        # Who leaves the queue between the two looks has an outcome, or is an order.
        if "entry" in note and (entries := self.client.xrange(STREAM, note["entry"], note["entry"])):
            place = note.get("place")
            place = place - int(self.client.get(DONE) or 0) if isinstance(place, int) else 1
            return Waiting(draft=_entry(*entries[0]).draft or _draft_of(draft, note), place=max(1, place))
        outcome = self.client.get(outcome_key(draft))
        if outcome is None:
            return None
        if not text(outcome).startswith("{"):
            return Waiting(instead=UUID(text(outcome)))
        said = orjson.loads(outcome)
        return Waiting(reason=said["reason"], sale=said["sale"], customer=said["customer"], body_hash=said["hash"])

    def under(self, customer: int, key: str) -> Waiting | None:
        """The queued draft that has a customer's idempotency key."""
        draft = self.client.get(key_key(customer, key))
        waiting = None if draft is None else self.get(UUID(text(draft)))
        return waiting if waiting is not None and waiting.draft is not None else None

    def allow(self, returned: Iterable[Returned]) -> None:
        """Customers have given units back, and may buy as many again of what they have bought here."""
        with self.client.pipeline(transaction=False) as pipe:
            for each in returned:
                self._allow([bought_key(each.sku)], [_buyer(each.sale, each.customer), each.quantity], client=pipe)
            pipe.execute()

    def bought(self, sku: str) -> Mapping[Buyer, int]:
        """How many units of a sku each customer has queued or bought, where that is counted."""
        counted = {}
        for buyer, units in self.client.hgetall(bought_key(sku)).items():
            try:
                counted[buyer_of(text(buyer))] = int(units)
            except ValueError:
                logger.error("What Redis has counted as bought of %s cannot be read: %r by %r", sku, units, buyer)
        return counted

    def correct(self, sku: str, buyer: Buyer, was: int, units: int) -> bool:
        """Set how many units of a sku a customer has queued or bought, and return whether it still was what it was."""
        return bool(self._correct([bought_key(sku)], [_buyer(*buyer), was, units]))

    def forget(self, skus: Sequence[str]) -> None:
        """Forget who has bought how many of skus whose sale is over."""
        if skus:
            self.client.delete(*map(bought_key, skus))

    def _note(self, draft: UUID) -> dict[str, Any]:
        note = self.client.hget(NOTES, str(draft))
        return {} if note is None else _said(note)


def _said(note: bytes | str) -> dict[str, Any]:
    """What a note says; nothing where it cannot be read: that of one draft must not stop the others."""
    try:
        said = orjson.loads(note)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _warn_of_an_orphan(entry: Entry, noted: int) -> None:
    if noted == -1:
        logger.warning("Draft %s was queued, and Redis had no note of it: its counters are mended later.", entry.id)


def _buyer(sale: int, customer: int) -> str:
    return f"{sale}:{customer}"


def buyer_of(said: str) -> Buyer:
    """Who is meant by "sale:customer"."""
    sale, customer = map(int, said.split(":"))
    return sale, customer


def _of_lines(skus: Iterable[str]) -> list[str]:
    return [key for sku in skus for key in (counter_key(sku), bought_key(sku))]


def _entry(number: Any, fields: dict[Any, Any]) -> Entry:
    said = {_legible(name): _legible(value) for name, value in fields.items()}
    raw = said.get("draft", "")
    try:
        draft = _draft(raw)
        return Entry(text(number), draft.id, draft, raw)
    except Exception:  # whatever is wrong with it: who reads the queue must be able to go on
        with suppress(ValueError):
            return Entry(text(number), UUID(said.get("id", "")), None, raw)
        return Entry(text(number), None, None, raw)


def _legible(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _aside(fields: dict[Any, Any]) -> tuple[str, str, str]:
    said = {text(name): text(value) for name, value in fields.items()}
    return said["id"], said["draft"], said["reason"]


def _draft(raw: str) -> Draft:
    said = orjson.loads(raw)
    lines = [Line(line["sku"], line["quantity"], Decimal(line["price"]), line["limit"]) for line in said.pop("lines")]
    return _checked(
        Draft(
            **{**said, "id": UUID(said["id"]), "created_at": datetime.fromisoformat(said["created_at"])},
            lines=tuple(lines),
        )
    )


def _checked(draft: Draft) -> Draft:
    """The draft, if all that it says is of the kind that it should be.

    Else it would be found out when it is saved, by then perhaps under a name that nobody asks for; or Postgres would
    say that it cannot compare such values, as it does where its tables are not as they should be.

    Raises:
        ValueError: it is no order.
    """
    of_lines = [(getattr(line, name), kind) for line in draft.lines for name, kind in KINDS_OF_LINES.items()]
    said = [(getattr(draft, name), kind) for name, kind in KINDS.items()] + of_lines
    # Not isinstance: for Python, true is a whole number.
    if any(type(value) is not kind for value, kind in said):
        raise ValueError("That is no order.")
    return draft


def _draft_of(draft: UUID, note: dict[str, Any]) -> Draft | None:
    """A draft as its note has it: all but the moment of the order, which is that of the queue. None without one."""
    try:
        sale, customer = buyer_of(note["buyer"])
        lines = tuple(Line(sku, units, Decimal(price), limit or None) for sku, units, limit, price in note["lines"])
        at = datetime.fromtimestamp(note["at"], UTC)
        return _checked(Draft(draft, customer, sale, lines, note["key"], note["hash"], at))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError):
        return None
