"""The demo: it runs the same burst with flawed and sound ways of taking stock, one after the other."""

from __future__ import annotations

from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db.models import QuerySet
from django.utils import timezone
from rich.console import Console
from rich.live import Live

from inventory import stock
from inventory.models import StockItem
from loadtest.preparation import BURST_TITLE
from loadtest.report import comparison_table
from loadtest.rush import OnProgress, Rush
from loadtest.verdict import Verdict, holds
from shop.management.commands.sample import MIDNIGHT, TONIGHT, SampleSale
from shop.models import Order, Sale
from shop.orders import payments
from shop.pages.account import mails_are_printed
from shop.sales import lifecycle

# Bursts in the order of the lesson: from the first attempt of most programmers to correct code.
PROGRESSION = (
    Rush(rung="compute-and-overwrite"),
    Rush(rung="subtract-in-sql"),
    Rush(strategy="redis-lock"),
    Rush(strategy="optimistic"),
    Rush(strategy="guarded-update"),
    Rush(strategy="group-commit"),
    Rush(strategy="lua"),
)

MAX_BURSTS = 5
"""Maximum number of bursts for a flawed rung: on a busy machine, one burst may not hit the race that oversells."""


def run_progression(url: str, console: Console) -> list[Verdict]:
    """Run all bursts, show their verdicts in a table that grows, and return the verdicts."""
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
    """Run a burst. For a flawed rung, repeat it until its verdict is BROKEN, at most `MAX_BURSTS` times.

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

    If no order were paid, all would expire, and the shop would soon show no sold units. A visitor can watch every tenth
    order expire.

    Args:
        since: when the demo began. Earlier orders are not changed.

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


def close_bursts(since: datetime) -> None:
    """Close the sales of the bursts, so that the storefront shows only sales that a visitor can buy from.

    Args:
        since: when the demo began. Earlier sales are not changed.
    """
    for sale in Sale.objects.filter(name__startswith=BURST_TITLE, opens_at__gte=since):
        lifecycle.close(sale.pk)


def open_sales(password: str) -> tuple[Sale, Sale]:
    """Provide two sales for the visitor: an open sale with all its units, and one that opens within two minutes.

    Sales of an earlier demo are used again, and their sold units are delivered again. If the second sale has already
    opened, it is closed, and a new sale is created.

    Args:
        password: password of the accounts `admin` and `buyer`.

    Returns:
        The open sale and the coming sale.
    """
    for sale in not_over(MIDNIGHT).filter(opens_at__lte=timezone.now()):
        lifecycle.close(sale.pk)
    call_command("sample", password=password, stdout=StringIO())
    for product in (*TONIGHT.products, *MIDNIGHT.products):
        if (missing := product.units - StockItem.objects.get(sku=product.sku).on_hand) > 0:
            stock.deliver(product.sku, missing)
    return not_over(TONIGHT).earliest("opens_at"), not_over(MIDNIGHT).earliest("opens_at")


def not_over(sample: SampleSale) -> QuerySet[Sale]:
    """Return the open and coming sales that sell the first product of this sample sale."""
    return Sale.objects.filter(items__product__sku=sample.products[0].sku, closes_at__gt=timezone.now())


def left_to_buyers(sale: Sale) -> list[int]:
    """Return the ids of the products for simulated buyers: all of a sale except the last one, kept for the visitor."""
    return [item.product_id for item in sale.items.order_by("pk")][:-1]


def welcome(url: str, password: str, sale: Sale, coming: Sale, *, mails: Path) -> str:
    """Return the text that tells a visitor what to try while the shop keeps running.

    Args:
        mails: the log that mails are printed into.
    """
    mail = f"  sign up        the mail with the link is at the end of {mails}\n" if mails_are_printed() else ""
    return f"""

The shop keeps running. Stop it with Ctrl-C.

  shop           {url}/
  open sale      {url}/sales/{sale.slug}/
                 simulated buyers buy from it, and leave the poster to you
  next sale      {url}/sales/{coming.slug}/
                 opens at {coming.opens_at:%H:%M:%S} UTC, and they buy there, too
  admin          {url}/admin/          stock, locks, orders
  lab            {url}/lab/            watch flawed code break
  API            {url}/api/docs/
  log in as      admin or buyer, password {password}
{mail}  another burst  make rush ARGS="--strategy lua --clients 200 --url {url}"
"""
