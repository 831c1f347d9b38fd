"""The picture of a run: a lane for each actor and server, a row for each step, and bands that mark lock holders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from lab.explorer.terms import parse_fault
from lab.explorer.trace import Step, Trace
from lab.site.pages.source import place_of
from lab.site.wording import translated
from lab.workloads.base import NAMES

ROW = 34
"""Height of a row in pixels. A row of the list beside the picture has the same height."""
TAIL = 24
"""Height in pixels of the space below the last row. There the bands show the state after the last step."""
LONGEST_VALUE = 12
"""Maximum length of a word that is shown in full. A longer word is an owner token, whose first letters are enough."""
SERVERS = {"redis": "Redis", "postgres": "Postgres", "zookeeper": "ZK", "etcd": "etcd"}

BandKind = Literal["inside", "together", "waits"]
Mark = Literal["call", "sleep", "own", "crash", "world"]


@dataclass(frozen=True)
class Lane:
    """An actor or a server. `x` is the position of its vertical line, in percent of the width."""

    name: str
    x: float
    actor: bool


@dataclass(frozen=True)
class Band:
    """A span of steps during which an actor is in the critical section, alone or with others, or waits in a server."""

    kind: BandKind
    x: float
    y: float
    height: float


@dataclass(frozen=True)
class StoredValue:
    """A key or a row that a server stores. `ttl` is in seconds, or None if it does not expire."""

    where: str
    name: str
    value: str
    ttl: float | None


@dataclass(frozen=True)
class Panel:
    """The state after a step: holders, waiters, answers of clients, and the data on the servers."""

    inside: tuple[str, ...]
    blocked: tuple[str, ...]
    answers: tuple[tuple[str, str], ...]
    stored: tuple[StoredValue, ...]


@dataclass(frozen=True)
class StepRow:
    """A step as the picture shows it.

    Attributes:
        number: number of the step, from 1.
        who: the actor that took the step or that the fault hits. Empty if there is none.
        does: description of the step.
        mark: the symbol that is drawn.
        y: vertical position of the middle of its row, in pixels.
        start, end: the two ends of its arrow in percent of the width. The arrow starts at the actor.
        source: the line of code that ran the step, as `file:line`. Empty if there is none.
        forced: whether there was no choice, because no actor could go on.
        entered: the actors that hold the lock together after the step. Empty if all of them did so before the step,
            or if fewer than two actors hold the lock.
        panel: index of the panel with the state after the step.
    """

    number: int
    who: str
    does: str
    mark: Mark
    y: float
    start: float
    end: float
    source: str
    forced: bool
    entered: tuple[str, ...]
    panel: int


@dataclass(frozen=True)
class Swimlane:
    """The picture of a run.

    Attributes:
        height: height in pixels.
        alarming: whether the run is about the invariant `one holder`. Only then are two clients in the critical
            section at the same time shown as an alarm.
    """

    lanes: tuple[Lane, ...]
    rows: tuple[StepRow, ...]
    bands: tuple[Band, ...]
    panels: tuple[Panel, ...]
    height: int
    alarming: bool

    @property
    def last(self) -> Panel | None:
        """The panel with the state after the last step; None if the run has no steps."""
        return self.panels[-1] if self.panels else None


def draw(trace: Trace) -> Swimlane:
    """Return the picture of a run, given its trace."""
    others = sorted({step.actor for step in trace.steps if step.actor} - set(NAMES))
    actors = [*NAMES[: trace.clients], *others]
    used = {step.where for step in trace.steps}
    names = [*actors, *(title for server, title in SERVERS.items() if server in used)]
    x = {name: round(100 * (place + 0.5) / len(names), 2) for place, name in enumerate(names)}
    panels: list[Panel] = []
    rows = []
    together: tuple[str, ...] = ()
    alarming = (trace.goal or trace.broken) == "one holder"
    for place, step in enumerate(trace.steps):
        panel = _panel(step)
        if not panels or panels[-1] != panel:
            panels.append(panel)
        inside = step.holders if len(step.holders) > 1 else ()
        entered = inside if set(inside) - set(together) else ()
        together = inside
        rows.append(_row(place, step, x, entered, len(panels) - 1))
    bands = [band for name in actors for band in _bands(name, x[name], trace.steps, alarming=alarming)]
    lanes = [Lane(name, x[name], name in actors) for name in names]
    return Swimlane(tuple(lanes), tuple(rows), tuple(bands), tuple(panels), ROW * len(rows) + TAIL, alarming)


def _row(place: int, step: Step, x: Mapping[str, float], entered: tuple[str, ...], panel: int) -> StepRow:
    start = x.get(step.actor or "", 0.0)
    server = SERVERS.get(step.where)
    file, line = place_of(step)
    return StepRow(
        number=place + 1,
        who=whom(step),
        does=translated(step.does),
        mark=_mark(step),
        y=_middle(place),
        start=start,
        end=x[server] if server else start,
        source=f"{file}:{line}" if file else "",
        forced=step.forced,
        entered=entered,
        panel=panel,
    )


def whom(step: Step) -> str:
    """Return the actor that took a step or that a fault hits; empty if it hits no single actor.

    Time passes for all actors during a pause or before a renewal, so `Step.actor` is None for these.
    """
    return step.actor or parse_fault(step.choice)[1]


def _mark(step: Step) -> Mark:
    if step.actor is None:
        return "world"
    if step.choice.startswith("crash "):
        return "crash"
    if step.where in SERVERS:
        return "call"
    return "sleep" if step.where == "clock" else "own"


def _bands(name: str, x: float, steps: Sequence[Step], *, alarming: bool) -> Iterator[Band]:
    """Yield a band for each span of steps during which the state of an actor does not change."""
    for kind, group in groupby(enumerate(steps), key=lambda item: _band_kind(name, item[1], alarming=alarming)):
        if kind is not None:
            places = [place for place, _ in group]
            top, after = _middle(places[0]), places[-1] + 1
            bottom = _middle(after) if after < len(steps) else ROW * len(steps) + TAIL
            yield Band(kind, x, top, bottom - top)


def _band_kind(name: str, step: Step, *, alarming: bool) -> BandKind | None:
    if name in step.holders:
        return "together" if alarming and len(step.holders) > 1 else "inside"
    return "waits" if name in step.blocked else None


def _panel(step: Step) -> Panel:
    return Panel(
        inside=step.holders,
        blocked=step.blocked,
        answers=tuple((name, translated(answer)) for name, answer in step.answers.items()),
        stored=tuple(_stored_value(stored) for stored in step.state),
    )


def _stored_value(stored: Mapping[str, Any]) -> StoredValue:
    # Round the TTL, so that every replay looks the same, although a replay takes some milliseconds.
    ttl = None if stored["ttl"] is None else round(stored["ttl"], 1)
    return StoredValue(SERVERS.get(stored["where"], stored["where"]), stored["name"], _text(stored["value"]), ttl)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    text = "—" if value is None else translated(str(value))
    # A long text without spaces is an owner token.
    return f"{text[:6]}…" if len(text) > LONGEST_VALUE and " " not in text and "{" not in text else text


def _middle(place: int) -> float:
    return ROW * (place + 0.5)
