"""`manage.py audit`: the conservation law, from the tables alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.table import Table

from shop import conservation


class Command(BaseCommand):
    help = (
        "Holds the conservation law against the tables: received = on hand + sold, nothing negative, sold ≤ received. "
        "Received is the sum of the movements; what a row says beyond that is unexplained, and breaks the law too. "
        "Exit status 0 when it holds for every sku, 1 when it is broken, 2 when it cannot be told."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("sku", nargs="*", help="only these; every sku when none is named")
        parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")

    def handle(self, *args: Any, **options: Any) -> None:
        figures = conservation.figures(options["sku"] or None)
        if unknown := set(options["sku"]) - {row.sku for row in figures}:
            raise CommandError(f"Nobody knows {', '.join(sorted(unknown))}.", returncode=2)
        broken = [row for row in figures if not row.conserved]
        if options["json"]:
            rows = [
                {**asdict(row), "drift": row.drift, "oversold": row.oversold, "conserved": row.conserved}
                for row in figures
            ]
            self.stdout.write(json.dumps({"conserved": not broken, "skus": rows}))
        elif broken:
            names = ("sku", "received", "on_hand", "sold", "drift", "oversold", "unexplained")
            table = Table(*(name.replace("_", " ") for name in names), title="What differs")
            for row in broken:
                table.add_row(*(str(getattr(row, name)) for name in names))
            Console().print(table)
            self.stdout.write(f"BROKEN: {len(broken)} of {len(figures)} skus.")
        else:
            units = sum(row.sold for row in figures)
            self.stdout.write(f"Conserved: {len(figures)} skus, {units} units sold, each of them once.")
        if broken:
            raise SystemExit(1)
