"""The section on the retry delay of a Redlock: how soon it hands over, compared with locks that wake their waiters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.utils.translation import gettext as _

from lab.claims.comparisons import Measured, Part
from lab.claims.curves import HandOverRow
from lab.site.comparison.chart import Chart, Series, line_chart
from lab.site.comparison.curves import NEAR, Cell, CurveSection, ratio, sentence
from lab.site.settings import REDLOCK_RETRY_DELAY
from locking.redis.redlock import PAUSE_PER_ATTEMPT

PART: Part = "retry-delay"
DEFAULT_MS = 1000 * REDLOCK_RETRY_DELAY


def retry_delay_section(measured: Measured | None) -> CurveSection:
    """Return the section for a stored measurement. Without a measurement, it has no figures."""
    title = _("Redlock: how long between two attempts?")
    claim = sentence(
        _(
            "Nobody wakes the waiters of {redlock}: each asks all nodes again after a pause. Its average is the retry "
            "delay, {default} ms unless another one is set. A shorter one hands the lock over sooner and sends more "
            "commands. The other two locks tell their waiter: the Redis lock by a message, {zookeeper} by a watch."
        ),
        default=DEFAULT_MS,
    )
    if measured is None:
        return CurveSection(PART, title, claim)
    rows: Sequence[HandOverRow] = measured.rows
    polled, told = _polled(rows), _told(rows)
    return CurveSection(
        PART,
        title,
        claim,
        measured,
        charts=_charts(polled, told),
        conclusions=[] if measured.stale else [*_default(polled), *_equal(polled, told), *_floor(polled)],
        notes=sentence(
            _(
                "Each line is of {rounds} × {handoffs} hand-overs to another process, so p99 is near the longest. "
                "{nodes} nodes and one ZooKeeper server ran on the same machine. Idle waiter: one process waits while "
                "nothing happens; commands to all nodes together, for ZooKeeper with the pings of its session."
            ),
            **measured.sizes,
        ),
        headings=[_("Lock"), _("Hand-over p50"), _("Hand-over p99"), _("Commands of an idle waiter")],
        rows=[
            [
                Cell(row.lock if row.retry_delay_ms is None else f"{row.lock}, {row.retry_delay_ms:g} ms"),
                Cell(f"{_ms(row.p50_ms)} ms"),
                Cell(f"{_ms(row.p99_ms)} ms"),
                Cell(f"{_rate(row)}/s"),
            ]
            for row in rows
        ],
    )


def _polled(rows: Sequence[HandOverRow]) -> list[HandOverRow]:
    """Return the rows of Redlock, sorted from the shortest to the longest delay."""
    return sorted((row for row in rows if row.retry_delay_ms is not None), key=_delay)


def _told(rows: Sequence[HandOverRow]) -> list[HandOverRow]:
    return [row for row in rows if row.retry_delay_ms is None]


def _delay(row: HandOverRow) -> float:
    return row.retry_delay_ms or 0.0


def _charts(polled: Sequence[HandOverRow], told: Sequence[HandOverRow]) -> list[Chart]:
    delays = [_delay(row) for row in polled]
    lines = [
        Series("p50", "first", [(_delay(row), row.p50_ms) for row in polled]),
        Series("p99", "second", [(_delay(row), row.p99_ms) for row in polled]),
        *(Series(row.lock, "reference", [(delay, row.p50_ms) for delay in delays]) for row in told),
    ]
    idle = [Series("redlock", "first", [(_delay(row), row.commands_per_s) for row in polled])]
    x_title = _("retry delay, in ms")
    return [
        line_chart(_("Hand-over of redlock in ms, and p50 of the others"), x_title, lines, logarithmic=True),
        line_chart(_("Commands per second of an idle waiter of redlock"), x_title, idle, logarithmic=False),
    ]


def _default(polled: Sequence[HandOverRow]) -> Iterator[str]:
    for row in polled:
        if row.retry_delay_ms == DEFAULT_MS:
            yield sentence(
                _(
                    "With the default of {default} ms, half of the hand-overs of {redlock} take longer than {p50} ms; "
                    "p99 is {p99} ms. Each idle waiter sends {commands} commands per second."
                ),
                default=DEFAULT_MS,
                p50=_ms(row.p50_ms),
                p99=_ms(row.p99_ms),
                commands=_rate(row),
            )


def _equal(polled: Sequence[HandOverRow], told: Sequence[HandOverRow]) -> Iterator[str]:
    """Yield a sentence for each lock that wakes its waiters.

    It names the longest delay up to which Redlock is as fast as that lock, or says that no measured delay is short
    enough. It also names the cost of an idle waiter.
    """
    for other in told:
        soon = []
        for row in polled:
            if NEAR * row.p50_ms > other.p50_ms:
                break
            soon.append(row)
        if soon:
            text = _(
                "With a retry delay of {delay} ms or less, {redlock} hands over as soon as {other}, whose p50 is "
                "{other_p50} ms. Each idle waiter then sends {commands} commands per second, and one of {other} "
                "{other_commands}."
            )
        else:
            text = _(
                "With no measured delay does {redlock} hand over as soon as {other}, whose p50 is {other_p50} ms: even "
                "with {delay} ms it takes {times} times as long. Each idle waiter then sends {commands} commands per "
                "second, and one of {other} {other_commands}."
            )
        row = soon[-1] if soon else polled[0]
        yield sentence(
            text,
            delay=_delay(row),
            other=other.lock,
            other_p50=_ms(other.p50_ms),
            times=ratio(row.p50_ms / other.p50_ms),
            commands=_rate(row),
            other_commands=_rate(other),
        )


def _floor(polled: Sequence[HandOverRow]) -> Iterator[str]:
    """Yield a sentence about the delay below which the hand-over hardly gets faster, if there is such a delay."""
    shortest = polled[0]
    floor = shortest
    for row in polled[1:]:
        if shortest.p50_ms < NEAR * row.p50_ms:
            break
        floor = row
    if floor is not shortest:
        yield sentence(
            _(
                "A delay below {delay} ms shortens the hand-over by less than a tenth. Each pause is at least {times} "
                "times as long as the attempt before it (at most {times} times the delay), so that the requests of "
                "many waiters do not delay the holder’s release."
            ),
            delay=_delay(floor),
            times=PAUSE_PER_ATTEMPT,
        )


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.1f}" if milliseconds < 9.95 else f"{milliseconds:,.0f}"


def _rate(row: HandOverRow) -> str:
    return f"{round(row.commands_per_s, 1):g}" if row.commands_per_s < 9.95 else f"{row.commands_per_s:,.0f}"
