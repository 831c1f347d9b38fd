"""Stored results of rungs (locks and ways of selling): witnesses, searches and stress runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.claims import result_store
from lab.claims.measuring import machine
from lab.claims.staleness import behaviour_of_stress, behaviour_of_verdict
from lab.explorer.source_line import code_at, find_line
from lab.explorer.terms import Invariant
from lab.explorer.trace import Step, Trace
from lab.ladder.catalogue import LADDER, LadderEntry

FOLDER = Path(__file__).resolve().parent / "witnesses"
TRACES = FOLDER.with_name("traces")
VERDICTS = FOLDER.with_name("verdicts.json")
STRESS = FOLDER.with_name("stress.json")


@dataclass(frozen=True)
class Witness:
    """A stored schedule that breaks a rung.

    Attributes:
        rung: slug of the rung.
        invariant: the invariant that it breaks.
        clients: number of clients.
        schedule: the choices, in order: names of actors, and faults.
        preemptions: how often an actor was stopped although it could have gone on.
        faults: number of faults that happened.
    """

    rung: str
    invariant: Invariant
    clients: int
    schedule: tuple[str, ...]
    preemptions: int
    faults: int


def load(slug: str) -> Witness | None:
    """Return the stored witness of a rung. None if no witness is stored."""

    def parse(stored: Any) -> Witness:
        return Witness(**stored | {"schedule": tuple(stored["schedule"])})

    return result_store.read(FOLDER / f"{slug}.json", parse, f"ladder --search {slug}")


def store(witness: Witness) -> Path:
    """Store a witness."""
    path = FOLDER / f"{witness.rung}.json"
    result_store.write(path, witness.__dict__)
    return path


def trace(slug: str) -> Trace | None:
    """Return the stored trace of a rung whose page cannot replay it, because it needs its own servers.

    None if no trace is stored.
    """

    def parse(stored: Any) -> Trace:
        values = {name: value for name, value in stored.items() if name not in ("ended", "reached")}
        steps = tuple(map(_step, stored["steps"]))
        return Trace(**values | {"schedule": tuple(stored["schedule"]), "steps": steps, "choices": ()})

    return result_store.read(TRACES / f"{slug}.json", parse, f"ladder --search {slug}")


def store_trace(run: Trace) -> None:
    """Store a trace with the text of each source line. The text finds the line again after an edit has moved it."""
    stored = run.as_json()
    stored["steps"] = [{**step, "code": code_at(step["file"], step["line"])} for step in stored["steps"]]
    result_store.write(TRACES / f"{run.rung}.json", stored)


def _step(stored: Mapping[str, Any]) -> Step:
    values = {name: _frozen(value) for name, value in stored.items() if name != "code"}
    return Step(**values | {"line": find_line(stored["file"], stored["line"], stored["code"])})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def verdict(slug: str) -> Mapping[str, Any] | None:
    """Return how a rung's claim was last checked, and whether its behaviour has changed since then (`outdated`).

    `deep` lists the searches within wider bounds, if there were any. The result is None if no check is stored.
    """
    return _load(VERDICTS, slug, behaviour_of_verdict)


def schedules(slug: str) -> int:
    """Return how many schedules the last check of a rung's claim has run; 0 if no check is stored."""

    def count(stored: Any) -> int:
        line = stored.get(slug, {})
        return sum(search["schedules"] for search in (line, *line.get("also", ())) if "schedules" in search)

    return result_store.read(VERDICTS, count, "lab refresh") or 0


def store_verdict(entry: LadderEntry, line: Mapping[str, Any]) -> None:
    """Store how a rung's claim was checked. Keep earlier deep searches if the rung's behaviour is still the same."""
    before = verdict(entry.slug) or {"outdated": True}
    deep = {"deep": before["deep"]} if not before["outdated"] and "deep" in before else {}
    _store(VERDICTS, entry, {**deep, **line}, behaviour_of_verdict)


def stress(slug: str) -> Mapping[str, Any] | None:
    """Return a rung's stored stress run. None if none is stored.

    It has the number of attempts (`tries`), the number of attempts that broke the rung (`broken`), and whether the
    rung's behaviour has changed since then (`outdated`).
    """
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
