"""A table of the comparison, sorted by a query parameter, with a bar chart of one column.

The chart shows the column by which the table is sorted, or the first figure if it is sorted by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from lab.claims.comparisons import TABLES, Measured, Measurement, Part
from lab.site.comparison.columns import COLUMNS
from lab.site.comparison.links import anchor

TITLES: dict[Part, str] = {"strategies": gettext_noop("Strategies"), "locks": gettext_noop("Locks")}
NAME = "name"
THIRD_PARTY = gettext_noop("third-party")
PROTOCOLS = {"redisson": gettext_noop("protocol of Redisson, in Python")}
"""Notes on rows that are measured for comparison only (see `Measurement.peer`), if their code is in this project.

The other rows of this kind have the note `THIRD_PARTY`.
"""


@dataclass(frozen=True)
class SortOrder:
    """The field by which a table is sorted, and whether the largest value comes first."""

    field: str
    descending: bool


@dataclass(frozen=True)
class Heading:
    """A column heading: its link, and the current sort order as the value of `aria-sort`."""

    title: str
    unit: str
    link: str
    sorted: str


@dataclass(frozen=True)
class ComparisonRow:
    """A row as the page shows it.

    Attributes:
        row: the measurement.
        anchor: the id of the row in the page.
        note: description of a row that is measured for comparison only. Empty for other rows.
        figures: the text of each column.
        charted: the figure in the chart, with its unit.
        width: width of its bar, from 0 to 100.
    """

    row: Measurement
    anchor: str
    note: str
    figures: Sequence[str]
    charted: str
    width: str


@dataclass(frozen=True)
class Table:
    """One part of the comparison as the page shows it. `charted` is the title of the column that the chart shows."""

    part: Part
    title: str
    measured: Measured | None
    headings: Sequence[Heading]
    charted: str
    rows: Sequence[ComparisonRow]


def parse_order(text: str) -> SortOrder:
    """Return the sort order for a query parameter such as `p50_ms` or `-p50_ms`. Unknown fields give the default."""
    field = text.removeprefix("-")
    known = {NAME, *(column.field for column in COLUMNS)}
    return SortOrder(field, text.startswith("-")) if field in known else SortOrder(COLUMNS[0].field, descending=True)


def comparison_table(part: Part, measured: Measured | None, orders: Mapping[Part, SortOrder]) -> Table:
    """Return a part of the comparison as a table.

    Args:
        part: the part.
        measured: the stored results of the part, or None.
        orders: the sort order of each part. The headings keep the other part's order in their addresses.
    """
    order = orders[part]
    charted = next((column for column in COLUMNS if column.field == order.field), COLUMNS[0])
    rows = _sorted_rows(measured.rows if measured else (), order)
    most = max([0.0, *(getattr(row, charted.field) or 0.0 for row in rows)])
    headings = [(NAME, _("Name"), "", False)]
    headings += [(column.field, _(column.titles[part]), column.unit, column.most_first) for column in COLUMNS]
    return Table(
        part=part,
        title=_(TITLES[part]),
        measured=measured,
        headings=[
            Heading(title, unit, _address(part, field, orders, descending_first=most_first), _aria_sort(field, order))
            for field, title, unit, most_first in headings
        ],
        charted=_(charted.titles[part]),
        rows=[
            ComparisonRow(
                row,
                anchor=anchor(part, row.name),
                note=_(PROTOCOLS.get(row.name, THIRD_PARTY)) if row.peer else "",
                figures=[column.figure(row) for column in COLUMNS],
                charted=charted.figure(row, charted.unit),
                width=f"{100 * (getattr(row, charted.field) or 0.0) / most:.2f}" if most else "0",
            )
            for row in rows
        ],
    )


def _sorted_rows(rows: Sequence[Measurement], order: SortOrder) -> list[Measurement]:
    """Sort the rows by the field and then by name. Rows without a figure come last in either direction."""
    by_name = sorted(rows, key=lambda row: row.name)
    if order.field == NAME:
        return by_name[::-1] if order.descending else by_name
    known = [row for row in by_name if getattr(row, order.field) is not None]
    known.sort(key=lambda row: float(getattr(row, order.field)), reverse=order.descending)
    return [*known, *(row for row in by_name if getattr(row, order.field) is None)]


def _address(part: Part, field: str, orders: Mapping[Part, SortOrder], *, descending_first: bool) -> str:
    """Return the address that sorts a part by a field. If the part is sorted by this field now, reverse the order."""
    now = orders[part]
    wanted = {**orders, part: SortOrder(field, not now.descending if field == now.field else descending_first)}
    query = "&".join(f"{each}={'-' if wanted[each].descending else ''}{wanted[each].field}" for each in TABLES)
    return f"?{query}#{part}"


def _aria_sort(field: str, order: SortOrder) -> str:
    if field != order.field:
        return ""
    return "descending" if order.descending else "ascending"
