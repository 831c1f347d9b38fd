"""The contents of a race's page: a row for each racer, and one sentence about the race."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from lab.ladder.catalogue import LADDER
from lab.site.race.state import Race, Racer

LEAST_SCALE_MS = 100.0
"""Smallest range of the wait bars in milliseconds, so that short waits get short bars."""


@dataclass(frozen=True)
class RacerRow:
    """A racer as the page shows it. Widths are in percent of the bar, waits in milliseconds."""

    racer: Racer
    title: str
    sold: int
    oversold: bool
    sold_width: str
    over_width: str
    p50_width: str
    p99_width: str
    p50: int
    p99: int
    rate: int
    tone: str
    verdict: str


@dataclass(frozen=True)
class Standings:
    """A race as the page shows it.

    Attributes:
        rows: a row for each racer.
        stock_at: position of the mark for the stock, in percent of the bar.
        sentence: the state in one sentence, for screen readers. It changes only when a racer begins or ends, and
            at the end of the race.
    """

    rows: Sequence[RacerRow]
    stock_at: str
    sentence: str


def standings(race: Race) -> Standings:
    """Return the contents of a race's page."""
    units = max([race.stock * 1.25, *(_units_sold(racer) for racer in race.racers)])
    slowest = max([LEAST_SCALE_MS, *(_waits(racer)[1] for racer in race.racers)])
    return Standings(
        rows=[_row(racer, race, units, slowest) for racer in race.racers],
        stock_at=f"{100 * race.stock / units:.2f}",
        sentence=_sentence(race),
    )


def _row(racer: Racer, race: Race, units: float, slowest: float) -> RacerRow:
    sold = _units_sold(racer)
    p50, p99 = _waits(racer)
    tone, verdict = _verdict(racer, race)
    return RacerRow(
        racer=racer,
        title=title_of(racer.name),
        sold=sold,
        oversold=sold > race.stock,
        sold_width=f"{100 * min(sold, race.stock) / units:.2f}",
        over_width=f"{100 * max(0, sold - race.stock) / units:.2f}",
        p50_width=f"{100 * p50 / slowest:.2f}",
        p99_width=f"{100 * p99 / slowest:.2f}",
        p50=round(p50),
        p99=round(p99),
        rate=round(racer.result["orders_per_s"]) if racer.result else 0,
        tone=tone,
        verdict=verdict,
    )


def title_of(name: str) -> str:
    """Return the title of a rung in the reader's language; empty for a strategy without a rung."""
    return _(LADDER[name].title) if name in LADDER else ""


def _units_sold(racer: Racer) -> int:
    """Return the units sold: from the tables once there is a verdict, before that from the answers to customers."""
    return int(racer.result["sold"]) if racer.result else racer.answered


def _waits(racer: Racer) -> tuple[float, float]:
    """Return p50 and p99 in ms. Before the verdict they cover the latest answers; after it, all customers."""
    if racer.result:
        return float(racer.result["p50_ms"]), float(racer.result["p99_ms"])
    return racer.p50_ms, racer.p99_ms


def _verdict(racer: Racer, race: Race) -> tuple[str, str]:
    """Return the tone of the verdict (`good`, `bad` or `none`) and its text."""
    if racer.result and racer.holds:
        unanswered = racer.result["errors"]
        text = _("conserved: every unit sold at most once")
        return "good", text + (_("; %(count)d without an answer in time") % {"count": unanswered} if unanswered else "")
    if racer.result:
        return "bad", _("broken: %(reasons)s") % {"reasons": _(", ").join(reasons(racer.result))}
    if racer.error:
        return "bad", _("no verdict: too few customers were answered")
    if not race.running:
        return "none", _("no verdict: the time was up") if race.timed_out else _("no verdict: the race ended early")
    if not racer.wanted:
        return "none", _("waiting")
    return "none", _("selling: %(done)d of %(wanted)d customers answered") % {
        "done": racer.answered + racer.refused,
        "wanted": racer.wanted,
    }


def reasons(result: dict[str, Any]) -> Iterator[str]:
    """Yield a few words for each violation in a verdict."""
    if result["oversold"]:
        yield _("%(units)d sold beyond the stock") % {"units": result["oversold"]}
    if result["on_hand"] < 0:
        yield _("%(units)d on hand") % {"units": result["on_hand"]}
    if result["missing"]:
        yield _("%(orders)d promised orders missing") % {"orders": result["missing"]}
    if result["unserved"]:
        yield _("%(customers)d told “sold out” with units left for them") % {"customers": result["unserved"]}
    drift = result["stock"] - result["on_hand"] - result["sold"]
    if drift and not result["oversold"]:
        yield _("%(units)d units unaccounted for") % {"units": drift}


def _sentence(race: Race) -> str:
    if not race.running:
        broken = sum(1 for racer in race.racers if racer.ended and not racer.holds)
        held = sum(1 for racer in race.racers if racer.holds)
        return _("The race is over: %(held)d held, %(broken)d did not.") % {"held": held, "broken": broken}
    if not any(racer.wanted for racer in race.racers):
        return _("A separate shop is starting for this race.")
    selling = next((racer.name for racer in race.racers if racer.wanted and not racer.ended), "")
    return _("%(name)s is selling.") % {"name": selling} if selling else _("The next racer is getting ready.")
