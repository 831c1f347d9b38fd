"""The page of the comparison."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from lab.claims import comparisons
from lab.claims.comparisons import PARTS, TABLES
from lab.site.choice.table import choice_lines, headings
from lab.site.comparison.advice import supported_arguments
from lab.site.comparison.contention import contention_section
from lab.site.comparison.retry_delay import retry_delay_section
from lab.site.comparison.segments import segments_section
from lab.site.comparison.table import comparison_table, parse_order
from lab.site.page import read_only_lab_page
from lab.site.provenance import measured_line


@read_only_lab_page
def comparison(request: HttpRequest) -> HttpResponse:
    """Show all parts. `?locks=p50_ms` sorts the table `locks` by the field `p50_ms`; `-p50_ms` sorts descending."""
    orders = {part: parse_order(request.GET.get(part, "")) for part in TABLES}
    measured = {part: comparisons.load(part) for part in PARTS}
    context = {
        "choice_headings": headings(),
        "choice_lines": choice_lines(measured),
        "tables": [comparison_table(part, measured[part], orders) for part in TABLES],
        "curves": [
            segments_section(measured["segments"]),
            contention_section(measured["contention"]),
            retry_delay_section(measured["retry-delay"]),
        ],
        "arguments": list(supported_arguments(measured)),
        "withheld": any(found.stale for part in TABLES if (found := measured[part])),
        "measured_line": measured_line(vars(found) for found in measured.values() if found),
    }
    return render(request, "lab/comparison.html", context)
