"""Checkers for locks. They check that each sale took one unit, or that the record has the part of every client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from lab.checkers.base import Checker
from lab.explorer.terms import CRASHED, Violation

STOCK = "stock"
"""The Redis key of the counter."""
UNITS = 10
"""The initial value of the counter."""
RECORD = "record"
"""The Redis key of the record to which each client, called a source, adds its part."""
SOLD, OVERTAKEN, MERGED = "sold", "overtaken", "merged"
"""Answers of the clients. `OVERTAKEN` means that the store refused a write because its fence was old."""


class CounterChecker(Checker):
    """Checks that each sale took one unit, and that every client that did not crash got a unit in the end."""

    def check(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        sold = sum(answer == SOLD for answer in answers.values())
        left = int(self.sandbox.redis.get(STOCK))
        # A crashed client may or may not have taken a unit, so more units may be taken than sales confirmed.
        violations: list[Violation] = []
        if not sold <= UNITS - left <= sold + len(self.history.crashed):
            violations.append(("conserved", f"{sold} sales were confirmed, but the stock fell from {UNITS} to {left}."))
        return [*violations, *self.unserved(answers)]

    def unserved(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        """Return a violation of `progress` if a client that did not crash got no unit."""
        failed = [name for name, answer in answers.items() if answer not in (SOLD, CRASHED)]
        return [("progress", f"{' and '.join(failed)} could have bought a unit but got none.")] if failed else []

    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        sold = sum(answer == SOLD for answer in answers.values())
        return {"received": UNITS, "left": int(self.sandbox.redis.get(STOCK)), "confirmed": sold}


class FenceChecker(CounterChecker):
    """Like `CounterChecker`, but after a fault other than a crash, the store may refuse a client with an old fence."""

    def unserved(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        faults = self.history.faults
        return super().unserved(
            {name: SOLD if faults and answer == OVERTAKEN else answer for name, answer in answers.items()}
        )


class QuorumChecker(CounterChecker):
    """Like `CounterChecker`, but after a fault of a node, too few nodes may be left to grant every client the lock."""

    def unserved(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        return [] if self.history.server_faults else super().unserved(answers)


class MergeChecker(Checker):
    """Checks that the record has the part of every client that answered `MERGED`."""

    def check(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        parts = self._parts()
        lost = [name for name, answer in answers.items() if answer == MERGED and name not in parts]
        return [("conserved", f"The part of {' and '.join(lost)} is not in the record.")] if lost else []

    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        merged = sum(answer == MERGED for answer in answers.values())
        return {"merged": merged, "in the record": len(self._parts()) - 1}

    def _parts(self) -> Mapping[str, str]:
        found: Mapping[str, str] = json.loads(self.sandbox.redis.get(RECORD))
        return found
