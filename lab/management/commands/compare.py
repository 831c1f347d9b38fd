"""`manage.py compare`: measure the figures on the comparison page."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from lab.claims import comparisons
from lab.claims.comparisons import FILE, PARTS
from lab.claims.measuring import BenchmarkFailed
from lab.claims.refresh import compare
from lab.management.command import LabCommand, refuse_unless_writable
from servers import ServerError


class Command(LabCommand):
    help = (
        f"Runs the benchmarks on servers of their own and stores the results in {FILE.relative_to(settings.BASE_DIR)}, "
        "for the lab's page. `strategies` and `locks` measure each of them beside third-party code. `segments` "
        "measures what a lock for each of 1 to 20 segments gains, by the work under the lock. `contention` counts the "
        "failed updates of optimistic orders beside the wait for a row lock, with 1 to 256 clients. `retry-delay` "
        "measures what a shorter pause between two attempts gains and costs a Redlock. All take about 40 minutes, the "
        "curves 2 or 3 each, on a machine that should have nothing else to do. Each part is stored when it is done; "
        "`manage.py lab refresh --only comparison` measures what is missing or out of date. `python -m loadtest.bench "
        "PART --help` explains each benchmark; it has smaller sizes and --json, and stores nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
        parser.add_argument("--short", action="store_true", help="run for some minutes only; the page says so")

    def handle(self, *args: Any, **options: Any) -> None:
        for part in options["parts"]:
            if part not in PARTS:
                raise CommandError(f"There is no {part} to compare; there are {', '.join(PARTS)}.", returncode=2)
        refuse_unless_writable(comparisons.FILE.parent)
        for part in options["parts"] or PARTS:
            try:
                compare(part, short=options["short"])
            except (BenchmarkFailed, ServerError) as error:
                raise CommandError(str(error), returncode=2) from error
            self.stdout.write(f"{part}: stored.")
