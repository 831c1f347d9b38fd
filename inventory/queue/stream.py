"""The queue of accepted orders in Redis: one script takes the stock and appends the order, workers save it later.

An order is on the queue, with a note of whose units it has, until a worker has saved it and says so. What a worker has
read and not finished is taken over by another; saving the same request twice is saving it once.
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

from inventory.counters.whole import NOTES, SCRIPTS, UNITS, Note, counter_key, text
from inventory.errors import Duplicate, OverLimit, SoldOut, StockNotLoaded, StockUnavailable
from inventory.requests import Buyer, OrderRequest, RequestItem, Returned, Waiting

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
"""What an entry says beside its items."""
KINDS_OF_LINES = {"sku": str, "quantity": int}
REMEMBERED = 86400
"""Seconds for which Redis knows who has an idempotency key, and what has become of a request that is no order."""


def bought_key(sku: str) -> str:
    """The key that counts what each customer has queued or bought of a sku, by sale."""
    return f"{{stock}}:bought:{sku}"


def key_key(customer: int, key: str) -> str:
    """The key that tells which request has a customer's idempotency key."""
    return f"{{stock}}:key:{customer}:{key}"


def outcome_key(request: UUID) -> str:
    """The key that tells what has become of a request that is not an order of its own."""
    return f"{{stock}}:outcome:{request}"


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A request on the queue.

    Args:
        number: the entry's own id.
        id: of the request; None where the entry does not say that either.
        request: None where the entry cannot be read.
        raw: what the entry says.
    """

    number: str
    id: UUID | None
    request: OrderRequest | None
    raw: str


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

    def put(self, request: OrderRequest) -> tuple[int, bool]:
        """Take the stock of a request and append it, all or nothing. The same request is appended once.

        Returns:
            Its place in the queue, from 1, and whether a worker has to be told: nobody was for a while.

        Raises:
            SoldOut, OverLimit, Duplicate, StockNotLoaded: nothing was taken.
            StockUnavailable: Redis did not answer. The request may be on the queue: its key tells.
        """
        note = {
            "items": [(item.sku, item.quantity, item.limit or 0, str(item.price)) for item in request.items],
            "buyer": _buyer(request.sale, request.customer),
            "key": request.key,
            "hash": request.body_hash,
            "request": orjson.dumps(request, default=str).decode(),
        }
        keys = [
            NOTES,
            UNITS,
            STREAM,
            key_key(request.customer, request.key),
            LAST,
            DONE,
            WOKEN,
            *_of_items(request.skus),
        ]
        try:
            arguments = [str(request.id), orjson.dumps(note), round(self.forgotten), REMEMBERED]
            answer, what, left = self._enqueue(keys, arguments)
        except RedisError as error:
            raise StockUnavailable(f"Redis did not answer: {error}") from error
        match text(answer):
            case "queued":
                return int(left), bool(what)
            case "duplicate":
                raise Duplicate(UUID(text(what)))
        item = request.items[int(what) - 1]
        match text(answer):
            case "sold out":
                raise SoldOut(item.sku, wanted=item.quantity, left=int(left))
            case "over limit":
                raise OverLimit(item.sku, limit=item.limit or 0, taken=int(left))
        raise StockNotLoaded(f"{item.sku} has no counter in Redis: preheat its sale.")

    def read(self, worker: str, count: int) -> list[QueueEntry]:
        """Up to `count` requests for a worker to save: those that a dead worker has left, then new ones."""
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

    def put_back(self, worker: str, entries: Sequence[QueueEntry]) -> None:
        """Let the next who reads have what a worker could not save now; nobody has to wait until it seems dead."""
        numbers = [entry.number for entry in entries]
        self.client.xclaim(STREAM, GROUP, PUT_BACK, 0, numbers, idle=round(self.dead * 1000), justid=True)
        self.leave(worker)

    def rest(self) -> None:
        """The next request shall wake a worker again. Whoever says so looks once more afterwards."""
        self.client.delete(WOKEN)

    def leave(self, worker: str) -> None:
        """Forget a worker that has finished all that it has read, and with it those that died and had done so."""
        self._leave([STREAM], [GROUP, worker, round(self.dead * 1000)])

    def done(self, entries: Iterable[QueueEntry]) -> None:
        """Take requests off the queue that are orders now."""
        ended = list(entries)
        with self.client.pipeline(transaction=False) as pipe:
            for entry in ended:
                self._take_off(pipe, entry, "sold", "")
            for entry, noted in zip(ended, pipe.execute(), strict=True):
                _warn_of_an_orphan(entry, noted)

    def back(self, entry: QueueEntry, *, instead: UUID | None = None, reason: str = "") -> bool:
        """Take a request off the queue that is no order. Its units go back.

        Args:
            instead: the order that stands for it, and has its key. Where there is none,
            reason: why it is rejected. It keeps its key: who sends that again is told so, and does not buy anew.

        Returns:
            Whether it was noted: its units go back once.
        """
        outcome = str(instead or "")
        if instead is None and (request := entry.request) is not None:
            said = {"sale": request.sale, "customer": request.customer, "hash": request.body_hash, "reason": reason}
            outcome = orjson.dumps(said).decode()
        noted = self._take_off(self.client, entry, "back", outcome)
        _warn_of_an_orphan(entry, noted)
        return bool(noted == 1)

    def _take_off(self, client: Any, entry: QueueEntry, how: str, outcome: str) -> Any:
        if (
            entry.request is None
        ):  # nobody was promised anything; if there is a note all the same, it ends as old ones do
            client.xack(STREAM, GROUP, entry.number)
            client.xdel(STREAM, entry.number)
            return 0
        request = entry.request
        keys = [NOTES, UNITS, STREAM, key_key(request.customer, request.key), DONE, outcome_key(request.id)]
        arguments = [str(request.id), entry.number, GROUP, how, outcome, REMEMBERED]
        return self._done([*keys, *_of_items(request.skus)], arguments, client=client)

    def promised(self, entry: QueueEntry) -> QueueEntry:
        """An entry that cannot be read, with what its note says of it; without a request where that says nothing."""
        request = entry.id or self._whose(entry.number)
        return (
            entry if request is None else replace(entry, id=request, request=_request_of(request, self._note(request)))
        )

    def _whose(self, number: str) -> UUID | None:
        for request, said in self.client.hgetall(NOTES).items():
            if _said(said).get("entry") == number:
                with suppress(ValueError):  # whose note this is, nobody knows
                    return UUID(text(request))
        return None

    def dead_letter(self, entry: QueueEntry, reason: str) -> None:
        """Keep for people to look at what cannot be saved, and go on without it."""
        self.client.xadd(
            ASIDE, {"id": str(entry.id or entry.number), "request": entry.raw, "reason": reason}, maxlen=1000
        )
        self.back(entry, reason=reason)

    def aside(self, count: int = 100) -> list[tuple[datetime, str, str, str]]:
        """What was set aside, the newest first: when, which request or else which entry, what it says, and why."""
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
            if note.buyer and note.entry and not {sku for sku, _ in note.items}.isdisjoint(skus):
                sale, _ = buyer_of(note.buyer)
                if sale not in sales and self.has(note.entry):
                    sales.add(sale)
        return sales

    def has(self, entry: str) -> bool:
        """Whether an entry is still on the queue."""
        return bool(self.client.xrange(STREAM, entry, entry))

    def get(self, request: UUID) -> Waiting | None:
        """What is known of a request; None when Redis knows nothing."""
        note = self._note(request)
        # Who leaves the queue between the two looks has an outcome, or is an order.
        if "entry" in note and (entries := self.client.xrange(STREAM, note["entry"], note["entry"])):
            place = note.get("place")
            place = place - int(self.client.get(DONE) or 0) if isinstance(place, int) else 1
            return Waiting(request=_entry(*entries[0]).request or _request_of(request, note), place=max(1, place))
        outcome = self.client.get(outcome_key(request))
        if outcome is None:
            return None
        if not text(outcome).startswith("{"):
            return Waiting(instead=UUID(text(outcome)))
        said = orjson.loads(outcome)
        return Waiting(reason=said["reason"], sale=said["sale"], customer=said["customer"], body_hash=said["hash"])

    def under(self, customer: int, key: str) -> Waiting | None:
        """The queued request that has a customer's idempotency key."""
        request = self.client.get(key_key(customer, key))
        waiting = None if request is None else self.get(UUID(text(request)))
        return waiting if waiting is not None and waiting.request is not None else None

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

    def _note(self, request: UUID) -> dict[str, Any]:
        note = self.client.hget(NOTES, str(request))
        return {} if note is None else _said(note)


def _said(note: bytes | str) -> dict[str, Any]:
    """What a note says; nothing where it cannot be read: that of one request must not stop the others."""
    try:
        said = orjson.loads(note)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _warn_of_an_orphan(entry: QueueEntry, noted: int) -> None:
    if noted == -1:
        logger.warning(
            "OrderRequest %s was queued, and Redis had no note of it: its counters are mended later.", entry.id
        )


def _buyer(sale: int, customer: int) -> str:
    return f"{sale}:{customer}"


def buyer_of(said: str) -> Buyer:
    """Who is meant by "sale:customer"."""
    sale, customer = map(int, said.split(":"))
    return sale, customer


def _of_items(skus: Iterable[str]) -> list[str]:
    return [key for sku in skus for key in (counter_key(sku), bought_key(sku))]


def _entry(number: Any, fields: dict[Any, Any]) -> QueueEntry:
    said = {_legible(name): _legible(value) for name, value in fields.items()}
    raw = said.get("request", "")
    try:
        request = _request(raw)
        return QueueEntry(text(number), request.id, request, raw)
    except Exception:  # whatever is wrong with it: who reads the queue must be able to go on
        with suppress(ValueError):
            return QueueEntry(text(number), UUID(said.get("id", "")), None, raw)
        return QueueEntry(text(number), None, None, raw)


def _legible(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _aside(fields: dict[Any, Any]) -> tuple[str, str, str]:
    said = {text(name): text(value) for name, value in fields.items()}
    return said["id"], said["request"], said["reason"]


def _request(raw: str) -> OrderRequest:
    said = orjson.loads(raw)
    items = [
        RequestItem(item["sku"], item["quantity"], Decimal(item["price"]), item["limit"]) for item in said.pop("items")
    ]
    return _checked(
        OrderRequest(
            **{**said, "id": UUID(said["id"]), "created_at": datetime.fromisoformat(said["created_at"])},
            items=tuple(items),
        )
    )


def _checked(request: OrderRequest) -> OrderRequest:
    """The request, if all that it says is of the kind that it should be.

    Else it would be found out when it is saved, by then perhaps under a name that nobody asks for; or Postgres would
    say that it cannot compare such values, as it does where its tables are not as they should be.

    Raises:
        ValueError: it is no order.
    """
    of_items = [(getattr(item, name), kind) for item in request.items for name, kind in KINDS_OF_LINES.items()]
    said = [(getattr(request, name), kind) for name, kind in KINDS.items()] + of_items
    # Not isinstance: for Python, true is a whole number.
    if any(type(value) is not kind for value, kind in said):
        raise ValueError("That is no order.")
    return request


def _request_of(request: UUID, note: dict[str, Any]) -> OrderRequest | None:
    """A request as its note has it: all but the moment of the order, which is that of the queue. None without one."""
    try:
        sale, customer = buyer_of(note["buyer"])
        items = tuple(
            RequestItem(sku, units, Decimal(price), limit or None) for sku, units, limit, price in note["items"]
        )
        at = datetime.fromtimestamp(note["at"], UTC)
        return _checked(OrderRequest(request, customer, sale, items, note["key"], note["hash"], at))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError):
        return None
