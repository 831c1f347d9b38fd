"""For `type` of a command's argument."""

from __future__ import annotations

MOST = 1_000_000


def positive(text: str) -> int:
    """A whole number from 1 to `MOST`."""
    number = int(text)
    if not 1 <= number <= MOST:
        raise ValueError
    return number


def seconds(text: str) -> float:
    """More than none, and no more than an hour."""
    number = float(text)
    if not 0 < number <= 3600:
        raise ValueError
    return number
