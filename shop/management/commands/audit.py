"""`manage.py audit`: check the conservation law in the tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.template.defaultfilters import pluralize
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shop import conservation


class Command(BaseCommand):
    help = (
        "Check the conservation law in the tables: received = on hand + sold, nothing negative, sold ≤ received. "
        "Received is the sum of the movements. Units in a stock row without a movement are unexplained and break the "
        "law too. Exit status: 0 when the law holds for every sku, 1 when it is broken, 2 when it cannot be checked."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("sku", nargs="*", help="skus to check (all)")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        figures = conservation.figures(options["sku"] or None)
        if unknown := set(options["sku"]) - {row.sku for row in figures}:
            raise CommandError(f"There is no stock of {', '.join(sorted(unknown))}.", returncode=2)
        broken = [row for row in figures if not row.conserved]
        skus = f"{len(figures)} sku{pluralize(len(figures))}"
        if options["json"]:
            rows = [
                {**asdict(row), "drift": row.drift, "oversold": row.oversold, "conserved": row.conserved}
                for row in figures
            ]
            self.stdout.write(json.dumps({"conserved": not broken, "skus": rows}))
        elif broken:
            names = ("sku", "received", "on_hand", "sold", "drift", "oversold", "unexplained")
            table = Table(*(name.replace("_", " ") for name in names), title="Broken")
            for row in broken:
                # Pass a `Text`: in a string, rich would read the brackets in a sku such as shirt[xl] as a style.
                table.add_row(*(Text(str(getattr(row, name))) for name in names))
            Console().print(table)
            self.stdout.write(f"BROKEN: {len(broken)} of {skus}.")
        else:
            sold = sum(row.sold for row in figures)
            self.stdout.write(f"Conserved: {skus}, {sold} unit{pluralize(sold)} sold, none of them twice.")
        if broken:
            raise SystemExit(1)
