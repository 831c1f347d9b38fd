"""`manage.py replay RUNG`: run a schedule (an order of steps) on a lock or strategy of the lab, and print each step."""

from __future__ import annotations

import json
import logging
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lab.claims import servers
from lab.claims.runs import Impossible, replay
from lab.claims.witness import load
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER
from lab.management.command import LabCommand, clients, rung, schedule
from lab.sandbox import pool
from lab.sandbox.fleet import Missing
from lab.site.pages.swimlane import whom
from lab.workloads.registry import actors
from servers import ServerError


class Command(LabCommand):
    help = (
        "Replays the stored witness of a rung, or a schedule that you give, and shows every step: a lane for each "
        "client, which clients are inside, which wait. With --on the schedule of one rung runs on another; choices "
        "that are not possible there are left out."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("rung", type=rung, help="its slug, as manage.py ladder shows it")
        parser.add_argument(
            "schedule", type=schedule, nargs="?", default=(), help="the choices, with commas: 'A,B*2,crash A'"
        )
        parser.add_argument("--on", type=rung, metavar="RUNG", help="run it on this rung instead")
        parser.add_argument("--clients", type=clients, help="how many (default: as many as in the stored witness)")
        parser.add_argument("--json", action="store_true", help="print the trace as one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        slug, on = options["rung"], options["on"] or options["rung"]
        stored = load(slug)
        choices = options["schedule"] or (stored.schedule if stored else ())
        logging.disable(logging.WARNING)
        try:
            with servers.running(), pool.for_a_command() as sandbox:
                trace = replay(
                    on,
                    choices,
                    sandbox,
                    clients=options["clients"] or (stored.clients if stored else None),
                    to_the_end=True,
                    as_far_as_possible=on != slug,
                )
        except (ServerError, Missing, Impossible) as error:
            raise CommandError(str(error), returncode=2) from error
        if options["json"]:
            self.stdout.write(json.dumps(trace.as_json(), default=str))
        else:
            show(trace, Console())


def show(trace: Trace, console: Console) -> None:
    """Print a trace as a table with a column for each client, and the verdict below."""
    lanes = actors(LADDER[trace.rung], trace.clients)
    table = Table("", *lanes, "inside", "waits", title=f"{LADDER[trace.rung].title} ({trace.rung})")
    for number, step in enumerate(trace.steps, start=1):
        style = "yellow" if step.actor is None else "red" if "crash" in step.choice else ""
        # What hits no single client is in the first column.
        cells = [Text(step.does if lane == (whom(step) or lanes[0]) else "", style) for lane in lanes]
        inside = Text(" ".join(step.holders), "bold red" if len(step.holders) > 1 else "green")
        table.add_row(str(number), *cells, inside, " ".join(step.blocked))
    console.print(table)
    for name, answer in (trace.steps[-1].answers if trace.steps else {}).items():
        console.print(f"{name} was told: {answer}")
    console.print(", ".join(f"{name}: {units}" for name, units in trace.ledger.items()))
    if trace.reached:
        console.print(f"[bold red]Broken invariant: {trace.broken}.[/] {trace.why}")
    elif trace.broken:
        console.print(f"[bold green]Not broken: “{trace.goal}” holds.[/] But “{trace.broken}” does not: {trace.why}")
    else:
        console.print("[bold green]Nothing is broken.[/]")
