"""A key for traces. Two traces have the same key if they differ only in the order of steps that commute.

Two steps commute if neither of them writes data that the other one reads or writes. A step lists this data by names,
see `PendingStep`. Traces that differ only by exchanges of such steps form an equivalence class. A search needs to
continue only one trace of each class.

Source: A. Mazurkiewicz, "Trace Theory", in: Petri Nets: Applications and Relationships to Other Models of Concurrency,
LNCS 255, 1987.
"""

from __future__ import annotations

from collections.abc import Collection

from lab.explorer.terms import EVERYTHING, PendingStep


class TraceKey:
    """The key of a growing trace. Each step's hash includes the hashes of earlier steps that do not commute with it."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        """Hash of the last step of each actor."""
        self._written: dict[str, int] = {}
        """Hash of the last step that wrote each name."""
        self._read: dict[str, frozenset[int]] = {}
        """Hashes of the steps that have read each name after its last write."""
        self._all = 0
        """Hash of the last step that touched everything."""

    def add_step(self, actor: str, pending: PendingStep) -> None:
        """Add a step of an actor to the trace."""
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
        """Add a change that commutes with no earlier step: a fault, passing time, or a step that touches everything."""
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
        """Return the key of the trace so far.

        Args:
            current: the actor that took the last step. It belongs to the key because a switch to another actor costs a
                preemption.
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
