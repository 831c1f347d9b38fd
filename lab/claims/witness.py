"""What was found is kept: each flawed rung's witness, how far each sound one was searched, and what came of chance."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings

from lab.claims import result_store
from lab.claims.behaviour import hash_of
from lab.explorer.terms import Invariant
from lab.explorer.trace import Step, Trace
from lab.ladder.catalogue import LADDER, LadderEntry, Track

FOLDER = Path(__file__).resolve().parent / "witnesses"
TRACES = FOLDER.with_name("traces")
VERDICTS = FOLDER.with_name("verdicts.json")
CONTROL = FOLDER.with_name("chance.json")
_LOCKS = ("locking", "lab/ladder", "lab/schedule")
_SHOP = ("accounts", "checkout", "models", "reconcile", "saving")
SOURCES: Mapping[Track, Sequence[str]] = {
    "locks": _LOCKS,
    "stock": (*_LOCKS, "inventory", "lab/ledger.py", "lab/models.py", *(f"shop/{name}.py" for name in _SHOP)),
}
"""The code that runs where a rung is tried, on each track: folders and files, below the project's folder."""
ELSEWHERE: Mapping[Track, frozenset[str]] = {
    "locks": frozenset(),
    "stock": frozenset({"etcd.py", "redlock.py", "zookeeper.py"}),
}
"""Files among them that run only where the servers are others than a shop has: no rung of stock takes such a lock."""


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
    """What changes when the code does that runs where a rung is searched, or left to chance."""
    places = [Path(settings.BASE_DIR) / place for place in SOURCES[entry.track]]
    own = Path(inspect.getfile(entry.code))
    if not any(own.is_relative_to(place) for place in places):
        places.append(own)  # of somebody else's package
    return _hash_once(*places, without=ELSEWHERE[entry.track])


_hash_once = cache(hash_of)
"""A process runs the code that there was when it began; and a page asks for all rungs at once."""
