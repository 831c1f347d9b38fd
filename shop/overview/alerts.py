"""Alerts: reasons for an operator to act now, each with advice and the section of the documentation about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inventory.audit import Figures
from shop.overview.health import Health
from shop.overview.requests import Requests
from shop.overview.selling import OpenSaleFigures

OLD_QUEUE = 20.0
"""Seconds after which a queued order raises an alert. Even if a worker dies, orders are saved sooner."""
LONG_HOLD = 30.0
"""Seconds after which a held lock with waiters raises an alert. Orders hold locks for a much shorter time."""

FAILED = 0.05
"""Share of order requests with a server error that raises an alert, as in observe/alerts.yml."""

SLOW = 5.0
"""99th percentile of the response time in seconds that raises an alert, as `OrdersSlow` in observe/alerts.yml."""

AUDIT = "Run manage.py audit, which shows the SKU and what differs. If anything is oversold, close the sale."
WRITES = (
    "If it is full, raise maxmemory. If it is a replica, let REDIS_URL name the primary. Start no worker and no beat: "
    "their heartbeats are refused, too."
)
PREHEAT = "Choose “Preheat”, which says what is wrong."

STOCK, ORDERS, SALES = "inventory.view_stockitem", "shop.view_order", "shop.view_sale"


@dataclass(frozen=True, slots=True)
class Alert:
    """A reason for an operator to act.

    Args:
        wrong: what is wrong.
        advice: what to do, in the words of the section.
        section: page and anchor below docs/, such as `incidents.md#redis-is-away`.
        permission: the permission that a user needs to see the alert.
    """

    wrong: str
    advice: str
    section: str
    permission: str

    @property
    def text(self) -> str:
        return f"{self.wrong} {self.advice}"

    @property
    def link(self) -> str:
        return f"docs/{self.section}"


def alerts(
    sales: Sequence[OpenSaleFigures], health: Health, broken: Sequence[Figures], requests: Requests | None = None
) -> list[Alert]:
    """Return the present alerts, the most urgent first."""
    return [
        *_of_stock(broken),
        *_of_reconciling(health, broken),
        *_of_servers(health),
        *_of_requests(requests),
        *_of_sales(sales),
        *_of_coming_sales(health),
        *_of_locks(health),
    ]


def _of_stock(broken: Sequence[Figures]) -> Iterator[Alert]:
    if broken:
        names = ", ".join(figures.sku for figures in broken[:5])
        yield Alert(f"The stock of {names} is broken.", AUDIT, "incidents.md#the-verdict-is-broken", STOCK)


def _of_reconciling(health: Health, broken: Sequence[Figures]) -> Iterator[Alert]:
    """Yield an alert for problems that the last reconciliations have found.

    The live drift raises no alert, because it is above 0 for moments in each burst.
    """
    if not health.reconciled:
        return
    newest = health.reconciled[0]
    if newest.broken and not broken:
        names = ", ".join(newest.broken[:5])
        wrong = f"The last reconciliation, {newest.age:.0f} s ago, found {names} broken."
        yield Alert(wrong, AUDIT, "incidents.md#the-verdict-is-broken", STOCK)
    if len(health.reconciled) > 1 and all(each.repairs for each in health.reconciled):
        wrong = f"The last two reconciliations have both repaired something, the newest {newest.units} units."
        advice = (
            "Look in the log of the worker for what was repaired, and for another program that writes to this Redis."
        )
        yield Alert(wrong, advice, "incidents.md#redis-differs-stays", STOCK)


def _of_servers(health: Health) -> Iterator[Alert]:
    if health.redis_error:
        wrong = f"Redis does not answer: {health.redis_error}"
        yield Alert(wrong, "Start Redis, and check that the workers are there.", "incidents.md#redis-is-away", ORDERS)
        return
    if health.redis_refusal:
        wrong = f"Redis refuses writes: {health.redis_refusal.rstrip('.')}."
        yield Alert(wrong, WRITES, "incidents.md#redis-refuses-writes", ORDERS)
    # If Redis has taken no heartbeats, beat seems dead but may be alive. Then an operator who follows the advice of the
    # alert would start a second beat.
    if health.heartbeats:
        yield from _of_celery(health)
    if health.dead_letters:
        advice = (
            "Read the reasons under “Dead letters” on the overview. Several with the same reason are a bug of the "
            "shop: report it with their content."
        )
        yield Alert("Queued orders could not be saved and were rejected.", advice, "log.md#what-the-log-says", ORDERS)


def _of_celery(health: Health) -> Iterator[Alert]:
    if health.needed and not health.workers:
        yield Alert(
            "No worker is alive: queued orders are not saved.", "Start a worker.", "deployment.md#start", ORDERS
        )
    elif health.queue and health.queue_age > OLD_QUEUE:
        wrong = f"{health.queue} orders are queued, the oldest for {health.queue_age:.0f} s."
        yield Alert(wrong, "Start more workers.", "incidents.md#the-queue-grows", ORDERS)
    if health.needed and not health.beats:
        wrong = "Beat is not alive: no sale is preheated, and no order expires."
        yield Alert(wrong, "Start beat. Exactly one may run.", "deployment.md#start", ORDERS)
    elif health.late:
        wrong = f"{health.late} unpaid orders should have expired and keep their units."
        advice = "Look in the log of the worker for “Expiring order”, and remove the cause that it names."
        yield Alert(wrong, advice, "log.md#what-the-log-says", ORDERS)


def _of_requests(requests: Requests | None) -> Iterator[Alert]:
    if requests is None:
        return
    if requests.failed > FAILED:
        wrong = f"{requests.failed:.0%} of the order requests of the last seconds ended with a server error."
        advice = "If Postgres and Redis answer, see in the metrics what requests wait for."
        yield Alert(wrong, advice, "incidents.md#when-something-is-wrong", ORDERS)
    if requests.p99 is not None and requests.p99 > SLOW:
        wrong = f"One order request in a hundred takes longer than {requests.p99:.1f} s."
        advice = (
            "See which part of the time grows: the wait for a thread, for a lock or for a connection. "
            "Choose the strategy by it."
        )
        yield Alert(wrong, advice, "metrics.md#metrics", ORDERS)


def _of_coming_sales(health: Health) -> Iterator[Alert]:
    for name in health.unloaded:
        yield Alert(
            f"“{name}” opens soon, and its stock is not loaded.", PREHEAT, "before-a-sale.md#before-a-sale", SALES
        )


def _of_sales(sales: Sequence[OpenSaleFigures]) -> Iterator[Alert]:
    for each in sales:
        if each.sale.paused_at is not None:
            wrong = f"“{each.sale}” has been paused since {each.sale.paused_at:%H:%M:%S}."
            yield Alert(wrong, "Resume it when the reason is gone.", "during-a-sale.md#pause-a-sale", SALES)
        elif not each.sale.is_loaded:
            yield Alert(
                f"“{each.sale}” is open, and its stock is not loaded.", PREHEAT, "before-a-sale.md#before-a-sale", SALES
            )


def _of_locks(health: Health) -> Iterator[Alert]:
    for lock in health.locks:
        if lock.waiters and (lock.age or 0) > LONG_HOLD:
            wrong = f"Lock {lock.name} has been held for {lock.age:.0f} s, and {lock.waiters} wait for it."
            advice = "Look at its holder on the page of locks. If the holder is dead, the lock ends by itself."
            yield Alert(wrong, advice, "incidents.md#a-lock-that-nobody-releases", STOCK)
