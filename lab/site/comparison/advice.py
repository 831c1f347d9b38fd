"""Advice on which strategy or lock to choose. It is given only where the stored figures support it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from lab.claims.comparisons import TABLES, Measured, Measurement, Part
from lab.site.comparison.links import anchor
from lab.site.comparison.retry_delay import PART as RETRY_DELAY
from lab.site.settings import REDIS_PY_SLEEP, REDLOCK_RETRY_DELAY, SERVER_KEEPALIVE

KEEPALIVES = "https://www.postgresql.org/docs/current/runtime-config-connection.html#RUNTIME-CONFIG-TCP-SETTINGS"
LINUX = "https://docs.kernel.org/networking/ip-sysctl.html"
LEAST_RATIO = 1.1
"""Smallest ratio that counts as better. Smaller differences change from run to run."""


@dataclass(frozen=True)
class Argument:
    """A reason to choose one strategy or lock over another.

    Attributes:
        part: the part of the comparison that measures both.
        better: name of the recommended strategy or lock.
        worse: name of the other strategy or lock.
        field: the field of `Measurement` to compare. For `per_s` more is better, for all others less.
        text: the advice. It may contain `{better}`, `{worse}`, `{times}` (the ratio), and names of `_named` in braces.
    """

    part: Part
    better: str
    worse: str
    field: str
    text: str

    def ratio(self, better: Measurement, worse: Measurement) -> float:
        """Return how many times better the recommended strategy or lock is. 0 if a figure is missing."""
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
            "holds the lock {times} times sooner than with {worse}, which polls every {redis_py_sleep} s by default."
        ),
    ),
    Argument(
        "locks",
        "redis",
        "redisson",
        "p50_ms",
        gettext_noop(
            "To be woken is not yet to hold the lock. A release of {worse} tells all waiters, who then ask, and chance "
            "decides which of them is first. A release of {better} grants the lock to the one that has waited longest, "
            "who holds it {times} times sooner."
        ),
    ),
    Argument(
        "locks",
        "advisory",
        "redis",
        "recovery_s",
        gettext_noop(
            "If you do not want another server or a TTL to choose: after the process of its holder was killed, "
            "{better} is free {times} times sooner than {worse}, whose waiters wait until the TTL is over. A dead "
            "machine or a cut network is different: no connection is closed. Postgres then "
            "keeps {better} until {keepalives} end the session, which takes {server_keepalive} s with the settings of "
            "this package and more than two hours with {linux}. {worse} is free after its TTL, as before."
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
            "Of the locks that survive the loss of a server, {better} hands over {times} times sooner than {worse} "
            "with its default retry delay of {redlock_delay} s. Waiters of {worse} are not woken: they ask again after "
            "such a pause. {redlock_curve} shows what a shorter one gains, and how many commands it costs. {better} "
            "also has a fence. Here {better} was one server; with three, each grant waits for a second one, too."
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


def supported_arguments(measured: Mapping[Part, Measured | None]) -> Iterator[SafeString]:
    """Yield the advice that the figures support, in the reader's language, with links to the rows.

    Args:
        measured: the stored parts. Parts that are out of date support no advice.
    """
    rows = {
        part: {row.name: row for row in found.rows}
        for part in TABLES
        if (found := measured[part]) is not None and not found.stale
    }
    for argument in ARGUMENTS:
        known = rows.get(argument.part, {})
        better, worse = known.get(argument.better), known.get(argument.worse)
        if better is not None and worse is not None and (ratio := argument.ratio(better, worse)) >= LEAST_RATIO:
            names = {
                name: format_html('<a href="#{}">{}</a>', anchor(argument.part, row.name), row.name)
                for name, row in (("better", better), ("worse", worse))
            }
            yield format_html(_(argument.text), times=_two_digits(ratio), **names, **_named())


def _named() -> dict[str, object]:
    """Return values for the names in braces in the texts, except `better`, `worse` and `times`.

    They are settings of the measured code, and links to the sources of the texts.
    """
    return {
        "redis_py_sleep": f"{REDIS_PY_SLEEP:g}",
        "redlock_delay": f"{REDLOCK_RETRY_DELAY:g}",
        "redlock_curve": _link(f"#{RETRY_DELAY}", _("The curve over the retry delay")),
        "server_keepalive": SERVER_KEEPALIVE,
        "keepalives": _link(KEEPALIVES, _("TCP keepalives")),
        "linux": _link(LINUX, _("the defaults of Linux")),
    }


def _link(address: str, text: str) -> SafeString:
    return format_html('<a href="{}">{}</a>', address, text)


def _two_digits(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 9.95 else f"{float(f'{ratio:.2g}'):,.0f}"
