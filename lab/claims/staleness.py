"""Which stored results are out of date: the behaviour of the code that they were measured on has changed since."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lab.claims.behaviour import ROOT, hash_of_behaviour, hash_of_files
from lab.ladder.catalogue import LADDER

MEASURED: dict[str, tuple[str, ...]] = {
    "strategies": ("locking", "inventory", "shop/orders", "shop/sales", "shop/api", "shop/runtime", "loadtest/bench"),
    "locks": ("locking", "loadtest/bench"),
}
"""The files that each comparison measures."""


@cache
def behaviour_of_verdict(slug: str) -> str:
    """Hash what runs when a rung's claim is checked."""
    return hash_of_behaviour(_roots(slug), slug=slug, slugs=LADDER)


@cache
def behaviour_of_comparison(part: str) -> str:
    """Hash what a comparison measures."""
    return hash_of_files(*(Path(ROOT) / place for place in MEASURED[part]))


def _roots(slug: str) -> list[Any]:
    # `find` leads to the scheduler, and by the rung's row of the registry to its workload, faults and checker.
    return [LADDER[slug].code, "lab.claims.finding:find"]
