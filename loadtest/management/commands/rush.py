"""`manage.py rush`: one burst, one verdict."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inventory import strategies
from loadtest import audit
from loadtest.rush import Rush, RushError
from loadtest.stack import Stack, answers
from servers import ServerError

MOST = 1_000_000


def positive(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MOST:
        raise ValueError
    return number


class Command(BaseCommand):
    help = (
        "Lets a burst of buyers loose on a strategy, or on a flawed rung of the lab, and counts from the tables what "
        "was sold. Starts a shop of its own, unless --url names one that runs with the same settings. "
        "Exit status 0 when nothing was sold twice or lost, 1 when something was, or when somebody was refused with "
        "units left for him, 2 when there is no verdict."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--strategy", choices=strategies.NAMES, default="guarded-update", help="how stock is taken")
        what.add_argument("--rung", default="", help="a flawed rung of the lab, such as compute-and-overwrite")
        parser.add_argument("--stock", type=positive, default=100, help="units there are of each sku (100)")
        parser.add_argument(
            "--skus", type=positive, default=1, help="of several, each order is a cart of 1 to 3 units (1)"
        )
        parser.add_argument("--clients", type=positive, default=50, help="buyers who ask at the same time (50)")
        parser.add_argument("--quantity", type=positive, default=1, help="units in an order (1), at most 1000")
        parser.add_argument(
            "--attempts",
            type=positive,
            default=0,
            help="orders that are tried (twice what there is)",
        )
        parser.add_argument("--url", default="", help="a running shop; without it one is started and stopped again")
        parser.add_argument("--json", action="store_true", help="end with one JSON object in place of the table")

    def handle(self, *args: Any, **options: Any) -> None:
        names = ("strategy", "rung", "stock", "skus", "clients", "quantity", "attempts")
        rush = Rush(**{name: options[name] for name in names})
        console = Console(stderr=True)
        try:
            with ExitStack() as running:
                url = options["url"].rstrip("/")
                if not url:
                    with console.status("Starting the shop …"):
                        url = running.enter_context(Stack(lab=bool(rush.rung), background=rush.needs_workers)).url
                elif not answers(url):
                    raise CommandError(f"No healthy shop answers at {url}: {url}/health/ says more.", returncode=2)
                result = run_with_progress(rush, url, console)
        except (RushError, ServerError) as error:
            raise CommandError(str(error), returncode=2) from error
        if options["json"]:
            self.stdout.write(json.dumps(result))
        else:
            colour = "green" if audit.holds(result) else "red"
            verdict = f"[bold {colour}]{result['strategy']}: {audit.sentence(result)}[/]"
            Console().print(sheet(result), verdict, sep="\n")
        if not audit.holds(result):
            raise SystemExit(1)


def run_with_progress(rush: Rush, url: str, console: Console) -> dict[str, Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[said]}"), console=console, transient=True) as bar:
        task = bar.add_task(rush.name, total=rush.wanted, said="")

        def show(said: dict[str, Any]) -> None:
            if "answered" in said:
                answered = said["answered"] + said["refused"]
                told = f"{said['answered']} sold, {said['refused']} refused, {said['busy']} told to try again"
                bar.update(task, completed=answered, said=told)

        return rush.run(url, progress=show)


def sheet(result: dict[str, Any]) -> Table:
    """One verdict, a figure a line."""
    made = Table(show_header=False, box=None)
    made.add_column(justify="right", style="bold")
    for name, unit in SHEET:
        made.add_row(f"{result[name]:,}", unit)
    return made


SHEET = (
    ("sold", "units sold, counted from the tables"),
    ("oversold", "units sold that never existed"),
    ("refused", "buyers told that it is sold out"),
    ("unserved", "of them for whom there was enough"),
    ("errors", "buyers without an answer that counts"),
    ("busy", "times a buyer was told to try again"),
    ("orders_per_s", "orders a second"),
    ("refusals_per_s", "refusals a second"),
    ("p50_ms", "ms until half of the buyers had their answer"),
    ("p99_ms", "ms until all but one in a hundred had"),
)
