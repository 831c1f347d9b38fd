"""The demo: the same burst with flawed and sound ways of taking stock, one after the other."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rich.console import Console
from rich.live import Live

from loadtest.preparation import BURST_TITLE
from loadtest.report import comparison_table
from loadtest.rush import OnProgress, Rush
from loadtest.verdict import Verdict, holds
from shop.models import Order
from shop.orders import payments

# From the code that most people write first to correct code.
PROGRESSION = (
    Rush(rung="compute-and-overwrite"),
    Rush(rung="subtract-in-sql"),
    Rush(strategy="redis-lock"),
    Rush(strategy="optimistic"),
    Rush(strategy="guarded-update"),
    Rush(strategy="lua"),
)

MAX_BURSTS = 5
"""Maximum number of bursts for a flawed rung: on a busy machine, one burst may not hit the race that oversells."""


def run_progression(url: str, console: Console) -> list[Verdict]:
    """Run all bursts in a table that grows, and return the verdicts."""
    verdicts: list[Verdict] = []
    first = PROGRESSION[0]
    console.print(
        f"\n{first.stock} units, {first.clients} concurrent buyers, {first.wanted} attempted orders, over HTTP:\n"
    )
    with Live(console=console, auto_refresh=False) as live:
        for rush in PROGRESSION:

            def show(counts: dict[str, Any], name: str = rush.name) -> None:
                live.update(comparison_table(verdicts, running=(name, counts)), refresh=True)

            show({})
            verdicts.append(run_until_broken(rush, url, progress=show))
            live.update(comparison_table(verdicts), refresh=True)
    for rush, verdict in zip(PROGRESSION, verdicts, strict=True):
        if rush.rung and holds(verdict):
            console.print(
                f"\n{rush.name} was not broken in {MAX_BURSTS} bursts. It is flawed, but needs an unlucky moment: "
                "run the demo again."
            )
        elif verdict["bursts"] > 1:
            console.print(f"\n{rush.name} was broken by burst {verdict['bursts']}; the table shows that burst.")
    console.print("\nThe flawed ones sell from tables of the lab, which the shop's admin and audit do not show.")
    return verdicts


def run_until_broken(rush: Rush, url: str, *, progress: OnProgress) -> Verdict:
    """Run a burst; repeat it for a flawed rung until one breaks it, at most `MAX_BURSTS` times.

    Returns:
        The last verdict, with the number of bursts under `bursts`.
    """
    verdict: Verdict = {}
    for bursts in range(1, MAX_BURSTS + 1 if rush.rung else 2):
        verdict = {**rush.run(url, progress=progress), "bursts": bursts}
        if not holds(verdict):
            break
    return verdict


def pay_orders(since: datetime) -> int:
    """Pay nine of ten orders of the bursts.

    Unpaid orders expire, and the shop that keeps running would soon show that nothing was sold. The others stay
    pending, so that a visitor can watch them expire.

    Args:
        since: when the demo began. Earlier orders are left alone.

    Returns:
        The number of orders that were paid.
    """
    pending = Order.objects.filter(
        state=Order.State.PENDING, created_at__gte=since, sale__name__startswith=BURST_TITLE
    ).prefetch_related("items")
    orders = [order for number, order in enumerate(pending.order_by("pk")) if number % 10]
    for order in orders:
        payments.receive_payment(f"demo-{order.pk}", order=order.pk, amount=order.total, currency=order.currency)
    return len(orders)


def welcome(url: str, password: str) -> str:
    """Return what to try in the shop that keeps running."""
    return f"""

The shop keeps running. Stop it with Ctrl-C.

  API            {url}/api/docs/
  admin          {url}/admin/          stock, locks, orders
  lab            {url}/lab/            watch flawed code break
  log in as      admin or buyer, password {password}
  another burst  make rush ARGS="--strategy lua --clients 200 --url {url}"
"""
