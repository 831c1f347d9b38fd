"""Stock in Redis: a copy of what is on hand, taken from by one script, with a note of what is reserved for whom.

Redis admits; Postgres decides. The law here is `counter + reserved = on hand`, true at rest.
Every key has the hash tag `{stock}`: a cart of several skus is one script, and a script lives in one slot.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from redis import Redis, RedisError

from inventory.draft import Draft
from inventory.errors import SoldOut, StockNotLoaded, StockUnavailable

logger = logging.getLogger(__name__)

RESERVED = "{stock}:reserved"
SCRIPTS = {name: (Path(__file__).parent / "lua" / f"{name}.lua").read_text() for name in ("take", "give_back", "add")}


def counter_key(sku: str) -> str:
    """The key that counts the units of a sku which Redis may still admit."""
    return f"{{stock}}:counter:{sku}"


class Counters:
    """The counters of one Redis.

    Args:
        client: a redis-py client, text or bytes.
    """

    def __init__(self, client: Redis) -> None:
        self.client = client
        self._take = client.register_script(SCRIPTS["take"])
        self._give_back = client.register_script(SCRIPTS["give_back"])
        self._add = client.register_script(SCRIPTS["add"])

    def preheat(self, sku: str, on_hand: int) -> bool:
        """Copy the stock of a sku into Redis, unless it is there already.

        Call it before the sale opens: a copy made while orders are on their way would count their units twice.

        Returns:
            Whether a counter was made.
        """
        return bool(self.client.set(counter_key(sku), on_hand, nx=True))

    def unload(self, skus: Iterable[str]) -> None:
        """Delete the counters of skus whose sale is over."""
        if keys := [counter_key(sku) for sku in skus]:
            self.client.delete(*keys)

    def take(self, draft: Draft) -> None:
        """Take every line of a draft, or none, and note it as reserved. The same draft takes only once.

        Raises:
            SoldOut, StockNotLoaded: nothing was taken.
            StockUnavailable: Redis did not answer. What it may have taken is noted under the draft's id.
        """
        keys = [RESERVED, *(counter_key(line.sku) for line in draft.lines)]
        note = json.dumps([[line.sku, line.quantity] for line in draft.lines])
        try:
            answer, position, left = self._take(keys, [str(draft.id), note, *(line.quantity for line in draft.lines)])
        except RedisError as error:
            raise StockUnavailable(f"Redis did not answer: {error}") from error
        line = draft.lines[int(position) - 1]
        match answer:
            case b"sold out" | "sold out":
                raise SoldOut(line.sku, wanted=line.quantity, left=int(left))
            case b"not loaded" | "not loaded":
                raise StockNotLoaded(f"{line.sku} has no counter in Redis: preheat its sale.")

    def give_back(self, draft: Draft) -> None:
        """Add the units of a draft that surely was not saved. Does so once, however often it is called."""
        keys = [RESERVED, *(counter_key(line.sku) for line in draft.lines)]
        try:
            self._give_back(keys, [str(draft.id), *(line.quantity for line in draft.lines)])
        except RedisError:
            logger.warning("Draft %s stays noted as reserved until it is reconciled: Redis did not answer.", draft.id)

    def settle(self, draft: Draft) -> None:
        """Forget the note of a draft whose order is committed."""
        try:
            self.client.hdel(RESERVED, str(draft.id))
        except RedisError:
            logger.warning("Order %s stays noted as reserved until it is reconciled: Redis did not answer.", draft.id)

    def add(self, quantities: Sequence[tuple[str, int]]) -> None:
        """Add units of orders that are no longer orders. A sku without a counter is not on sale: it is left alone.

        Args:
            quantities: pairs of sku and units.
        """
        if quantities:
            self._add([counter_key(sku) for sku, _ in quantities], [quantity for _, quantity in quantities])

    def left(self, skus: Sequence[str]) -> Mapping[str, int | None]:
        """What Redis may still admit of each sku; None where there is no counter."""
        if not skus:
            return {}
        counts = self.client.mget([counter_key(sku) for sku in skus])
        return {sku: None if count is None else int(count) for sku, count in zip(skus, counts, strict=True)}

    def reserved(self) -> Mapping[str, int]:
        """Units of each sku that are noted as reserved for a draft."""
        units: dict[str, int] = {}
        for note in self.client.hvals(RESERVED):
            for sku, quantity in json.loads(note):
                units[sku] = units.get(sku, 0) + quantity
        return units
