"""`manage.py ladder`: every rung with its claim, and whether it does what it claims."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from lab.claims import verify, witness
from lab.ladder.catalogue import LADDER
from lab.management.command import LabCommand, number, refuse_unless_kept, rung
from lab.sandbox import pool
from servers import ServerError


class Command(LabCommand):
    help = (
        "Shows every rung of both tracks with its claim. With --verify each claim is checked: the stored witness of a "
        "flawed rung has to break it 20 times out of 20, and a sound one has to hold in all schedules of two clients "
        "with two preemptions and one event. With --deep the sound ones are searched with three preemptions, and with "
        "three clients where a third may come, and two events. With --control each is left to chance: real threads and "
        "processes, and nobody says who goes next. Exit status 1 when a claim is not reproduced, or when chance breaks "
        "a sound one, or when something is not installed that a rung needs."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "rungs", nargs="*", type=rung, metavar="RUNG", help="only these, by slug; all when none is named"
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--verify", action="store_true", help="check every claim")
        what.add_argument("--search", action="store_true", help="search for the witnesses anew, and keep them")
        what.add_argument("--deep", action="store_true", help="search the sound rungs further, and keep how far")
        what.add_argument("--control", action="store_true", help="leave them to chance, and keep how often they broke")
        parser.add_argument(
            "--tries",
            type=number(1),
            metavar="N",
            help="with --control: how often each (500, or until a flawed one has broken once; a sound rung 10000 where "
            "a try takes 5 ms or less)",
        )
        parser.add_argument(
            "--schedules",
            type=number(1),
            metavar="N",
            help=f"with --deep: how many each search tries at most ({verify.DEEP_SCHEDULES})",
        )
        parser.add_argument(
            "--processes",
            type=number(1, pool.MOST),  # each has a Redis database of its own
            default=min(2, os.cpu_count() or 1),
            help=f"how many rungs at the same time (2), at most {pool.MOST}",
        )
        parser.add_argument("--json", action="store_true", help="end with one JSON object in place of the table")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["tries"] and not options["control"]:
            raise CommandError("--tries goes with --control.", returncode=2)
        if options["schedules"] and not options["deep"]:
            raise CommandError("--schedules goes with --deep.", returncode=2)
        if options["search"] or options["deep"] or options["control"]:
            refuse_unless_kept(witness.CONTROL.parent, witness.VERDICTS.parent, witness.FOLDER, witness.TRACES)
        slugs = [slug for slug in LADDER if not options["rungs"] or slug in options["rungs"]]
        if options["control"]:
            self._leave_to_chance(slugs, options)
            return
        job = next((job for job in ("search", "deep") if options[job]), "check" if options["verify"] else "")
        if not job:
            self._show({}, slugs, as_json=options["json"])
            return
        how = {}
        if job == "deep":
            slugs = [slug for slug in slugs if LADDER[slug].claim == "sound"]
            how = {"schedules": options["schedules"] or verify.DEEP_SCHEDULES}
        said = self._do(job, slugs, options["processes"], **how)
        self._show(said, slugs, as_json=options["json"])
        if failed := [said[slug] for slug in slugs if not verify.reproduced(said[slug])]:
            raise CommandError(f"Not reproduced: {', '.join(map(_named, failed))}.")

    def _leave_to_chance(self, slugs: list[str], options: Mapping[str, Any]) -> None:
        said = self._do("control", slugs, options["processes"], tries=options["tries"])
        if options["json"]:
            self.stdout.write(json.dumps({"rungs": [said[slug] for slug in slugs]}))
        else:
            self._show({}, slugs, as_json=False)
        if missing := [said[slug] for slug in slugs if "missing" in said[slug]]:
            raise CommandError(f"Not left to chance: {', '.join(map(_named, missing))}.")
        if any(line["claim"] == "sound" and line["broken"] for line in said.values()):
            raise SystemExit(1)

    def _do(self, job: str, slugs: list[str], processes: int, **how: Any) -> dict[str, Mapping[str, Any]]:
        said: dict[str, Mapping[str, Any]] = {}
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        try:
            with verify.servers(), Progress(*columns, console=Console(stderr=True)) as progress:
                task = progress.add_task("Rungs", total=len(slugs))
                with closing(verify.in_processes(job, slugs, processes, **how)) as lines:
                    for line in lines:
                        said[line["rung"]] = line
                        if job == "control" and "missing" not in line:
                            witness.store_control(LADDER[line["rung"]], line)
                        elif job in ("search", "deep"):
                            verify.keep(line)
                        done = line["verdict"] if "verdict" in line else _rate(line)
                        progress.update(task, advance=1, description=f"{line['rung']}: {done}")
        except ServerError as error:
            raise CommandError(str(error), returncode=2) from error
        return said

    def _show(self, said: Mapping[str, Mapping[str, Any]], slugs: list[str], *, as_json: bool) -> None:
        if as_json:
            lines = [said.get(slug) or _claim(slug) for slug in slugs]
            searches = [search for line in lines for search in (line, *line.get("also", ()), *line.get("deep", ()))]
            schedules = sum(search.get("schedules", 0) for search in searches)
            seconds = sum(map(_seconds, lines))
            rate = round(schedules / seconds, 1) if seconds else None
            self.stdout.write(json.dumps({"rungs": lines, "schedules_per_s": rate}))
            return
        # Eighty columns are enough: what is short is whole, and what was not asked for has no column.
        words = [Column("breaks", min_width=10), Column("by", min_width=7)]
        columns = [Column("rung", no_wrap=True), Column("claim", no_wrap=True), *words]
        columns += [Column("verdict", no_wrap=True)] if said else []
        columns += [Column("how", min_width=8), Column("chance", min_width=7)]
        table = Table(*columns, title="The ladder", box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for slug in slugs:
            entry, line = LADDER[slug], said.get(slug)
            colour = "" if line is None else "[green]" if verify.reproduced(line) else "[red]"
            verdict = "" if line is None else f"{colour}{line['verdict']}"
            chance = _rate(witness.control(slug))
            breaks, event = entry.breaks or "", entry.broken_by or ""
            checked = [verdict] if said else []
            table.add_row(slug, entry.claim, breaks, event, *checked, _how(slug, line), chance)
        Console().print(table)


def _claim(slug: str) -> dict[str, Any]:
    entry = LADDER[slug]
    return {"rung": slug, "track": entry.track, "claim": entry.claim}


def _named(line: Mapping[str, Any]) -> str:
    return f"{line['rung']} ({line['missing']})" if "missing" in line else str(line["rung"])


def _rate(said: Mapping[str, Any] | None) -> str:
    return "" if said is None else f"{said['broken']}/{said['tries']}"


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
    """How long a rung has taken. The deep searches come on top of its line."""
    return float(line.get("seconds", 0) + sum(search["seconds"] for search in line.get("deep", ())))


def _searched(search: Mapping[str, Any]) -> str:
    schedules, clients = f"{search['schedules']} schedules", f"of {search['clients']} clients"
    if search["exhausted"]:
        return f"all {schedules} {clients}"
    ordered = search["schedules"] - search["sampled"]
    parts = [f"{ordered} in order"] if ordered else []
    if search["completed"] is not None:
        parts.append(f"all with up to {search['completed']} preemptions and events among them")
    parts.append(f"{search['sampled']} at random")
    return f"{schedules} {clients} ({', '.join(parts)})"
