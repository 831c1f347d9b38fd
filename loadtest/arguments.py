"""Argument types for `argparse` that reject numbers which are too small or too large."""

from __future__ import annotations

import argparse

MOST = 1_000_000
MOST_CLIENTS = 20_000
"""Maximum number of concurrent connections to one address. A machine has about 28,000 client ports by default."""


def positive(text: str) -> int:
    """Parse an integer from 1 to `MOST`."""
    number = int(text)
    if not 1 <= number <= MOST:
        raise ValueError
    return number


def clients(text: str) -> int:
    """Parse a number of concurrent buyers, from 1 to `MOST_CLIENTS`."""
    number = positive(text)
    if number > MOST_CLIENTS:
        raise argparse.ArgumentTypeError(
            f"one machine can run at most {MOST_CLIENTS:,} buyers at the same time; --attempts sets the total number "
            "of orders"
        )
    return number


def seconds(text: str) -> float:
    """Parse a duration in seconds: more than 0, at most 3600."""
    number = float(text)
    if not 0 < number <= 3600:
        raise ValueError
    return number
