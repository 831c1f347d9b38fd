"""For `type` of a command's argument."""

from __future__ import annotations

import argparse

MOST = 1_000_000
MOST_CLIENTS = 20_000
"""Connections at a time to one address, which has some 28,000 ports to give to one machine by default."""


def positive(text: str) -> int:
    """A whole number from 1 to `MOST`."""
    number = int(text)
    if not 1 <= number <= MOST:
        raise ValueError
    return number


def clients(text: str) -> int:
    """As many buyers at the same time as one machine can play."""
    number = positive(text)
    if number > MOST_CLIENTS:
        raise argparse.ArgumentTypeError(
            f"one machine plays at most {MOST_CLIENTS:,} at the same time; --attempts says how many come in all"
        )
    return number


def seconds(text: str) -> float:
    """More than none, and no more than an hour."""
    number = float(text)
    if not 0 < number <= 3600:
        raise ValueError
    return number
