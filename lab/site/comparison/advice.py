"""Advice on which strategy or lock to choose, given only where the stored figures support it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from lab.claims.comparisons import Measurement, Part
from lab.site.comparison.links import anchor

LEAST_RATIO = 1.1
"""Smallest ratio that counts as better. Smaller ones differ from run to run."""


@dataclass(frozen=True)
class Argument:
    """A reason to choose one strategy or lock over another.

    Attributes:
        part: the part of the comparison that measures both.
        better: name of the recommended one.
        worse: name of the other one.
        field: the field of `Measurement` to compare. For `per_s` more is better, for the others less.
        text: the advice, with `{better}`, `{worse}` and `{times}` for the ratio.
    """

    part: Part
    better: str
    worse: str
    field: str
    text: str

    def ratio(self, better: Measurement, worse: Measurement) -> float:
        """Return how many times better the first one is; 0 if there is nothing to compare."""
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
            "If the stock is in one Postgres, a sale needs no extra lock: {better} sells {times} times as many orders "
            "per second as {worse}."
        ),
    ),
    Argument(
        "strategies",
        "guarded-update",
        "redis-lock",
        "per_s",
        gettext_noop(
            "The simplest sound strategy, {better}, is one statement. It sells {times} times as many orders per second "
            "as {worse}."
        ),
    ),
    Argument(
        "locks",
        "redis",
        "advisory",
        "per_s",
        gettext_noop(
            "If work outside the database needs a lock: {better} is acquired and released {times} times as fast as "
            "{worse} in Postgres. For correctness, also use its fence or a guard in SQL."
        ),
    ),
    Argument(
        "locks",
        "redis",
        "redis-py",
        "p50_ms",
        gettext_noop(
            "Do not write a lock yourself, and check how a library waits: {better} wakes the next waiter, which then "
            "holds the lock {times} times sooner than with {worse}, where it polls."
        ),
    ),
    Argument(
        "locks",
        "advisory",
        "redis",
        "recovery_s",
        gettext_noop(
            "If you do not want another server or a TTL to choose: {better} is free {times} times sooner after its "
            "holder dies than {worse}, whose waiters wait until the TTL is over."
        ),
    ),
    Argument(
        "locks",
        "redis",
        "zookeeper",
        "per_s",
        gettext_noop(
            "A lock that survives the loss of a server has its price: {better} is {times} times as fast as {worse}. "
            "Here {worse} was one server; in production it must be at least three."
        ),
    ),
    Argument(
        "locks",
        "zookeeper",
        "redlock",
        "p50_ms",
        gettext_noop(
            "Of the locks that survive the loss of a server, {better} hands over {times} times sooner than {worse}, "
            "and it has a fence."
        ),
    ),
    Argument(
        "locks",
        "zookeeper",
        "etcd",
        "per_s",
        gettext_noop(
            "{better} is {times} times as fast as {worse}. If you already run one of them, that matters more."
        ),
    ),
)


def supported_arguments(rows: Mapping[Part, Mapping[str, Measurement]]) -> Iterator[SafeString]:
    """Yield the arguments that the figures support, in the reader's language, with links to the rows.

    Args:
        rows: the measurements by part and name.
    """
    for argument in ARGUMENTS:
        measured = rows.get(argument.part, {})
        better, worse = measured.get(argument.better), measured.get(argument.worse)
        if better is not None and worse is not None and (ratio := argument.ratio(better, worse)) >= LEAST_RATIO:
            names = {
                name: format_html('<a href="#{}">{}</a>', anchor(argument.part, row.name), row.name)
                for name, row in (("better", better), ("worse", worse))
            }
            yield format_html(_(argument.text), times=_two_digits(ratio), **names)


def _two_digits(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 9.95 else f"{float(f'{ratio:.2g}'):,.0f}"
