"""Measure results that are missing, from a short run, or out of date because their code behaves differently now.

Each result is stored as soon as it is measured, so an interrupted refresh continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, cast, get_args

from lab.claims import comparisons, servers, verify, witness
from lab.claims.measuring import machine, measure
from lab.claims.processes import in_processes
from lab.claims.staleness import Part, behaviour_of_comparison
from lab.ladder.catalogue import LADDER

Kind = Literal["verdict", "stress", "comparison"]
KINDS: Sequence[Kind] = get_args(Kind)


@dataclass(frozen=True)
class Result:
    """A stored result.

    Attributes:
        kind: `verdict`, how a rung's claim was checked; `stress`, how often chance broke the rung; `comparison`, a
            benchmark.
        name: slug of the rung, or part of the comparison.
    """

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Remeasured:
    """A result that was measured again.

    Attributes:
        problem: why the result was not stored. Empty if it was stored.
    """

    result: Result
    problem: str = ""


def out_of_date(kinds: Sequence[Kind] = KINDS) -> list[Result]:
    """Return the results that are missing or from a short run, or whose code has changed its behaviour."""
    found = []
    for slug in LADDER:
        for kind, stored in (("verdict", witness.verdict(slug)), ("stress", witness.stress(slug))):
            if stored is None or stored["outdated"]:
                found.append(Result(kind, slug))  # type: ignore[arg-type]
    for part in comparisons.PARTS:
        stored_part = comparisons.load(part)
        if stored_part is None or stored_part.stale or stored_part.short:
            found.append(Result("comparison", part))
    return [result for kind in KINDS for result in found if result.kind == kind and kind in kinds]


def refresh(results: Sequence[Result], *, processes: int) -> Iterator[Remeasured]:
    """Measure results again and store them.

    Args:
        processes: number of rungs at a time. Comparisons run alone.

    Yields:
        Each result, as soon as it is stored or could not be stored.

    Raises:
        ServerError: a server does not answer, or the run folder of a benchmark cannot be removed.
        BenchmarkFailed: a comparison has ended with an error.
    """
    yield from _check([result.name for result in results if result.kind == "verdict"], processes)
    yield from _stress([result.name for result in results if result.kind == "stress"], processes)
    for result in results:
        if result.kind == "comparison":
            compare(cast("Part", result.name))
            yield Remeasured(result)


def _check(slugs: Sequence[str], processes: int) -> Iterator[Remeasured]:
    if not slugs:
        return
    with servers.running(), closing(in_processes("remeasure", slugs, processes)) as lines:
        for line in lines:
            slug, problem = line["rung"], ""
            if "missing" in line:
                problem = line["missing"]
            elif not verify.reproduced(line):
                problem = f"The claim was not reproduced: {line.get('why', line['verdict'])}"
            else:
                verify.keep(line)
            yield Remeasured(Result("verdict", slug), problem)


def _stress(slugs: Sequence[str], processes: int) -> Iterator[Remeasured]:
    if not slugs:
        return
    with servers.running(), closing(in_processes("stress", slugs, processes)) as lines:
        for line in lines:
            slug, problem = line["rung"], ""
            if "missing" in line:
                problem = line["missing"]
            elif line["claim"] == "sound" and line["broken"]:
                problem = f"A sound rung was broken: {line['why']}"
            else:
                witness.store_stress(LADDER[slug], line)
            yield Remeasured(Result("stress", slug), problem)


def compare(part: Part, *, short: bool = False) -> None:
    """Run one benchmark and store its report.

    Args:
        short: whether to run for only some minutes, for orientation.

    Raises:
        BenchmarkFailed: the benchmark has ended with an error.
        ServerError: the run folder of its servers cannot be removed.
    """
    report = measure(part, short=short)
    result = {
        "made": datetime.now(tz=UTC).date().isoformat(),
        "short": short,
        "source": behaviour_of_comparison(part),
        "machine": machine(),
        "report": report,
    }
    comparisons.store(part, result)
