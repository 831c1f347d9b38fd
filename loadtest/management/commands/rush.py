"""`manage.py rush`: send bursts of orders to a shop, and print a verdict on each."""

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
from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from rich.console import Console

from inventory.errors import UnknownStrategy
from inventory.strategies import registry
from loadtest.arguments import clients, positive
from loadtest.local_shop import LocalShop, is_healthy
from loadtest.report import print_verdict, progress_bar
from loadtest.rush import Rush, RushError
from loadtest.verdict import holds, summarize
from servers import ServerError
from shop.runtime.serve import allowed_connections
from shop.runtime.servers import line_of

EXAMPLES = """\
examples:
  manage.py rush --strategy lua --clients 200        one burst, one verdict
  manage.py rush --strategy lua --strategy row-lock  two strategies, one after the other
  manage.py rush --rung compute-and-overwrite        flawed code of the lab: it oversells
  manage.py rush --skus 3 --stock 20                 carts with several products
  manage.py rush --json | jq .p99_ms                 figures for a script
"""


class HelpFormatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the command's description and examples."""


def strategy(text: str) -> dict[str, str]:
    if text not in registry.NAMES:
        raise argparse.ArgumentTypeError(
            f"{UnknownStrategy(text, registry.NAMES)} A flawed rung of the lab needs --rung"
        )
    return {"strategy": text}


def rung(text: str) -> dict[str, str]:
    if text in registry.NAMES:
        raise argparse.ArgumentTypeError(f"{text} is a strategy: use --strategy {text}")
    return {"rung": text}


class Command(BaseCommand):
    help = """\
Send a burst of orders over HTTP to a shop and count from the tables whether every
unit was sold at most once. Without --url the command starts a shop and stops it.

Exit status 0 when no unit was sold twice and no order was lost, 1 when a verdict is
BROKEN (a buyer who is refused although enough units are left counts too), 2 when
there is no verdict."""

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        options |= {"formatter_class": HelpFormatter, "epilog": EXAMPLES}
        return super().create_parser(prog_name, subcommand, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        for kind, explained in (
            (
                strategy,
                f"how the shop takes stock (default: {registry.DEFAULT}): {', '.join(registry.NAMES)}; repeatable",
            ),
            (rung, "a flawed rung of the lab that sells stock, such as compute-and-overwrite; repeatable"),
        ):
            parser.add_argument(
                f"--{kind.__name__}",
                type=kind,
                action="append",
                dest="sellers",
                metavar=kind.__name__.upper(),
                help=explained,
            )
        parser.add_argument("--stock", type=positive, default=100, help="units of each sku (default: 100)")
        parser.add_argument(
            "--skus", type=positive, default=1, help="number of skus; with several, an order has 1 to 3 units"
        )
        parser.add_argument(
            "--clients", type=clients, default=50, help="buyers that order at the same time (default: 50)"
        )
        parser.add_argument(
            "--quantity", type=positive, default=1, help="units in each order of a single sku, at most 1000"
        )
        parser.add_argument(
            "--attempts", type=positive, default=0, help="number of orders (default: twice what the stock can serve)"
        )
        parser.add_argument(
            "--seconds", type=positive, default=0, help="stop starting and retrying orders after this time"
        )
        parser.add_argument(
            "--url",
            default="",
            help="address of a running shop with the same settings (default: start one for this command)",
        )
        output = parser.add_mutually_exclusive_group()
        output.add_argument("--json", action="store_true", help="print one JSON object per burst, not a table")
        output.add_argument(
            "--json-lines",
            action="store_true",
            help="print progress and verdicts as lines of JSON, for programs; exit when standard input is closed",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        names = ("stock", "skus", "clients", "quantity", "attempts", "seconds")
        burst = {name: options[name] for name in names}
        rushes = [Rush(**seller, **burst) for seller in options["sellers"] or [{"strategy": registry.DEFAULT}]]
        if options["json_lines"]:
            interrupt_when_input_closes()
        console = Console(stderr=True)
        try:
            with ExitStack() as running:
                url = options["url"].rstrip("/")
                if not url:
                    url = self.start_shop(rushes, running, console)
                elif not is_healthy(url):
                    raise CommandError(
                        f"No healthy shop answers at {url}. Start one with `make demo` or `manage.py serve`. If it "
                        f"runs, {url}/health/ tells what it lacks.",
                        returncode=2,
                    )
                statuses = [self.run_one(rush, url, console, options) for rush in rushes]
        except ServerError as error:
            raise CommandError(str(error), returncode=2) from error
        except KeyboardInterrupt:
            raise CommandError("Stopped: there is no verdict.", returncode=2) from None
        if any(statuses):
            raise SystemExit(max(statuses))

    def start_shop(self, rushes: list[Rush], running: ExitStack, console: Console) -> str:
        """Start a shop, and return its address. The shop is stopped when the context `running` ends."""
        lab, background = any(rush.rung for rush in rushes), any(rush.needs_workers for rush in rushes)
        with console.status("Starting the shop …"):
            shop = running.enter_context(LocalShop(lab=lab, background=background))
        console.print(*map(line_of, shop.statuses), sep="\n", style="dim", soft_wrap=True, highlight=False)
        if warning := connection_warning(rushes[0].clients):
            console.print(warning, soft_wrap=True, highlight=False)
        return shop.url

    def run_one(self, rush: Rush, url: str, console: Console, options: dict[str, Any]) -> int:
        """Run one burst, print its verdict and return the exit status."""

        def write_line(values: dict[str, Any]) -> None:
            self.stdout.write(json.dumps({"name": rush.name, **values}))
            self.stdout.flush()

        try:
            if options["json_lines"]:
                write_line({"wanted": rush.wanted})
                verdict = rush.run(url, progress=lambda counts: write_line(counts) if "answered" in counts else None)
            else:
                with progress_bar(rush, console) as show:
                    verdict = rush.run(url, progress=show)
        except RushError as error:
            if options["json_lines"]:
                write_line({"error": str(error)})
            self.stderr.write(str(error))
            return 2
        if options["json_lines"]:
            write_line({"result": verdict, "holds": holds(verdict), "sentence": summarize(verdict)})
        elif options["json"]:
            self.stdout.write(json.dumps({**verdict, "holds": holds(verdict)}))
        else:
            print_verdict(verdict)
        return 0 if holds(verdict) else 1


def connection_warning(buyers: int) -> str:
    """Return a warning if a shop with our settings accepts fewer connections than there are buyers; otherwise ""."""
    accepted = allowed_connections() * settings.WEB_PROCESSES
    if buyers <= accepted:
        return ""
    return (
        f"The shop accepts {accepted:,} connections (WEB_CONNECTIONS of each web process), fewer than the {buyers:,} "
        "buyers: some may time out before they are answered. Raise WEB_CONNECTIONS or WEB_PROCESSES."
    )


def interrupt_when_input_closes() -> None:
    """Raise KeyboardInterrupt in the main thread when standard input closes, to stop all processes of this command.

    The program that reads our lines has the other end of standard input open. So this end closes when that program
    ends.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread()

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        if main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGINT)

    threading.Thread(target=wait, name="wait for the reader", daemon=True).start()
