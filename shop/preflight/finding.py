"""The result of a preflight check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "red"]

BEFORE = "before-a-sale.md#before-a-sale"
KEEP = "Set appendonly yes, appendfsync always and maxmemory-policy noeviction."
"""Advice when Redis may lose data."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a preflight check.

    Args:
        check: what was checked, in a few words.
        level: red if the sale would fail; warning if an operator should know about the result; otherwise ok.
        found: what was found.
        advice: what to do about a warning or a red result, in the words of the manual; otherwise empty.
        section: page and anchor of the advice in the manual, below docs/, such as `incidents.md#redis-is-away`.
    """

    check: str
    level: Level
    found: str
    advice: str = ""
    section: str = BEFORE

    @property
    def text(self) -> str:
        return f"{self.found} {self.advice}".rstrip()

    @property
    def link(self) -> str:
        """Path and anchor of the section in the documentation."""
        return f"docs/{self.section}"


def worst(findings: list[Finding]) -> Level:
    """Return the worst level of some findings."""
    levels = {finding.level for finding in findings}
    return "red" if "red" in levels else "warning" if "warning" in levels else "ok"
