"""`manage.py explore RUNG`: search for a schedule that breaks a rung, as if none were known."""

from __future__ import annotations

import json
import logging
import shlex
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.console import Console

from lab.claims import verify
from lab.explorer.search import Bounds
from lab.ladder.catalogue import LADDER
from lab.management.command import LabCommand, clients, number, rung
from lab.sandbox import pool
from lab.sandbox.valkeys import Missing
from servers import ServerError


class Command(LabCommand):
    help = (
        "Searches for a schedule that breaks a rung: those with few preemptions and events first, so what is found "
        "first is a shortest one. Shows it, or how many there were when none breaks it. The exit status says whether "
        "the rung did what it claims: 0, or 1; 2 when it was not searched."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("rung", type=rung, help="its slug, as manage.py ladder shows it")
        parser.add_argument("--clients", type=clients, help="how many (as many as it takes to show the rung)")
        parser.add_argument(
            "--preemptions", type=number(0), help="how often somebody is stopped who could go on, at most"
        )
        parser.add_argument("--events", type=number(0), help="how many things may happen beside the clients' steps (1)")
        parser.add_argument(
            "--schedules",
            type=number(1),
            help="after so many in order, go on at random for a quarter as many (2000 where --clients adds some)",
        )
        parser.add_argument("--json", action="store_true", help="end with one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        entry = LADDER[options["rung"]]
        usual, crowded = verify.bounds_of(entry), (options["clients"] or 0) > entry.clients
        bounds = Bounds(
            usual.preemptions if options["preemptions"] is None else options["preemptions"],
            usual.events if options["events"] is None else options["events"],
            options["schedules"] or (verify.DEEP_SCHEDULES if crowded else None),
        )
        logging.disable(logging.WARNING)
        console = Console(stderr=True)
        try:
            with verify.servers(), pool.for_a_command() as stage, console.status("") as status:
                said = f"{entry.slug}: {{}} schedules"
                found = verify.find(
                    entry, stage, bounds, lambda n: status.update(said.format(n)), options["clients"] or 0
                )
        except (ServerError, Missing) as error:
            raise CommandError(str(error), returncode=2) from error
        verdict = "held" if found.run is None else "broken"
        if options["json"]:
            self.stdout.write(
                json.dumps(
                    {
                        "rung": entry.slug,
                        "claim": entry.claim,
                        "verdict": verdict,
                        "invariant": found.run and found.run.broken,
                        "why": found.run.why if found.run else "",
                        "witness": found.run and found.run.schedule,
                        "schedules": found.schedules,
                        "exhausted": found.exhausted,
                        "clients": found.clients,
                        "preemptions": bounds.preemptions,
                        "events": bounds.events,
                        "seconds": round(found.seconds, 2),
                    }
                )
            )
        elif found.run is None:
            tried = "All" if found.exhausted else "Not all:"
            beyond = f", {found.sampled} of them at random" if found.sampled else ""
            self.stdout.write(f"{entry.slug} held. {tried} {found.schedules} schedules{beyond}, {found.seconds:.1f} s.")
        else:
            self.stdout.write(f"{entry.slug} is broken ({found.run.broken}), by schedule {found.schedules}:")
            self.stdout.write(f"  {','.join(found.run.schedule)}\n  {found.run.why}")
            schedule = shlex.quote(",".join(found.run.schedule))
            self.stdout.write(f"See it: manage.py replay {entry.slug} {schedule} --clients {found.clients}")
        if (verdict == "broken") != (entry.claim == "flawed"):
            raise SystemExit(1)
