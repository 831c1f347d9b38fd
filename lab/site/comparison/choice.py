"""Which way to choose, argued from what was measured: an argument that the figures do not bear out is not made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from lab.site.comparison.stored import Part, Row

CLEAR = 1.1
"""How many times better something has to be, at least: less differs from one run to the next."""


@dataclass(frozen=True)
class Argument:
    """Why one is chosen, and what it is better than.

    Attributes:
        field: of `Row`, in which it is better: of `per_s` more is better, of all others less.
        text: names both, and has `{times}` for how many times better the one is.
    """

    part: Part
    better: str
    worse: str
    field: str
    text: str

    def times(self, better: Row, worse: Row) -> float:
        """How many times better the one is; 0 where there is nothing to compare."""
        figures = getattr(better, self.field), getattr(worse, self.field)
        more, less = figures if self.field == "per_s" else reversed(figures)
        return more / less if more and less else 0.0


ARGUMENTS = (
    Argument(
        "strategies",
        "group-commit",
        "redis-lock",
        "per_s",
        gettext_noop(
            "Where the stock is in one Postgres, a sale needs no lock beside it: {better} sells {times} times as many "
            "orders a second as {worse}."
        ),
    ),
    Argument(
        "strategies",
        "guarded-update",
        "redis-lock",
        "per_s",
        gettext_noop(
            "The simplest way that is sound, {better}, is one statement, and sells {times} times as many as {worse}."
        ),
    ),
    Argument(
        "locks",
        "redis",
        "advisory",
        "per_s",
        gettext_noop(
            "Where a lock it has to be, for work outside the database: {better} is taken and given back {times} times "
            "as fast as {worse} in Postgres. For correctness take its fence along, or have a guard in SQL."
        ),
    ),
    Argument(
        "locks",
        "redis",
        "redis-py",
        "p50_ms",
        gettext_noop(
            "Do not write it yourself, and look at how a library waits: {better} wakes the next one, who holds the "
            "lock {times} times sooner than with {worse}, where he polls."
        ),
    ),
    Argument(
        "locks",
        "advisory",
        "redis",
        "recovery_s",
        gettext_noop(
            "Without a server more, and with no time to live to be chosen: {better} is free {times} times sooner after "
            "its holder's death than {worse}, where others wait for the TTL to pass."
        ),
    ),
    Argument(
        "locks",
        "redis",
        "zookeeper",
        "per_s",
        gettext_noop(
            "A lock that outlives the loss of a server has its price: {better} is {times} times as fast as {worse}, "
            "which was one server here, and has to be three or more."
        ),
    ),
    Argument(
        "locks",
        "zookeeper",
        "redlock",
        "p50_ms",
        gettext_noop(
            "Of those that outlive it, {better} hands over {times} times sooner than {worse}, and gives a fence."
        ),
    ),
    Argument(
        "locks",
        "zookeeper",
        "etcd",
        "per_s",
        gettext_noop("{better} is {times} times as fast as {worse}; one that you run already outweighs that."),
    ),
)


def arguments(rows: Mapping[Part, Mapping[str, Row]]) -> Iterator[SafeString]:
    """What speaks for which, in the reader's language, with links to the rows.

    Args:
        rows: what was measured, by part and name.
    """
    for argument in ARGUMENTS:
        measured = rows.get(argument.part, {})
        better, worse = measured.get(argument.better), measured.get(argument.worse)
        if better is not None and worse is not None and (times := argument.times(better, worse)) >= CLEAR:
            names = {
                name: format_html('<a href="#{}">{}</a>', anchor(argument.part, row.name), row.name)
                for name, row in (("better", better), ("worse", worse))
            }
            yield format_html(_(argument.text), times=_in_two_digits(times), **names)


def anchor(part: Part, name: str) -> str:
    """Where the row of that name stands on the page."""
    return f"{part}-{name}"


def _in_two_digits(times: float) -> str:
    return f"{times:.1f}" if times < 9.95 else f"{float(f'{times:.2g}'):,.0f}"
