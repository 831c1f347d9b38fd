"""One line that says when and on which machine the results of a page were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext


def measured_line(results: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence for each machine: its description, and the first and last day of its measurements.

    The result is empty if no day is known.

    Args:
        results: stored results. `made` is a day such as 2026-01-31; `machine` has `cpus`, `processor` and `python`.
    """
    days: dict[tuple[str, str, str], set[str]] = {}
    for result in results:
        if "made" in result and "machine" in result:
            machine = result["machine"]
            key = (str(machine["cpus"]), machine["processor"], machine["python"])
            days.setdefault(key, set()).add(result["made"])
    return " ".join(_sentence(*machine, sorted(measured)) for machine, measured in sorted(days.items()))


def outdated_line(results: Iterable[Mapping[str, Any]]) -> str:
    """Return a text that says how many results are out of date. Empty if none is."""
    count = sum(bool(result.get("outdated")) for result in results)
    if not count:
        return ""
    return ngettext(
        "%(count)d result is out of date: the code has changed since.",
        "%(count)d results are out of date: the code has changed since.",
        count,
    ) % {"count": count}


def _sentence(cpus: str, processor: str, python: str, days: list[str]) -> str:
    when = days[0] if len(days) == 1 else _("%(first)s to %(last)s") % {"first": days[0], "last": days[-1]}
    return _("Measured on %(when)s with %(cpus)s CPUs (%(processor)s) and Python %(python)s.") % {
        "when": when,
        "cpus": cpus,
        "processor": processor,
        "python": python,
    }
