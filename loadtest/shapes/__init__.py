"""Load shapes: how many buyers come over time."""

from loadtest.shapes.all_at_once import AllAtOnce

__all__ = ["AllAtOnce"]
