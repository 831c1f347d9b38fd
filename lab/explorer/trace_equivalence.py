"""A key that equivalent traces share: those that differ only in the order of steps that commute.

Two steps commute when neither writes a name that the other reads or writes. Traces that differ only by exchanges of
such steps form an equivalence class, and it is enough to continue one of them.

Source: A. Mazurkiewicz, "Trace Theory", in: Petri Nets: Applications and Relationships to Other Models of Concurrency,
LNCS 255, 1987.
"""

from __future__ import annotations

from collections.abc import Collection

from lab.explorer.terms import EVERYTHING, PendingStep


class TraceKey:
    """The partial order of a trace: a hash for each step, of the earlier steps with which it does not commute."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        """The last step of each actor."""
        self._written: dict[str, int] = {}
        """The last step that wrote each name."""
        self._read: dict[str, frozenset[int]] = {}
        """The steps that have read each name since."""
        self._all = 0
        """The last step that touched everything."""

    def add_step(self, actor: str, pending: PendingStep) -> None:
        """Add a step of an actor."""
        if EVERYTHING in pending.writes or EVERYTHING in pending.reads:
            self.add_change(f"{actor} {pending.does}", [EVERYTHING], actor)
            return
        before = [self._last.get(actor, 0), self._all]
        before += [self._written.get(name, 0) for name in sorted(pending.reads | pending.writes)]
        before += [hash(self._read.get(name, frozenset())) for name in sorted(pending.writes)]
        step = hash((actor, pending.does, *before))
        self._last[actor] = step
        for name in pending.reads:
            self._read[name] = self._read.get(name, frozenset()) | {step}
        for name in pending.writes:
            self._written[name], self._read[name] = step, frozenset()

    def add_change(self, text: str, touched: Collection[str], actor: str | None = None) -> None:
        """Add something that commutes with no earlier step: a fault, or a step that touches everything."""
        change = hash((text, self.value(None, ())))
        if EVERYTHING in touched:
            self._all = change
            self._written.clear()
            self._read.clear()
        for name in touched:
            self._written[name], self._read[name] = change, frozenset()
        if actor:
            self._last[actor] = change

    def value(self, current: str | None, asleep: Collection[str]) -> int:
        """Return the key.

        Args:
            current: the actor that took the last step: a switch away from it costs a preemption.
            asleep: the actors that sleep.
        """
        return hash(
            (
                self._all,
                frozenset(self._last.items()),
                frozenset(self._written.items()),
                frozenset(self._read.items()),
                current,
                frozenset(asleep),
            )
        )
