"""The stored results of a rung (a lock or way of selling): its witness, its searches and its stress runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.claims import witness
from lab.claims.witness import Witness
from lab.ladder.catalogue import LADDER, LadderEntry, Track

FEW_SCHEDULES = 20
"""If a complete search tries fewer schedules, the page explains why: each client sends little more than a statement."""


@dataclass(frozen=True)
class RungResults:
    """A rung and its stored results.

    Attributes:
        number: its place on its track, from 1.
        witness: the stored schedule that breaks it. None for a sound rung.
        verdict: how its claim was last checked.
        stress: how often it broke in stress runs, which have no scheduler.
    """

    number: int
    entry: LadderEntry
    witness: Witness | None
    verdict: Mapping[str, Any] | None
    stress: Mapping[str, Any] | None

    @property
    def measured(self) -> Iterator[Mapping[str, Any]]:
        """The results that depend on the machine and on the version of the code."""
        return (result for result in (self.verdict, self.stress) if result is not None)

    @property
    def searches(self) -> Sequence[Mapping[str, Any]]:
        """The searches of a sound rung: with two clients, with three clients, and with wider bounds."""
        verdict = self.verdict
        if verdict is None or self.entry.claim == "flawed":
            return ()
        return (verdict, *verdict.get("also", ()), *verdict.get("deep", ()))

    @property
    def few_schedules(self) -> bool:
        """Whether a page has to say why the search of a sound way of selling tried only a few schedules."""
        if self.verdict is None or self.entry.track != "stock" or self.entry.claim == "flawed":
            return False
        return bool(self.verdict["exhausted"]) and self.verdict["schedules"] < FEW_SCHEDULES


def rungs_of(track: Track) -> list[LadderEntry]:
    """Return the rungs of a track in order."""
    return [entry for entry in LADDER.values() if entry.track == track]


def results_of(entry: LadderEntry) -> RungResults:
    """Return the stored results of a rung."""
    slug, number = entry.slug, rungs_of(entry.track).index(entry) + 1
    return RungResults(number, entry, witness.load(slug), witness.verdict(slug), witness.stress(slug))
