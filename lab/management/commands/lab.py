"""`manage.py lab`: say which stored results are out of date, measure them again, and write the table in docs/."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lab.claims import witness
from lab.claims.measuring import BenchmarkFailed
from lab.claims.refresh import KINDS, Kind, out_of_date, refresh
from lab.management.command import LabCommand, number, refuse_unless_writable
from lab.sandbox.databases import MOST
from lab.site.choice import guide
from servers import ServerError


class Command(LabCommand):
    help = (
        "The lab's pages show stored results: how each claim was checked (verdict), how often chance broke each rung "
        "(stress), and five benchmarks (comparison). A result is out of date when the code that it ran behaves "
        "differently now; prose, formatting and moved files do not count. `status` lists what is out of date. "
        "`refresh` measures it again and stores each result when it is done; an interrupted refresh goes on where it "
        "stopped. All of it takes about an hour on two cores; run nothing else meanwhile. `table` writes "
        "docs/choose.md from what is stored."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        status = verbs.add_parser("status", help="list what is out of date; exit status 1 when something is")
        status.add_argument("--json", action="store_true", help='end with one JSON line: {"out_of_date": [...]}')
        verbs.add_parser("table", help="write docs/choose.md, the table of the choice with its figures")
        again = verbs.add_parser("refresh", help="measure again what is out of date")
        for each in (status, again):
            each.add_argument("--only", choices=KINDS, nargs="+", default=KINDS, help="only these kinds (default: all)")
        again.add_argument(
            "--processes",
            type=number(1, MOST),
            default=min(2, os.cpu_count() or 1),
            help=f"how many rungs at the same time (default: 2), at most {MOST}",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "status":
            self._status(options["only"], as_json=options["json"])
        elif options["verb"] == "table":
            guide.write()
        else:
            self._refresh(options)

    def _status(self, kinds: Sequence[Kind], *, as_json: bool) -> None:
        stale = [str(result) for result in out_of_date(kinds)]
        if as_json:
            self.stdout.write(json.dumps({"out_of_date": stale}))
        else:
            self.stdout.write("\n".join([*stale, f"{len(stale)} stored results are out of date."]))
        if stale:
            if not as_json:
                self.stdout.write("Measure them again with: manage.py lab refresh")
            raise SystemExit(1)

    def _refresh(self, options: dict[str, Any]) -> None:
        refuse_unless_writable(witness.STRESS.parent, witness.VERDICTS.parent)
        stale = out_of_date(options["only"])
        problems = []
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        try:
            with Progress(*columns, console=Console(stderr=True)) as progress:
                task = progress.add_task("Results", total=len(stale))
                for measured in refresh(stale, processes=options["processes"]):
                    if measured.problem:
                        problems.append(f"{measured.result}: {measured.problem}")
                    progress.update(task, advance=1, description=str(measured.result))
        except (ServerError, BenchmarkFailed) as error:
            raise CommandError(str(error), returncode=2) from error
        if problems:
            raise CommandError("\n".join(["Not stored:", *problems]))
        self.stdout.write(f"{len(stale)} results were measured again.")
