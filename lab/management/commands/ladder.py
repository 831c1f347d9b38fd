"""`manage.py ladder`: list the rungs (locks and strategies) with their claims, flawed or sound, and check them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from lab.claims import servers, verify, witness
from lab.claims.processes import in_processes
from lab.claims.worker import JobName
from lab.ladder.catalogue import LADDER
from lab.management.command import LabCommand, number, refuse_unless_writable, rung
from lab.sandbox.databases import MOST
from servers import ServerError


class Command(LabCommand):
    help = (
        "Lists the rungs of both tracks with their claims. With --verify each claim is checked: the stored witness of "
        "a flawed rung has to break it 20 times out of 20, and a sound rung has to hold in all schedules of two "
        "clients with two preemptions and one fault. With --deep the sound rungs are searched with three preemptions "
        "and two faults, and with three clients where that is possible. With --stress, the stress runs, each rung "
        "runs in real threads and processes without a scheduler. Exit status 1: a claim was not reproduced, a stress "
        "run broke a sound rung, or something that a rung needs is not installed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("rungs", nargs="*", type=rung, metavar="RUNG", help="only these, by slug (default: all)")
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--verify", action="store_true", help="check every claim")
        what.add_argument("--search", action="store_true", help="search for the witnesses again, and store them")
        what.add_argument(
            "--deep", action="store_true", help="search the sound rungs with wider bounds, and store the bounds"
        )
        what.add_argument(
            "--stress", action="store_true", help="run them without a scheduler, and store how often they broke"
        )
        parser.add_argument(
            "--tries",
            type=number(1),
            metavar="N",
            help="with --stress: attempts of each rung (default: 500, and a flawed rung until it has broken once; "
            "10000 for a sound rung whose attempts take 5 ms or less)",
        )
        parser.add_argument(
            "--schedules",
            type=number(1),
            metavar="N",
            help=f"with --deep: how many each search tries at most (default: {verify.DEEP_SCHEDULES})",
        )
        parser.add_argument(
            "--processes",
            type=number(1, MOST),  # Each process needs a Redis database of its own.
            default=min(2, os.cpu_count() or 1),
            help=f"how many rungs at the same time (default: 2), at most {MOST}",
        )
        parser.add_argument("--json", action="store_true", help="end with one JSON object in place of the table")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["tries"] and not options["stress"]:
            raise CommandError("--tries can be used only with --stress.", returncode=2)
        if options["schedules"] and not options["deep"]:
            raise CommandError("--schedules can be used only with --deep.", returncode=2)
        if options["search"] or options["deep"] or options["stress"]:
            refuse_unless_writable(witness.STRESS.parent, witness.VERDICTS.parent, witness.FOLDER, witness.TRACES)
        slugs = [slug for slug in LADDER if not options["rungs"] or slug in options["rungs"]]
        if options["stress"]:
            self._stress(slugs, options)
            return
        if options["deep"]:
            slugs = [slug for slug in slugs if LADDER[slug].claim == "sound"]
            if not slugs:
                raise CommandError("--deep searches sound rungs, and none of these is one.", returncode=2)
            schedules = options["schedules"] or verify.DEEP_SCHEDULES
            lines = self._do("deep", slugs, options["processes"], schedules=schedules)
        elif options["search"] or options["verify"]:
            lines = self._do("search" if options["search"] else "check", slugs, options["processes"])
        else:
            self._show({}, slugs, as_json=options["json"])
            return
        self._show(lines, slugs, as_json=options["json"])
        if failed := [lines[slug] for slug in slugs if not verify.reproduced(lines[slug])]:
            raise CommandError(f"Not reproduced: {', '.join(map(_named, failed))}.")

    def _stress(self, slugs: list[str], options: Mapping[str, Any]) -> None:
        lines = self._do("stress", slugs, options["processes"], tries=options["tries"])
        if options["json"]:
            self.stdout.write(json.dumps({"rungs": [lines[slug] for slug in slugs]}))
        else:
            self._show({}, slugs, as_json=False)
        if missing := [lines[slug] for slug in slugs if "missing" in lines[slug]]:
            raise CommandError(f"Not run: {', '.join(map(_named, missing))}.")
        if any(line["claim"] == "sound" and line["broken"] for line in lines.values()):
            raise SystemExit(1)

    def _do(self, job: JobName, slugs: list[str], processes: int, **options: Any) -> dict[str, Mapping[str, Any]]:
        """Run a job for each rung, and return the results by slug. All jobs except `check` also store their results."""
        lines: dict[str, Mapping[str, Any]] = {}
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        try:
            with servers.running(), Progress(*columns, console=Console(stderr=True)) as progress:
                task = progress.add_task("Rungs", total=len(slugs))
                with closing(in_processes(job, slugs, processes, **options)) as finished:
                    for line in finished:
                        lines[line["rung"]] = line
                        if job == "stress" and "missing" not in line:
                            witness.store_stress(LADDER[line["rung"]], line)
                        elif job in ("search", "deep"):
                            verify.keep(line)
                        result = line["verdict"] if "verdict" in line else _rate(line)
                        progress.update(task, advance=1, description=f"{line['rung']}: {result}")
        except ServerError as error:
            raise CommandError(str(error), returncode=2) from error
        return lines

    def _show(self, lines: Mapping[str, Mapping[str, Any]], slugs: list[str], *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(_report([lines.get(slug) or _claim(slug) for slug in slugs])))
        else:
            Console().print(_table(lines, slugs))


def _report(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    searches = [search for line in lines for search in (line, *line.get("also", ()), *line.get("deep", ()))]
    schedules = sum(search.get("schedules", 0) for search in searches)
    seconds = sum(map(_seconds, lines))
    return {"rungs": lines, "schedules_per_s": round(schedules / seconds, 1) if seconds else None}


def _table(lines: Mapping[str, Mapping[str, Any]], slugs: Sequence[str]) -> Table:
    # Fit the table into 80 columns: only the columns with texts wrap, and the column of verdicts is left out if there
    # are no verdicts.
    words = [Column("breaks", min_width=10), Column("by", min_width=7)]
    columns = [Column("rung", no_wrap=True), Column("claim", no_wrap=True), *words]
    columns += [Column("verdict", no_wrap=True)] if lines else []
    columns += [Column("how", min_width=8), Column("chance", min_width=7)]
    table = Table(*columns, title="The ladder", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for slug in slugs:
        entry, line = LADDER[slug], lines.get(slug)
        colour = "" if line is None else "[green]" if verify.reproduced(line) else "[red]"
        verdict = [f"{colour}{line['verdict']}" if line else ""] if lines else []
        chance = _rate(witness.stress(slug))
        breaks, fault = entry.breaks or "", entry.broken_by or ""
        table.add_row(slug, entry.claim, breaks, fault, *verdict, _how(slug, line), chance)
    return table


def _claim(slug: str) -> dict[str, Any]:
    entry = LADDER[slug]
    return {"rung": slug, "track": entry.track, "claim": entry.claim}


def _named(line: Mapping[str, Any]) -> str:
    return f"{line['rung']} ({line['missing']})" if "missing" in line else str(line["rung"])


def _rate(line: Mapping[str, Any] | None) -> str:
    return "" if line is None else f"{line['broken']}/{line['tries']}"


def _how(slug: str, line: Mapping[str, Any] | None) -> str:
    if line is None:
        stored = witness.load(slug)
        return f"{len(stored.schedule)} steps" if stored else ""
    if "missing" in line:
        return str(line["missing"])
    if line["claim"] == "flawed":
        return f"{line['broken']} of {line['replays']} replays" if line["replays"] else "no witness is stored"
    searches = "; ".join(map(_searched, (line, *line.get("also", ()), *line.get("deep", ()))))
    return str(line.get("why") or f"{searches} in {_seconds(line):.1f} s")


def _seconds(line: Mapping[str, Any]) -> float:
    """Return the seconds that a rung has taken. Its result line lists those of deep searches separately."""
    return float(line.get("seconds", 0) + sum(search["seconds"] for search in line.get("deep", ())))


def _searched(search: Mapping[str, Any]) -> str:
    schedules, clients = f"{search['schedules']} schedules", f"of {search['clients']} clients"
    if search["exhausted"]:
        return f"all {schedules} {clients}"
    ordered = search["schedules"] - search["sampled"]
    parts = [f"{ordered} in order"] if ordered else []
    if search["completed"] is not None:
        parts.append(f"all with up to {search['completed']} preemptions and faults among them")
    parts.append(f"{search['sampled']} at random")
    return f"{schedules} {clients} ({', '.join(parts)})"
