"""What was found is kept: each flawed rung's witness, how far each sound one was searched, and what came of chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.claims import result_store
from lab.claims.staleness import behaviour_of_verdict
from lab.explorer.terms import Invariant
from lab.explorer.trace import Step, Trace
from lab.ladder.catalogue import LADDER, LadderEntry

FOLDER = Path(__file__).resolve().parent / "witnesses"
TRACES = FOLDER.with_name("traces")
VERDICTS = FOLDER.with_name("verdicts.json")
CONTROL = FOLDER.with_name("chance.json")


@dataclass(frozen=True)
class Witness:
    """A schedule that breaks a rung.

    Attributes:
        rung: the slug.
        invariant: what it breaks.
        clients: how many.
        schedule: who goes next, or what happens, in order.
        preemptions: how often somebody was stopped who could go on.
        events: how many things happened beside the clients' own steps.
    """

    rung: str
    invariant: Invariant
    clients: int
    schedule: tuple[str, ...]
    preemptions: int
    events: int


def load(slug: str) -> Witness | None:
    """The stored witness of a rung; None when there is none."""

    def parse(said: Any) -> Witness:
        return Witness(**said | {"schedule": tuple(said["schedule"])})

    return result_store.read(FOLDER / f"{slug}.json", parse, f"ladder --search {slug}")


def store(witness: Witness) -> Path:
    """Keep a witness, one entry of its schedule a line, so that people can read what has changed."""
    path = FOLDER / f"{witness.rung}.json"
    result_store.write(path, witness.__dict__)
    return path


def trace(slug: str) -> Trace | None:
    """What a run did on servers that only a search starts: for rungs that are not replayed for a page."""

    def parse(said: Any) -> Trace:
        del said["ended"]
        steps = [Step(**{name: _frozen(value) for name, value in step.items()}) for step in said["steps"]]
        return Trace(**said | {"schedule": tuple(said["schedule"]), "steps": tuple(steps), "choices": ()})

    return result_store.read(TRACES / f"{slug}.json", parse, f"ladder --search {slug}")


def store_trace(kept: Trace) -> None:
    """Keep what a run did."""
    result_store.write(TRACES / f"{kept.rung}.json", kept.as_json())


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def verdict(slug: str) -> Mapping[str, Any] | None:
    """How far a sound rung was searched, by name, and whether its source has changed since (`outdated`).

    `deep` has the searches with wider bounds, if there were any.
    """
    return _kept(VERDICTS, slug, "ladder --deep")


def store_verdict(entry: LadderEntry, said: Mapping[str, Any]) -> None:
    """Keep how far a rung was searched."""
    source, before = source_hash(entry), verdict(entry.slug) or {}
    deep = {"deep": before["deep"]} if before.get("source") == source and "deep" in before else {}
    _keep(VERDICTS, entry, {**deep, **said})


def control(slug: str) -> Mapping[str, Any] | None:
    """How often a rung broke (`broken`) in how many `tries` without a controller, and whether it is `outdated`."""
    return _kept(CONTROL, slug, "ladder --control")


def store_control(entry: LadderEntry, said: Mapping[str, Any]) -> None:
    """Keep how often a rung broke without a controller."""
    _keep(CONTROL, entry, said)


def _kept(path: Path, slug: str, again: str) -> Mapping[str, Any] | None:
    if slug not in LADDER:
        return None

    def parse(said: Any) -> dict[str, Any] | None:
        line = said.get(slug)
        return None if line is None else {**line, "outdated": line["source"] != source_hash(LADDER[slug])}

    return result_store.read(path, parse, again)


def _keep(path: Path, entry: LadderEntry, said: Mapping[str, Any]) -> None:
    def edit(kept: dict[str, Any]) -> dict[str, Any]:
        kept[entry.slug] = {**said, "source": source_hash(entry)}
        return {slug: kept[slug] for slug in LADDER if slug in kept}

    result_store.change(path, edit)


def source_hash(entry: LadderEntry) -> str:
    """Hash what runs when the rung is checked."""
    return behaviour_of_verdict(entry.slug)
