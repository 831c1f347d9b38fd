"""How load comes over time."""

from loadtest.shapes.burst import Burst

__all__ = ["Burst"]
