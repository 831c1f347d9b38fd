"""Stock in Redis: a copy of what is on hand, taken from by one script, with a note of what is reserved for whom.

Redis admits; Postgres decides. The law here is `counter + reserved = on hand`, true at rest, and `load` restores it.
Every key has the hash tag `{stock}`: a cart of several skus is one script, and a script lives in one slot.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from redis import Redis, RedisError

from inventory.errors import SoldOut, StockNotLoaded, StockReserved, StockUnavailable
from inventory.requests import OrderRequest

logger = logging.getLogger(__name__)

NOTES = "{stock}:reserved"
UNITS = "{stock}:reserved:units"
ENTRY = re.compile(r"(\d+-\d+)?")
BUYER = re.compile(r"(\d+:\d+)?")
LUA = Path(__file__).parent / "lua"
SCRIPTS = {path.stem: f"{(LUA / 'items_of.lua').read_text()}\n{path.read_text()}" for path in LUA.glob("*.lua")}


def counter_key(sku: str) -> str:
    """The key that counts the units of a sku which Redis may still admit."""
    return f"{{stock}}:counter:{sku}"


@dataclass(frozen=True, slots=True)
class Note:
    """Units that are reserved for a request.

    Args:
        items: pairs of sku and units.
        at: seconds since 1970 on the server's clock.
        entry: the request's entry in the queue; empty for one that is being saved at once, and so is
        buyer: who has queued it, as the queue calls him.
    """

    request: UUID
    items: Sequence[tuple[str, int]]
    at: float
    entry: str = ""
    buyer: str = ""


class Counters:
    """The counters of one Redis.

    Args:
        client: a redis-py client, text or bytes.
    """

    def __init__(self, client: Redis) -> None:
        self.client: Any = client
        self._take = client.register_script(SCRIPTS["take"])
        self._settle = client.register_script(SCRIPTS["confirm_reservation"])
        self._load: Any = client.register_script(SCRIPTS["load"])
        self._recount: Any = client.register_script(SCRIPTS["recount"])

    def load(self, sku: str, on_hand: int, committed: Collection[UUID], *, make: bool) -> int | None:
        """Make the counter of a sku agree with what is on hand, less what is reserved.

        Args:
            on_hand: in Postgres. The caller holds the sku's row until this returns.
            committed: requests that are noted as reserved and are orders already.
            make: make a counter that is not there; otherwise it is left alone.

        Returns:
            By how much it was wrong, 0 when it was not there and is now; None when there is none.
        """
        arguments = [sku, on_hand, "make" if make else "mend", *map(str, committed)]
        before, after = self._load([NOTES, UNITS, counter_key(sku)], arguments)
        if after is None:
            return None
        return 0 if before is None else int(after) - int(before)

    def unload(self, skus: Iterable[str]) -> None:
        """Delete the counters of skus whose sale is over, or that cannot be trusted any more."""
        if keys := [counter_key(sku) for sku in skus]:
            self.client.delete(*keys)

    def take(self, request: OrderRequest) -> None:
        """Take every item of a request, or none, and note it as reserved. The same request takes only once.

        Raises:
            SoldOut, StockReserved, StockNotLoaded: nothing was taken.
            StockUnavailable: Redis did not answer. What it may have taken is given back; if that is not answered
                either, it stays noted under the request's id.
        """
        note = orjson.dumps({"items": [(item.sku, item.quantity) for item in request.items]})
        try:
            answer, position, left = self._take(_keys(request.skus), [str(request.id), note])
        except RedisError as error:
            # Who asks again comes with a new request, and would take as many once more.
            with suppress(RedisError):
                self._settle(_keys(request.skus), [str(request.id), "back"])
            raise StockUnavailable(f"Redis did not answer: {error}") from error
        item = request.items[int(position) - 1]
        match answer:
            case b"reserved" | "reserved":
                raise StockReserved(item.sku)
            case b"sold out" | "sold out":
                raise SoldOut(item.sku, wanted=item.quantity, left=int(left))
            case b"not loaded" | "not loaded":
                raise StockNotLoaded(f"{item.sku} has no counter in Redis: preheat its sale.")

    def give_back(self, request: UUID, skus: Iterable[str]) -> bool:
        """Add the units of a request that surely was not saved. Does so once, however often it is called.

        Args:
            skus: of its items, in their order.

        Returns:
            Whether it was noted; False also when Redis did not answer.
        """
        return self._end(request, skus, "back")

    def confirm_reservation(self, request: UUID, skus: Iterable[str]) -> bool:
        """Forget the note of a request whose order is committed. See `give_back`."""
        return self._end(request, skus, "sold")

    def _end(self, request: UUID, skus: Iterable[str], how: str) -> bool:
        try:
            return bool(self._settle(_keys(skus), [str(request), how]))
        except RedisError:
            logger.warning(
                "OrderRequest %s stays noted as reserved until it is reconciled: Redis did not answer.", request
            )
            return False

    def skus(self) -> list[str]:
        """The skus that have a counter, or several."""
        prefix = counter_key("")
        names = {text(key)[len(prefix) :] for key in self.client.scan_iter(match=f"{prefix}*", count=1000)}
        return sorted({name.partition("\0")[0] for name in names})

    def left(self, skus: Sequence[str]) -> Mapping[str, int | None]:
        """What Redis may still admit of each sku; None where there is no counter."""
        if not skus:
            return {}
        counts = self.client.mget([counter_key(sku) for sku in skus])
        return {sku: None if count is None else int(count) for sku, count in zip(skus, counts, strict=True)}

    def admits(self, sku: str) -> int | None:
        """What Redis may still admit of a sku and what is reserved, as of one moment; None where there is no counter.

        While Redis is right this is never less than what is on hand.
        """
        with self.client.pipeline(transaction=True) as asked:
            asked.get(counter_key(sku))
            asked.hget(UNITS, sku)
            count, reserved = asked.execute()
        return None if count is None else int(count) + int(reserved or 0)

    def reserved(self) -> Mapping[str, int]:
        """Units of each sku that are noted as reserved for a request."""
        return {text(sku): int(units) for sku, units in self.client.hgetall(UNITS).items()}

    def recount(self) -> list[tuple[str, int, int]]:
        """Make what is reserved agree with the notes, whose sum it is, unless one of them cannot be read.

        Returns:
            The sku of each counter for which it did not, the units that were reserved, and those that are.
        """
        wrong = self._recount([NOTES, UNITS])
        return sorted((text(name).partition("\0")[0], int(was), int(units)) for name, was, units in wrong)

    def requests(self) -> set[UUID]:
        """The requests that have units reserved. What is no request's id is passed over, as in `notes`."""
        found = set()
        for request in self.client.hkeys(NOTES):
            with suppress(ValueError):
                found.add(UUID(text(request)))
        return found

    def notes(self) -> list[Note]:
        """Every note, the oldest first. One that cannot be read stops nobody: it is logged and stays."""
        made = []
        for request, said in self.client.hgetall(NOTES).items():
            try:
                made.append(_note(request, said))
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
                logger.exception("What is noted in Redis as reserved for request %r cannot be read: %r", request, said)
        return sorted(made, key=lambda note: note.at)


def _note(request: bytes | str, said: bytes | str) -> Note:
    note = orjson.loads(said)
    # The scripts count a part of a unit as none, and so must who looks at what is noted.
    items = [(str(sku), _whole(units)) for sku, units, *_ in note["items"]]
    entry, buyer = note.get("entry", ""), note.get("buyer", "")
    if not (ENTRY.fullmatch(entry) and BUYER.fullmatch(buyer)):
        raise ValueError(f"It names the entry {entry!r} and the buyer {buyer!r}.")
    return Note(UUID(text(request)), items, float(note["at"]), entry, buyer)


def _whole(units: object) -> int:
    if isinstance(units, bool) or not isinstance(units, (int, float)) or units != int(units):
        raise ValueError(f"{units!r} is no number of units.")
    return int(units)


def _keys(skus: Iterable[str]) -> list[str]:
    return [NOTES, UNITS, *(counter_key(sku) for sku in skus)]


def text(value: bytes | str) -> str:
    """What a client said, whether it decodes or not."""
    return value.decode() if isinstance(value, bytes) else value
