"""Checkers of a sale: conservation law, one order per request, no false "sold out", no customer refused for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from inventory.audit import Figures
from lab.checkers.base import Checker
from lab.explorer.history import History
from lab.explorer.terms import Violation
from lab.sandbox.sandbox import Sandbox

SOLD, SOLD_OUT, QUEUED, REFUSED = "sold", "sold out", "queued", "refused: "
"""Answers of the clients. The name of an error follows `REFUSED`."""


class Records(Protocol):
    """The contents of the tables at the end of a run.

    Attributes:
        repairs: whether the shop repairs the damage of a crashed process.
    """

    @property
    def repairs(self) -> bool: ...

    def figures(self) -> Figures:
        """Return the figures of the sku that the conservation law compares: units received, on hand and sold."""
        ...

    def unowned(self, on_hand: int) -> int:
        """Return how many of the units on hand cannot be bought, because Redis neither offers nor reserves them."""
        ...

    def order_keys(self) -> Iterable[str]:
        """Return the idempotency key of each order."""
        ...


class StockChecker(Checker):
    """Checks the orders of all clients.

    Args:
        records: the contents of the tables.
        quantities: number of units that each client wants, by name.
        keys: the idempotency key of each client's request, by name.
        same_request: whether all clients send the same request.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        history: History,
        records: Records,
        *,
        quantities: Mapping[str, int],
        keys: Mapping[str, str],
        same_request: bool,
    ) -> None:
        super().__init__(sandbox, history)
        self.records = records
        self.quantities = quantities
        self.keys = keys
        self.same_request = same_request

    def check(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        with self.sandbox.as_default():
            return list(self._violations(answers))

    def _violations(self, answers: Mapping[str, str]) -> Iterator[Violation]:
        law = self.records.figures()
        unowned, orders = self.records.unowned(law.on_hand), Counter(self.records.order_keys())
        if not law.conserved:
            text = f"{law.received} units were received, but {law.on_hand} are on hand and {law.sold} are sold."
            yield "conserved", text
        if unowned:
            yield "conserved", f"{law.on_hand} units are on hand, but {unowned} of them cannot be bought."
        if self.same_request and (repeated := orders[next(iter(self.keys.values()))]) > 1:
            yield "once", f"One customer sent the same request again and has {repeated} orders."
        for name, answer in answers.items():
            wanted = self.quantities[name]
            if answer == SOLD_OUT and law.on_hand >= wanted:
                text = f"{name} wanted {wanted} and was refused as sold out. Units left: {law.on_hand}."
                yield "no false refusal", text
            if answer in (SOLD, QUEUED) and not orders[self.keys[name]]:
                yield "once", f'{name} got the answer "{answer}", but has no order.'
            # A crash may also cause an error in another client of the process: with group commit, one client saves the
            # orders of others.
            known = answer in (SOLD, SOLD_OUT, QUEUED) or answer.startswith(REFUSED)
            if not known and not self.history.crashed:
                yield "progress", f"{name} met an error that no client should see: {answer}"
            if answer.startswith(REFUSED) and (self.records.repairs or not self.history.crashed):
                error = answer.removeprefix(REFUSED)
                yield "progress", f"{name} is refused ({error}) even when no other client is active."

    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        with self.sandbox.as_default():
            law = self.records.figures()
        return {"received": law.received, "on hand": law.on_hand, "sold": law.sold}


class PromiseChecker(StockChecker):
    """Also checks that no more sales were confirmed than there were units. Needed if servers may lose orders."""

    def _violations(self, answers: Mapping[str, str]) -> Iterator[Violation]:
        law, confirmed = self.records.figures(), self._confirmed(answers)
        if confirmed > law.received:
            text = f"{confirmed} sales were confirmed, but the stock fell from {law.received} to {law.on_hand}."
            yield "conserved", text
        yield from super()._violations(answers)

    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        return {**super().ledger(answers), "confirmed": self._confirmed(answers)}

    def _confirmed(self, answers: Mapping[str, str]) -> int:
        return sum(answer == SOLD for answer in answers.values())
