"""The columns of the comparison's tables."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext_noop

from lab.claims.comparisons import TABLES, Measurement, Part


@dataclass(frozen=True)
class Column:
    """A column with one figure of each row. The rows can be sorted by it.

    Attributes:
        field: the field of `Measurement`.
        titles: the heading for each part of the comparison.
        unit: the unit, shown after the heading.
        digits: number of digits after the point.
        most_first: whether more is better. If so, the first click on the heading sorts the largest first.
    """

    field: str
    titles: dict[Part, str]
    unit: str
    digits: int
    most_first: bool

    def figure(self, row: Measurement, unit: str = "") -> str:
        """Return a row's figure as text."""
        value = getattr(row, self.field)
        return "–" if value is None else f"{value:,.{self.digits}f} {unit}".strip()


COLUMNS = (
    Column(
        "per_s",
        {"strategies": gettext_noop("Orders per second"), "locks": gettext_noop("Pairs per second")},
        "/s",
        0,
        most_first=True,
    ),
    Column("p50_ms", dict.fromkeys(TABLES, gettext_noop("Wait p50")), "ms", 1, most_first=False),
    Column("p95_ms", dict.fromkeys(TABLES, gettext_noop("Wait p95")), "ms", 1, most_first=False),
    Column("fairness", dict.fromkeys(TABLES, gettext_noop("Fairness")), "", 2, most_first=True),
    Column("recovery_s", dict.fromkeys(TABLES, gettext_noop("Crash recovery")), "s", 2, most_first=False),
)
