"""Which runs are equivalent: those that differ only in the order of steps that could be exchanged."""

from __future__ import annotations

from collections.abc import Collection

from lab.explorer.terms import EVERYTHING, PendingStep


class TraceKey:
    """What equivalent traces have in common: which step came after which that it could not be exchanged with."""

    def __init__(self) -> None:
        self._own: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._read: dict[str, frozenset[int]] = {}
        self._all = 0

    def stepped(self, actor: str, pending: PendingStep) -> None:
        if EVERYTHING in pending.writes or EVERYTHING in pending.reads:
            self.happened(f"{actor} {pending.does}", [EVERYTHING], actor)
            return
        before = [self._own.get(actor, 0), self._all]
        before += [self._written.get(name, 0) for name in sorted(pending.reads | pending.writes)]
        before += [hash(self._read.get(name, frozenset())) for name in sorted(pending.writes)]
        mine = hash((actor, pending.does, *before))
        self._own[actor] = mine
        for name in pending.reads:
            self._read[name] = self._read.get(name, frozenset()) | {mine}
        for name in pending.writes:
            self._written[name], self._read[name] = mine, frozenset()

    def happened(self, what: str, touched: Collection[str], actor: str | None = None) -> None:
        mine = hash((what, self.value(None, ())))
        if EVERYTHING in touched:
            self._all = mine
            self._written.clear()
            self._read.clear()
        for name in touched:
            self._written[name], self._read[name] = mine, frozenset()
        if actor:
            self._own[actor] = mine

    def value(self, current: str | None, asleep: Collection[str]) -> int:
        return hash(
            (
                self._all,
                frozenset(self._own.items()),
                frozenset(self._written.items()),
                frozenset(self._read.items()),
                current,
                frozenset(asleep),
            )
        )
