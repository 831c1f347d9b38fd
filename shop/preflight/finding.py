"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "red"]

PAGE = "docs/operations.md"
BEFORE = "before-a-sale"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found.

    Args:
        check: what was checked, in a few words.
        level: red for what makes a sale fail, warning for what an operator should know.
        text: what was found, and for anything but `ok` what to do.
        section: anchor in docs/operations.md.
    """

    check: str
    level: Level
    text: str
    section: str = BEFORE

    @property
    def link(self) -> str:
        """Where the documentation says more."""
        return f"{PAGE}#{self.section}"


def worst(findings: list[Finding]) -> Level:
    """Return the worst level of some findings."""
    levels = {finding.level for finding in findings}
    return "red" if "red" in levels else "warning" if "warning" in levels else "ok"
