"""Links from the page of a lock or way of selling to its rows in the comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext as _

from lab.claims import comparisons
from lab.claims.comparisons import TABLES, Part
from lab.site.comparison.columns import COLUMNS


@dataclass(frozen=True)
class ComparisonLink:
    """A link to a row of the comparison.

    Attributes:
        address: address of the row.
        name: name of the measured strategy or lock.
        figure: the heading and the value of the row's first figure, or "out of date" in place of the value.
    """

    address: str
    name: str
    figure: str


def links_to_comparison(slug: str) -> Iterator[ComparisonLink]:
    """Yield a link to each row that measures a rung."""
    for part in TABLES:
        measured = comparisons.load(part)
        for row in measured.rows if measured else ():
            if slug in row.rungs:
                address = f"{reverse('lab-comparison')}#{anchor(part, row.name)}"
                figure = _("%(title)s: %(figure)s") % {
                    "title": _(COLUMNS[0].titles[part]),
                    "figure": _("out of date") if measured and measured.stale else COLUMNS[0].figure(row),
                }
                yield ComparisonLink(address, row.name, figure)


def anchor(part: Part, name: str) -> str:
    """Return the id of a row on the comparison page."""
    return f"{part}-{name}"
