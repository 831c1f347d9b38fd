"""Shared code of the comparison's sections with curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from lab.claims.comparisons import Measured, Part
from lab.site.comparison.chart import Chart

NAMES = ("guarded-update", "optimistic", "redlock", "row-lock", "segmented-lock", "zookeeper")
"""The strategies and locks that the sections name. Each has a page in the ladder, to which its name links."""
NEAR = 0.9
"""Smallest ratio of two figures that counts as equal. Smaller differences change from run to run."""


@dataclass(frozen=True)
class Cell:
    """A figure in a table, and a smaller line below it."""

    figure: str
    note: str = ""


@dataclass(frozen=True)
class CurveSection:
    """A section of the page. Without a measurement it has only a title and the claim.

    Attributes:
        claim: the claim, and how it is tested.
        conclusions: sentences about the claim that the figures support. Empty while the figures are out of date.
        notes: how the figures were measured, and the meaning of the table's columns.
        headings: headings of the table's columns.
        rows: the cells of the table. The first cell of a row is its heading.
    """

    part: Part
    title: str
    claim: str
    measured: Measured | None = None
    charts: Sequence[Chart] = ()
    conclusions: Sequence[str] = ()
    notes: str = ""
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = field(default=())


def sentence(text: str, **values: object) -> SafeString:
    """Return a text with values for the names in braces. Names such as `{row_lock}` become links."""
    links = {
        name.replace("-", "_"): format_html('<a href="{}">{}</a>', reverse("lab-rung", args=[name]), name)
        for name in NAMES
    }
    texts = {name: f"{value:g}" if isinstance(value, float) else value for name, value in values.items()}
    return format_html(text, **links, **texts)


def listed(texts: Sequence[str]) -> str:
    """Return short texts as one list in the reader's language, such as `1 ms, 5 ms and 20 ms`."""
    return _(" and ").join([part for part in (_(", ").join(texts[:-1]), *texts[-1:]) if part])


def ratio(value: float) -> str:
    """Return a ratio as text."""
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"
