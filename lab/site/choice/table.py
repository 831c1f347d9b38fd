"""The table of the choice. A cell shows a stored figure, a text with its source, or a note that no figure exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from lab.claims.comparisons import Measured, Measurement, Part
from lab.site.choice.rows import ROWS, ChoiceRow
from lab.site.choice.silence import FIGURES

BASES: dict[Part, str] = {"strategies": "guarded-update", "locks": "redis"}
"""One row of each part. The rates of the other rows are shown as multiples of the rate of this row."""
Stored = Mapping[Part, Measured | None]


@dataclass(frozen=True)
class ChoiceCell:
    """A cell of the table.

    Attributes:
        text: its text. Text between backticks is code.
        source: where the text comes from: an address, or a file of this repository. Empty if no source is shown, such
            as for a figure that was measured here.
    """

    text: str
    source: str = ""

    @property
    def linked(self) -> bool:
        """Whether the source is an address."""
        return self.source.startswith("https://")


@dataclass(frozen=True)
class ChoiceColumn:
    """A column of the table.

    Attributes:
        title: its heading.
        unit: the unit, shown after the heading.
        cell: returns the cell of a row, given the stored parts.
        prose: whether its cells are sentences.
    """

    title: str
    unit: str
    cell: Callable[[ChoiceRow, Stored], ChoiceCell]
    prose: bool = False


@dataclass(frozen=True)
class ChoiceLine:
    """A row of the choice as the page shows it. `cells` has a heading, a column and a cell for each column."""

    row: ChoiceRow
    title: str
    cells: Sequence[tuple[str, ChoiceColumn, ChoiceCell]]


def choice_lines(stored: Stored) -> list[ChoiceLine]:
    """Return all rows of the choice in the reader's language.

    Args:
        stored: the stored results of each part of the comparison. A part that is out of date shows no figure.
    """
    return [choice_line(row, stored) for row in ROWS]


def choice_line(row: ChoiceRow, stored: Stored) -> ChoiceLine:
    """Return one row of the choice in the reader's language."""
    return ChoiceLine(row, _(row.title), [(heading(column), column, column.cell(row, stored)) for column in COLUMNS])


def headings() -> list[tuple[str, ChoiceColumn]]:
    """Return the headings of the table in the reader's language."""
    return [(heading(column), column) for column in COLUMNS]


def heading(column: ChoiceColumn) -> str:
    """Return the heading of a column with its unit."""
    return f"{_(column.title)}, {_(column.unit)}" if column.unit else _(column.title)


def _figure(
    part: Part, name: str, show: Callable[[Measurement, Mapping[str, Measurement]], str | None], stored: Stored
) -> ChoiceCell:
    """Return the cell of a stored figure."""
    found = stored[part]
    rows = {row.name: row for row in found.rows} if found else {}
    if name not in rows:
        return ChoiceCell(_("not measured"))
    if found is None or found.stale:
        return ChoiceCell(_("out of date"))
    return ChoiceCell(show(rows[name], rows) or _("not measured"))


def _rate(part: Part) -> Callable[[Measurement, Mapping[str, Measurement]], str | None]:
    def show(row: Measurement, rows: Mapping[str, Measurement]) -> str | None:
        base = rows.get(BASES[part])
        return f"{row.per_s / base.per_s:.2f}" if row.per_s and base and base.per_s else None

    return show


def _orders(row: ChoiceRow, stored: Stored) -> ChoiceCell:
    return _figure("strategies", row.strategy, _rate("strategies"), stored)


def _pairs(row: ChoiceRow, stored: Stored) -> ChoiceCell:
    return ChoiceCell("–") if row.guarded else _figure("locks", row.measured_lock, _rate("locks"), stored)


def _hand_over(row: ChoiceRow, stored: Stored) -> ChoiceCell:
    def show(measured: Measurement, _rows: Mapping[str, Measurement]) -> str | None:
        return None if measured.p50_ms is None else f"{measured.p50_ms:.1f}"

    return ChoiceCell("–") if row.guarded else _figure("locks", row.measured_lock, show, stored)


def _process(row: ChoiceRow, stored: Stored) -> ChoiceCell:
    if not row.silence.measured:
        return ChoiceCell(_(row.silence.killed), row.silence.source)

    def show(measured: Measurement, _rows: Mapping[str, Measurement]) -> str | None:
        return None if measured.recovery_s is None else f"{measured.recovery_s:.2f} s"

    if row.measured_lock:
        return _figure("locks", row.measured_lock, show, stored)
    return _figure("strategies", row.strategy, show, stored)


def _machine(row: ChoiceRow, _stored: Stored) -> ChoiceCell:
    return ChoiceCell(_(row.silence.machine).format_map(FIGURES), row.silence.source)


def _network(row: ChoiceRow, _stored: Stored) -> ChoiceCell:
    return ChoiceCell(_(row.silence.network).format_map(FIGURES), row.silence.source)


def _nodes(row: ChoiceRow, _stored: Stored) -> ChoiceCell:
    """Return the cell that says whether a row's lock or strategy survives the loss of a server."""
    if row.without:
        lost, total = row.without.split(" of ")
        return ChoiceCell(_("yes: without {lost} of {total}").format(lost=lost, total=total))
    if row.lock and not row.capabilities.across_machines:
        return ChoiceCell(_("needs none"))
    if row.minority:
        return ChoiceCell(_("yes: without a minority"), row.minority)
    return ChoiceCell(_("no"), row.source)


def _fence(row: ChoiceRow, _stored: Stored) -> ChoiceCell:
    """Return the cell that says whether a row's grants have a fence."""
    if row.guarded:
        return ChoiceCell(_("needs none"))
    return ChoiceCell(_("yes") if row.fenced else _("none"), row.source)


def _needs(row: ChoiceRow, _stored: Stored) -> ChoiceCell:
    return ChoiceCell(_(row.needs), row.source)


def _when(row: ChoiceRow, _stored: Stored) -> ChoiceCell:
    return ChoiceCell(_(row.when))


COLUMNS = (
    ChoiceColumn(gettext_noop("When"), "", _when, prose=True),
    ChoiceColumn(gettext_noop("Orders"), gettext_noop("× guarded update"), _orders),
    ChoiceColumn(gettext_noop("Acquire and release"), gettext_noop("× Redis lock"), _pairs),
    ChoiceColumn(gettext_noop("Hand-over p50"), "ms", _hand_over),
    ChoiceColumn(gettext_noop("Free after the process died"), "", _process, prose=True),
    ChoiceColumn(gettext_noop("Free after the machine died"), "", _machine, prose=True),
    ChoiceColumn(gettext_noop("Free after the network was cut"), "", _network, prose=True),
    ChoiceColumn(gettext_noop("Survives the loss of a server"), "", _nodes, prose=True),
    ChoiceColumn(gettext_noop("Fence"), "", _fence, prose=True),
    ChoiceColumn(gettext_noop("Needs"), "", _needs, prose=True),
)
