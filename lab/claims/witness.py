"""Stored results: the witness of each flawed rung, how far each sound rung was searched, and the stress runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.claims import result_store
from lab.claims.measuring import machine
from lab.claims.staleness import behaviour_of_stress, behaviour_of_verdict
from lab.explorer.terms import Invariant
from lab.explorer.trace import Step, Trace
from lab.ladder.catalogue import LADDER, LadderEntry

FOLDER = Path(__file__).resolve().parent / "witnesses"
TRACES = FOLDER.with_name("traces")
VERDICTS = FOLDER.with_name("verdicts.json")
STRESS = FOLDER.with_name("stress.json")


@dataclass(frozen=True)
class Witness:
    """A schedule that breaks a rung.

    Attributes:
        rung: the slug.
        invariant: what it breaks.
        clients: how many.
        schedule: the choices, in order: names of actors, and faults.
        preemptions: how often an actor was stopped although it could go on.
        faults: how many faults happened.
    """

    rung: str
    invariant: Invariant
    clients: int
    schedule: tuple[str, ...]
    preemptions: int
    faults: int


def load(slug: str) -> Witness | None:
    """Return the stored witness of a rung, or None."""

    def parse(stored: Any) -> Witness:
        return Witness(**stored | {"schedule": tuple(stored["schedule"])})

    return result_store.read(FOLDER / f"{slug}.json", parse, f"ladder --search {slug}")


def store(witness: Witness) -> Path:
    """Store a witness."""
    path = FOLDER / f"{witness.rung}.json"
    result_store.write(path, witness.__dict__)
    return path


def trace(slug: str) -> Trace | None:
    """Return the stored trace of a rung that a page cannot replay, since it needs servers of its own."""

    def parse(stored: Any) -> Trace:
        del stored["ended"], stored["reached"]
        steps = [Step(**{name: _frozen(value) for name, value in step.items()}) for step in stored["steps"]]
        return Trace(**stored | {"schedule": tuple(stored["schedule"]), "steps": tuple(steps), "choices": ()})

    return result_store.read(TRACES / f"{slug}.json", parse, f"ladder --search {slug}")


def store_trace(run: Trace) -> None:
    """Store a trace."""
    result_store.write(TRACES / f"{run.rung}.json", run.as_json())


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def verdict(slug: str) -> Mapping[str, Any] | None:
    """Return how a rung's claim was last checked, and whether its behaviour has changed since (`outdated`).

    `deep` lists the searches with wider bounds, if there were any.
    """
    return _load(VERDICTS, slug, behaviour_of_verdict)


def store_verdict(entry: LadderEntry, line: Mapping[str, Any]) -> None:
    """Store how a rung's claim was checked. Its deep searches stay as long as its behaviour is the same."""
    before = verdict(entry.slug) or {"outdated": True}
    deep = {"deep": before["deep"]} if not before["outdated"] and "deep" in before else {}
    _store(VERDICTS, entry, {**deep, **line}, behaviour_of_verdict)


def stress(slug: str) -> Mapping[str, Any] | None:
    """Return how often a rung broke (`broken`) in how many attempts (`tries`) of its stress run, and `outdated`."""
    return _load(STRESS, slug, behaviour_of_stress)


def store_stress(entry: LadderEntry, line: Mapping[str, Any]) -> None:
    """Store the stress run of a rung."""
    _store(STRESS, entry, line, behaviour_of_stress)


def _load(path: Path, slug: str, behaviour: Callable[[str], str]) -> Mapping[str, Any] | None:
    if slug not in LADDER:
        return None

    def parse(stored: Any) -> dict[str, Any] | None:
        line = stored.get(slug)
        return None if line is None else {**line, "outdated": line["source"] != behaviour(slug)}

    return result_store.read(path, parse, "lab refresh")


def _store(path: Path, entry: LadderEntry, line: Mapping[str, Any], behaviour: Callable[[str], str]) -> None:
    def edit(stored: dict[str, Any]) -> dict[str, Any]:
        made = datetime.now(tz=UTC).date().isoformat()
        stored[entry.slug] = {**line, "made": made, "machine": machine(), "source": behaviour(entry.slug)}
        return {slug: stored[slug] for slug in LADDER if slug in stored}

    result_store.change(path, edit)
