"""The stored schedules that break the flawed rungs, and what came of searching the sound ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.ladder.locks.rung import Invariant

LAB = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Witness:
    """A schedule that breaks a rung."""

    rung: str
    invariant: Invariant
    clients: int
    schedule: tuple[str, ...]
    preemptions: int
    events: int


def load(slug: str) -> Witness | None:
    """The stored witness of a rung; None: there is none."""
    file = LAB / "witnesses" / f"{slug}.json"
    if not file.exists():
        return None
    stored = json.loads(file.read_text(encoding="utf-8"))
    return Witness(**stored | {"schedule": tuple(stored["schedule"])})


def verdict(slug: str) -> Mapping[str, Any] | None:
    """What came of searching a sound rung; None: nothing is stored."""
    file = LAB / "verdicts.json"
    found: Mapping[str, Any] | None = json.loads(file.read_text(encoding="utf-8")).get(slug) if file.exists() else None
    return found
