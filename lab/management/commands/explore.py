"""`manage.py explore RUNG`: search for a schedule (an order of steps) that breaks a lock or strategy of the lab."""

from __future__ import annotations

import json
import logging
import shlex
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.console import Console

from lab.claims import servers, verify
from lab.claims.finding import find
from lab.explorer.search import Bounds, Found
from lab.ladder.catalogue import LADDER, LadderEntry
from lab.management.command import LabCommand, clients, number, rung, schedule_text, this_program
from lab.sandbox import pool
from lab.sandbox.fleet import Missing
from servers import ServerError


class Command(LabCommand):
    help = (
        "Searches for a schedule that breaks a rung. Schedules with few preemptions and faults come first, so the "
        "first one found is a shortest one. Shows it, or how many schedules were run when none breaks the rung. Exit "
        "status 0: the rung did what it claims; 1: it did not; 2: it was not searched."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("rung", type=rung, help="its slug, as manage.py ladder shows it")
        parser.add_argument("--clients", type=clients, help="how many (default: as many as the rung needs)")
        parser.add_argument(
            "--preemptions", type=number(0), help="limit for how often a client is stopped although it could go on"
        )
        parser.add_argument("--faults", type=number(0), help="how many faults may happen (default: 1)")
        parser.add_argument(
            "--schedules",
            type=number(1),
            help="after so many schedules in order, draw a quarter as many at random (default: 2000 where --clients "
            "adds clients, else no limit)",
        )
        parser.add_argument("--json", action="store_true", help="end with one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        entry = LADDER[options["rung"]]
        usual, crowded = verify.bounds_of(entry), (options["clients"] or 0) > entry.clients
        bounds = Bounds(
            usual.preemptions if options["preemptions"] is None else options["preemptions"],
            usual.faults if options["faults"] is None else options["faults"],
            options["schedules"] or (verify.DEEP_SCHEDULES if crowded else None),
        )
        logging.disable(logging.WARNING)
        try:
            with (
                servers.running(),
                pool.for_a_command() as sandbox,
                Console(stderr=True).status("") as status,
            ):

                def progress(schedules: int) -> None:
                    status.update(f"{entry.slug}: {schedules} schedules")

                found = find(entry, sandbox, bounds, progress, options["clients"] or 0)
        except (ServerError, Missing) as error:
            raise CommandError(str(error), returncode=2) from error
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(entry, bounds, found)))
        else:
            self.stdout.write("\n".join(_as_text(entry, found)))
        if (found.run is not None) != (entry.claim == "flawed"):
            raise SystemExit(1)


def _as_json(entry: LadderEntry, bounds: Bounds, found: Found) -> dict[str, Any]:
    return {
        "rung": entry.slug,
        "claim": entry.claim,
        "verdict": "held" if found.run is None else "broken",
        "invariant": found.run and found.run.broken,
        "why": found.run.why if found.run else "",
        "witness": found.run and found.run.schedule,
        "schedules": found.schedules,
        "exhausted": found.exhausted,
        "clients": found.clients,
        "preemptions": bounds.preemptions,
        "faults": bounds.faults,
        "seconds": round(found.seconds, 2),
    }


def _as_text(entry: LadderEntry, found: Found) -> list[str]:
    if found.run is None:
        tried = "All" if found.exhausted else "Not all:"
        sampled = f", {found.sampled} of them at random" if found.sampled else ""
        return [f"{entry.slug} held. {tried} {found.schedules} schedules{sampled}, {found.seconds:.1f} s."]
    schedule = schedule_text(found.run.schedule)
    replay = shlex.join([*this_program(), "replay", entry.slug, schedule, "--clients", str(found.clients)])
    return [
        f"{entry.slug} breaks the invariant “{found.run.broken}”, in schedule {found.schedules}:",
        f"  {schedule}",
        f"  {found.run.why}",
        f"See each step: {replay}",
    ]
