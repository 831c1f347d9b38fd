"""`manage.py compare`: measure what the page of the comparison shows."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from lab.management.command import LabCommand, refuse_unless_kept
from lab.sandbox import isolation
from lab.site.comparison import stored
from lab.site.comparison.stored import FILE, PARTS, Part

SHORT: dict[Part, tuple[str, ...]] = {
    "strategies": ("--rounds", "1", "--seconds", "1"),
    "locks": ("--rounds", "1", "--pairs", "100", "--handoffs", "20", "--seconds", "0.5", "--idle", "1"),
}
STOP_SECONDS = 15.0
"""Seconds in which a benchmark that was interrupted has to stop what it started, before it is killed."""


class Command(LabCommand):
    help = (
        f"Runs the benchmarks on servers of their own and stores what they say in {FILE.relative_to(settings.BASE_DIR)}"
        ", for the lab's page. Takes half an hour or so, on a machine that should have nothing else to do."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("parts", nargs="*", metavar="PART", help=f"{' or '.join(PARTS)} (both)")
        parser.add_argument("--short", action="store_true", help="some minutes, for orientation; the page says so")

    def handle(self, *args: Any, **options: Any) -> None:
        for part in options["parts"]:
            if part not in PARTS:
                raise CommandError(f"There is no {part} to compare; there are {' and '.join(PARTS)}.", returncode=2)
        refuse_unless_kept(stored.FILE.parent)
        for part in options["parts"] or PARTS:
            report = self.measure(part, short=options["short"])
            kept = {
                "made": datetime.now(tz=UTC).date().isoformat(),
                "short": options["short"],
                "source": stored.source_hash(part),
                "machine": {
                    "cpus": os.cpu_count(),
                    "processor": platform.processor() or platform.machine(),
                    "python": platform.python_version(),
                },
                "report": report,
            }
            stored.store(part, kept)
            self.stdout.write(f"{part}: stored.")

    def measure(self, part: Part, *, short: bool) -> dict[str, Any]:
        """What the benchmark says; it shows its progress on standard error.

        Raises:
            CommandError: it did not come to an end, or something was sold twice.
        """
        own = isolation.folder("compare")
        command = [
            sys.executable,
            "-m",
            "loadtest.bench",
            part,
            "--json",
            "--recovery",
            *(SHORT[part] if short else ()),
        ]
        try:
            with subprocess.Popen(
                command, cwd=settings.BASE_DIR, env=isolation.environment(own), stdout=subprocess.PIPE, text=True
            ) as child:
                try:
                    said, _ = child.communicate()
                except KeyboardInterrupt:
                    # It was interrupted too, and stops what it has started.
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(STOP_SECONDS)
                    child.kill()
                    raise
        finally:
            isolation.remove(own)
        if child.returncode:
            raise CommandError(f"The benchmark of {part} has ended with status {child.returncode}.", returncode=2)
        report: dict[str, Any] = json.loads(said.splitlines()[-1])
        return report
