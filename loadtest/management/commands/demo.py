"""`manage.py demo`: the first failure progression, then a shop to look at."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from loadtest import audit
from loadtest.arguments import positive
from loadtest.rush import Rush, RushError
from loadtest.stack import Stack
from servers import ServerError
from shop.management.commands.servers import line_of

# From the code that everybody writes first to the code that holds.
PROGRESSION = (
    Rush(rung="compute-and-overwrite"),
    Rush(rung="subtract-in-sql"),
    Rush(strategy="redis-lock"),
    Rush(strategy="optimistic"),
    Rush(strategy="guarded-update"),
    Rush(strategy="lua"),
)

# To sell too much, a flawed one has to lose a race, and on a busy machine may win one burst's.
BURSTS = 5


class Command(BaseCommand):
    help = (
        "Starts servers, web, worker and beat; lets the same burst loose on two flawed ways of taking stock and four "
        "sound ones; then keeps serving until Ctrl-C. Exit status 1 when a sound one was broken."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=positive, default=8000, help="of the shop (8000)")
        parser.add_argument("--once", action="store_true", help="stop after the table")

    def handle(self, *args: Any, **options: Any) -> None:
        console = Console()
        password = secrets.token_hex(8)
        try:
            with ExitStack() as running:
                with console.status("Starting Postgres, Valkey, web, worker and beat …"):
                    stack = running.enter_context(Stack(port=options["port"], lab=True, background=True))
                    call_command("sample", password=password, stdout=StringIO())
                console.print(*map(line_of, stack.in_use), sep="\n", style="dim", soft_wrap=True, highlight=False)
                results = progression(stack.url, console)
                if not options["once"]:
                    console.print(welcome(stack.url, password), soft_wrap=True, highlight=False)
                    stack.wait()
        except KeyboardInterrupt:
            console.print("Stopped.")
            return
        except (ServerError, RushError) as error:
            raise CommandError(str(error), returncode=2) from error
        sound = [result for rush, result in zip(PROGRESSION, results, strict=True) if not rush.rung]
        if not all(audit.holds(result) for result in sound):
            raise SystemExit(1)


def progression(url: str, console: Console) -> list[dict[str, Any]]:
    """Run every burst, one after the other, in a table that grows."""
    results: list[dict[str, Any]] = []
    first = PROGRESSION[0]
    console.print(f"\n{first.stock} units, {first.clients} buyers at once, {first.wanted} orders tried, over HTTP:\n")
    with Live(console=console, auto_refresh=False) as live:
        for rush in PROGRESSION:

            def show(said: dict[str, Any], name: str = rush.name) -> None:
                growing = table(results)
                told = (str(said.get(key, "")) for key in ("answered", "refused"))
                growing.add_row(name, *told, *[""] * 3, "[dim]running …[/]")
                live.update(growing, refresh=True)

            show({})
            results.append(until_broken(rush, url, progress=show))
            live.update(table(results), refresh=True)
    for rush, result in zip(PROGRESSION, results, strict=True):
        if rush.rung and audit.holds(result):
            console.print(f"\n{rush.name} won its race in {BURSTS} bursts. It is flawed all the same: try once more.")
        elif result["bursts"] > 1:
            console.print(f"\n{rush.name} was broken by burst {result['bursts']}, which the table has.")
    console.print("\nThe flawed ones sell from tables of the lab, which the shop's admin and audit leave out.")
    return results


def until_broken(rush: Rush, url: str, *, progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The verdict on a burst; on a flawed rung the first that breaks it, or the last of `BURSTS` when none does.

    Returns:
        The verdict, and under `bursts` how many came.
    """
    result: dict[str, Any] = {}
    for bursts in range(1, BURSTS + 1 if rush.rung else 2):
        result = {**rush.run(url, progress=progress), "bursts": bursts}
        if not audit.holds(result):
            break
    return result


def table(results: list[dict[str, Any]]) -> Table:
    """The verdicts side by side, narrow enough for a small terminal."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    made.add_column("", no_wrap=True)
    for heading in ("sold", "refused", "oversold", "on hand", "orders/s"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("verdict", no_wrap=True)
    for row in results:
        figures = ("sold", "refused", "oversold", "on_hand", "orders_per_s")
        verdict = "[green]conserved[/]" if audit.holds(row) else "[bold red]BROKEN[/]"
        made.add_row(row["strategy"], *(f"{row[name]:,.0f}" for name in figures), verdict)
    return made


def welcome(url: str, password: str) -> str:
    return f"""

The shop keeps running. Stop it with Ctrl-C.

  API, to try    {url}/api/docs/
  admin          {url}/admin/          stock, locks, orders
  lab            {url}/lab/            see the flawed ones break
  log in as      admin or buyer, password {password}
  another burst  make rush ARGS="--strategy lua --clients 200 --url {url}"
"""
