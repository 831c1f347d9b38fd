"""The picture of a run: a lane for each actor and server, a row for each step, and bands for who is inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from lab.explorer.trace import Step, Trace
from lab.site.pages.wording import said
from lab.workloads.base import NAMES

ROW = 34
"""Height of a row in pixels. The list beside the picture has rows of the same height."""
TAIL = 24
"""Height below the last row in pixels: how things stand in the end is to be seen too."""
LONGEST_VALUE = 12
"""Letters of an owner's token that are shown: it is random, and only has to be told from the others."""
SERVERS = {"redis": "Redis", "postgres": "Postgres", "zookeeper": "ZK", "etcd": "etcd"}

Kind = Literal["inside", "together", "waits"]
Mark = Literal["call", "sleep", "own", "crash", "world"]


@dataclass(frozen=True)
class Lane:
    """An actor or a server, and where its line is, in percent of the width."""

    name: str
    x: float
    actor: bool


@dataclass(frozen=True)
class Band:
    """A time in which an actor is inside, alone or together with others, or waits in a server."""

    kind: Kind
    x: float
    y: float
    height: float


@dataclass(frozen=True)
class Kept:
    """Something that a server keeps: a key or a row."""

    where: str
    name: str
    value: str
    ttl: float | None


@dataclass(frozen=True)
class Panel:
    """How things stand after a step."""

    inside: tuple[str, ...]
    blocked: tuple[str, ...]
    answers: tuple[tuple[str, str], ...]
    kept: tuple[Kept, ...]


@dataclass(frozen=True)
class Row:
    """A step.

    Attributes:
        number: from 1.
        who: the actor; empty: the world.
        does: what, for people.
        mark: how it is drawn.
        y: the middle of its row, in pixels.
        start, end: the two ends of its arrow in percent of the width, the actor's first.
        source: where in the source it was done, as `file:line`; empty: nowhere.
        forced: it was no choice.
        entered: those who are inside together from this step on; empty: that has not begun here.
        panel: the number of the panel that shows how things stand after it.
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
    """The whole picture."""

    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    bands: tuple[Band, ...]
    panels: tuple[Panel, ...]
    height: int

    @property
    def last(self) -> Panel | None:
        """How things stand at the end."""
        return self.panels[-1] if self.panels else None


def draw(trace: Trace) -> Swimlane:
    """The picture of a trace."""
    others = sorted({step.actor for step in trace.steps if step.actor} - set(NAMES))
    actors = [*NAMES[: trace.clients], *others]
    used = {step.where for step in trace.steps}
    names = [*actors, *(title for server, title in SERVERS.items() if server in used)]
    x = {name: round(100 * (place + 0.5) / len(names), 2) for place, name in enumerate(names)}
    panels: list[Panel] = []
    rows = []
    together: tuple[str, ...] = ()
    for place, step in enumerate(trace.steps):
        panel = _panel(step)
        if not panels or panels[-1] != panel:
            panels.append(panel)
        inside = step.holders if len(step.holders) > 1 else ()
        entered = inside if set(inside) - set(together) else ()
        together = inside
        rows.append(_row(place, step, x, entered, len(panels) - 1))
    bands = [band for name in actors for band in _bands(name, x[name], trace.steps)]
    lanes = [Lane(name, x[name], name in actors) for name in names]
    return Swimlane(tuple(lanes), tuple(rows), tuple(bands), tuple(panels), ROW * len(rows) + TAIL)


def _row(place: int, step: Step, x: Mapping[str, float], entered: tuple[str, ...], panel: int) -> Row:
    start = x.get(step.actor or "", 0.0)
    server = SERVERS.get(step.where)
    return Row(
        number=place + 1,
        who=step.actor or "",
        does=said(step.does),
        mark=_mark(step),
        y=_middle(place),
        start=start,
        end=x[server] if server else start,
        source=f"{step.file}:{step.line}" if step.file else "",
        forced=step.forced,
        entered=entered,
        panel=panel,
    )


def _mark(step: Step) -> Mark:
    if step.actor is None:
        return "world"
    if step.choice.startswith("crash "):
        return "crash"
    if step.where in SERVERS:
        return "call"
    return "sleep" if step.where == "clock" else "own"


def _bands(name: str, x: float, steps: Sequence[Step]) -> Iterator[Band]:
    """One band for each time in which nothing changes for an actor."""
    for kind, group in groupby(enumerate(steps), key=lambda item: _kind(name, item[1])):
        if kind is not None:
            places = [place for place, _ in group]
            top, after = _middle(places[0]), places[-1] + 1
            bottom = _middle(after) if after < len(steps) else ROW * len(steps) + TAIL
            yield Band(kind, x, top, bottom - top)


def _kind(name: str, step: Step) -> Kind | None:
    if name in step.holders:
        return "together" if len(step.holders) > 1 else "inside"
    return "waits" if name in step.blocked else None


def _panel(step: Step) -> Panel:
    return Panel(
        inside=step.holders,
        blocked=step.blocked,
        answers=tuple((name, said(answer)) for name, answer in step.answers.items()),
        kept=tuple(_kept(kept) for kept in step.state),
    )


def _kept(kept: Mapping[str, Any]) -> Kept:
    # So coarse that the milliseconds which the run itself took are not to be seen.
    ttl = None if kept["ttl"] is None else round(kept["ttl"], 1)
    return Kept(SERVERS.get(kept["where"], kept["where"]), kept["name"], _value(kept["value"]), ttl)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_value(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    text = "—" if value is None else said(str(value))
    # A token.
    return f"{text[:6]}…" if len(text) > LONGEST_VALUE and " " not in text and "{" not in text else text


def _middle(place: int) -> float:
    return ROW * (place + 0.5)
