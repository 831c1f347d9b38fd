"""The page of the measured comparison: two tables, sorted as the address says, each with a chart of that column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from lab.site.comparison import stored
from lab.site.comparison.choice import anchor, arguments
from lab.site.comparison.stored import PARTS, Measured, Part, Row
from lab.site.pages.page import page


@dataclass(frozen=True)
class Column:
    """A figure that rows can be sorted by.

    Args:
        field: of `Row`.
        digits: after the point.
        most_first: whether more is better, so that the first click shows the largest first.
    """

    field: str
    titles: dict[Part, str]
    unit: str
    digits: int
    most_first: bool


COLUMNS = (
    Column(
        "per_s",
        {"strategies": gettext_noop("Orders a second"), "locks": gettext_noop("Pairs a second")},
        "/s",
        0,
        most_first=True,
    ),
    Column("p50_ms", dict.fromkeys(PARTS, gettext_noop("Wait p50")), "ms", 1, most_first=False),
    Column("p95_ms", dict.fromkeys(PARTS, gettext_noop("Wait p95")), "ms", 1, most_first=False),
    Column("fairness", dict.fromkeys(PARTS, gettext_noop("Fairness")), "", 2, most_first=True),
    Column("recovery_s", dict.fromkeys(PARTS, gettext_noop("Crash recovery")), "s", 2, most_first=False),
)
TITLES: dict[Part, str] = {"strategies": gettext_noop("Strategies"), "locks": gettext_noop("Locks")}
NAME = "name"


@dataclass(frozen=True)
class Heading:
    """The head of a column: where a click leads, and how the column is sorted now, as `aria-sort` says it."""

    title: str
    unit: str
    link: str
    sorted: str


@dataclass(frozen=True)
class ComparisonRow:
    """A row as it is shown; `width` is that of its bar, of 100."""

    row: Row
    anchor: str
    figures: Sequence[str]
    shown: str
    width: str


@page
def comparison(request: HttpRequest) -> HttpResponse:
    """Both parts, each sorted by the parameter of its name: `?locks=p50_ms`, or `-p50_ms` for the largest first."""
    order = {part: _order(request.GET.get(part, "")) for part in PARTS}
    measured = {part: stored.load(part) for part in PARTS}
    tables = [_table(part, measured[part], order) for part in PARTS]
    rows = {part: {row.name: row for row in found.rows} for part, found in measured.items() if found}
    return render(request, "lab/comparison.html", {"tables": tables, "arguments": list(arguments(rows))})


@dataclass(frozen=True)
class Link:
    """From a rung to the row of the comparison that measures it."""

    address: str
    name: str
    figure: str


def links(rung: str) -> Iterator[Link]:
    """The rows that measure a rung, with what each says first."""
    for part in PARTS:
        measured = stored.load(part)
        for row in measured.rows if measured else ():
            if rung in row.rungs:
                address = f"{reverse('lab-comparison')}#{anchor(part, row.name)}"
                yield Link(address, row.name, f"{_(COLUMNS[0].titles[part])}: {_figure(row, COLUMNS[0])}")


def _order(asked: str) -> tuple[str, bool]:
    """The field to sort by, and whether the largest comes first. What is not known is sorted as it first was."""
    field = asked.removeprefix("-")
    known = {NAME, *(column.field for column in COLUMNS)}
    return (field, asked.startswith("-")) if field in known else (COLUMNS[0].field, True)


def _table(part: Part, measured: Measured | None, order: dict[Part, tuple[str, bool]]) -> dict[str, Any]:
    field, most_first = order[part]
    charted = next((column for column in COLUMNS if column.field == field), COLUMNS[0])
    rows = sorted(measured.rows if measured else (), key=lambda row: row.name)
    if field == NAME:
        rows = rows[::-1] if most_first else rows
    else:
        known = [row for row in rows if getattr(row, field) is not None]
        known.sort(key=lambda row: float(getattr(row, field)), reverse=most_first)
        rows = [*known, *(row for row in rows if getattr(row, field) is None)]
    most = max([0.0, *(getattr(row, charted.field) or 0.0 for row in rows)])
    return {
        "part": part,
        "title": _(TITLES[part]),
        "measured": measured,
        "headings": [
            Heading(_("Name"), "", _link(part, NAME, order, first=False), _sorted(NAME, order[part])),
            *(
                Heading(
                    _(column.titles[part]),
                    column.unit,
                    _link(part, column.field, order, first=column.most_first),
                    _sorted(column.field, order[part]),
                )
                for column in COLUMNS
            ),
        ],
        "charted": _(charted.titles[part]),
        "lines": [
            ComparisonRow(
                row,
                anchor=anchor(part, row.name),
                figures=[_figure(row, column) for column in COLUMNS],
                shown=_figure(row, charted, charted.unit),
                width=f"{100 * (getattr(row, charted.field) or 0.0) / most:.2f}" if most else "0",
            )
            for row in rows
        ],
    }


def _figure(row: Row, column: Column, unit: str = "") -> str:
    value = getattr(row, column.field)
    return "–" if value is None else f"{value:,.{column.digits}f} {unit}".strip()


def _link(part: Part, field: str, order: dict[Part, tuple[str, bool]], *, first: bool) -> str:
    """Where a click on a heading leads: to this order, or turned round when it is this order already."""
    now, most_first = order[part]
    wanted = {**order, part: (field, not most_first if field == now else first)}
    said = "&".join(f"{each}={'-' if largest else ''}{name}" for each, (name, largest) in wanted.items())
    return f"?{said}#{part}"


def _sorted(field: str, order: tuple[str, bool]) -> str:
    now, most_first = order
    return ("descending" if most_first else "ascending") if field == now else ""
