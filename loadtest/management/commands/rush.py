"""`manage.py rush`: one burst, one verdict; or several, one after the other."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from contextlib import ExitStack
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inventory.strategies import registry
from loadtest import audit
from loadtest.arguments import clients, positive
from loadtest.rush import Rush, RushError
from loadtest.stack import Stack, answers
from servers import ServerError
from shop.management.commands.serve import allowed_connections
from shop.management.commands.servers import line_of


def strategy(text: str) -> dict[str, str]:
    if text not in registry.NAMES:
        raise argparse.ArgumentTypeError(
            f"there is no {text}; there are {', '.join(registry.NAMES)}; redlock, etcd-lock and zookeeper-lock once "
            "REDLOCK_URLS, ETCD_URL or ZOOKEEPER_HOSTS is set. A flawed rung of the lab is named with --rung"
        )
    return {"strategy": text}


def rung(text: str) -> dict[str, str]:
    if text in registry.NAMES:
        raise argparse.ArgumentTypeError(f"{text} is a strategy: --strategy {text}")
    return {"rung": text}


class Command(BaseCommand):
    help = (
        "Lets a burst of buyers loose on a strategy, or on a flawed rung of the lab, and counts from the tables what "
        "was sold; on several, one after the other. Starts a shop of its own, unless --url names one that runs with "
        "the same settings. "
        "Exit status 0 when nothing was sold twice or lost, 1 when something was, or when somebody was refused with "
        "units left for him, 2 when there is no verdict."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        for kind, explained in (
            (strategy, f"how stock is taken (guarded-update): {', '.join(registry.NAMES)}; may be repeated"),
            (rung, "a flawed rung of the lab, such as compute-and-overwrite; may be repeated"),
        ):
            parser.add_argument(
                f"--{kind.__name__}",
                type=kind,
                action="append",
                dest="sellers",
                metavar=kind.__name__.upper(),
                help=explained,
            )
        parser.add_argument("--stock", type=positive, default=100, help="units there are of each sku (100)")
        parser.add_argument(
            "--skus", type=positive, default=1, help="of several, each order is a cart of 1 to 3 units (1)"
        )
        parser.add_argument("--clients", type=clients, default=50, help="buyers who ask at the same time (50)")
        parser.add_argument("--quantity", type=positive, default=1, help="units in an order (1), at most 1000")
        parser.add_argument(
            "--attempts",
            type=positive,
            default=0,
            help="orders that are tried (twice what there is)",
        )
        parser.add_argument(
            "--seconds", type=positive, default=0, help="after which nobody comes or asks again (until all have come)"
        )
        parser.add_argument("--url", default="", help="a running shop; without it one is started and stopped again")
        said = parser.add_mutually_exclusive_group()
        said.add_argument("--json", action="store_true", help="end with one JSON object a burst in place of the table")
        said.add_argument(
            "--json-lines",
            action="store_true",
            help="progress and verdicts as lines of JSON, for a program; ends when its standard input is closed",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        names = ("stock", "skus", "clients", "quantity", "attempts", "seconds")
        burst = {name: options[name] for name in names}
        rushes = [Rush(**seller, **burst) for seller in options["sellers"] or [{"strategy": "guarded-update"}]]
        if options["json_lines"]:
            end_with_the_reader()
        console = Console(stderr=True)
        statuses = [2]
        try:
            with ExitStack() as running:
                url = options["url"].rstrip("/")
                if not url:
                    lab, background = any(rush.rung for rush in rushes), any(rush.needs_workers for rush in rushes)
                    with console.status("Starting the shop …"):
                        stack = running.enter_context(Stack(lab=lab, background=background))
                    console.print(*map(line_of, stack.in_use), sep="\n", style="dim", soft_wrap=True, highlight=False)
                    url = stack.url
                    if crowd := too_many(options["clients"]):
                        console.print(crowd, soft_wrap=True, highlight=False)
                elif not answers(url):
                    raise CommandError(
                        f"No healthy shop answers at {url}. `make demo` or `manage.py serve` starts one; what one that "
                        f"is there lacks is said at {url}/health/.",
                        returncode=2,
                    )
                statuses = [self.judge(rush, url, console, options) for rush in rushes]
        except ServerError as error:
            raise CommandError(str(error), returncode=2) from error
        except KeyboardInterrupt:
            raise CommandError("Stopped: there is no verdict.", returncode=2) from None
        if any(statuses):
            raise SystemExit(max(statuses))

    def judge(self, rush: Rush, url: str, console: Console, options: dict[str, Any]) -> int:
        """Let one burst come, say what became of it, and return its exit status."""

        def say(values: dict[str, Any]) -> None:
            self.stdout.write(json.dumps({"name": rush.name, **values}))
            self.stdout.flush()

        try:
            if options["json_lines"]:
                say({"wanted": rush.wanted})
                result = rush.run(url, progress=lambda said: say(said) if "answered" in said else None)
            else:
                result = run_with_progress(rush, url, console)
        except RushError as error:
            if options["json_lines"]:
                say({"error": str(error)})
            self.stderr.write(str(error))
            return 2
        if options["json_lines"]:
            say({"result": result, "holds": audit.holds(result), "sentence": audit.sentence(result)})
        elif options["json"]:
            self.stdout.write(json.dumps(result))
        else:
            colour = "green" if audit.holds(result) else "red"
            verdict = f"[bold {colour}]{result['strategy']}: {audit.sentence(result)}[/]"
            Console().print(sheet(result), verdict, sep="\n")
        return 0 if audit.holds(result) else 1


def too_many(buyers: int) -> str:
    """What to know of so many buyers at once at a shop with our settings; nothing where it has room for them."""
    accepted = allowed_connections() * settings.WEB_PROCESSES
    if buyers <= accepted:
        return ""
    return (
        f"{buyers:,} buyers at once are more than the {accepted:,} connections that the shop accepts (WEB_CONNECTIONS "
        "of each process): some may give up before they are answered. Set it higher, or WEB_PROCESSES."
    )


def end_with_the_reader() -> None:
    """Whoever reads our lines holds the other end of our standard input. When it is gone we stop what we started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread()

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        if main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGINT)

    threading.Thread(target=wait, name="reader", daemon=True).start()


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
    ("rejected", "buyers whose order was queued, and then sold nothing"),
    ("unserved", "of both for whom there was enough"),
    ("errors", "buyers without an answer that counts"),
    ("busy", "times a buyer was told to try again"),
    ("orders_per_s", "orders a second"),
    ("refusals_per_s", "refusals a second"),
    ("p50_ms", "ms until half of the buyers had their answer"),
    ("p99_ms", "ms until all but one in a hundred had"),
)
