"""`manage.py preflight`: check settings, servers and a sale before the sale opens."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Q

from shop.models import Sale
from shop.preflight import run
from shop.preflight.finding import Finding, worst

STYLES = {
    "ok": lambda style: style.SUCCESS,
    "warning": lambda style: style.WARNING,
    "red": lambda style: style.ERROR,
}


class Command(BaseCommand):
    help = (
        "Check settings, servers and a sale before it opens. Run it with the settings of the web servers. Exit status: "
        "0 when nothing is red, 1 when something is, 2 when there is no such sale."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("sale", nargs="?", help="number or slug of a sale to check, too")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        findings = run.of_shop()
        if options["sale"]:
            findings += run.of_sale(find(options["sale"]))
        level = worst(findings)
        if options["json"]:
            self.stdout.write(json.dumps({"level": level, "checks": [as_json(each) for each in findings]}))
        else:
            for each in findings:
                more = "" if each.level == "ok" else f" See {each.link}."
                level_shown = STYLES[each.level](self.style)(f"{each.level:<8}")
                self.stdout.write(f"{level_shown} {each.check}: {each.text}{more}")
            red = sum(each.level == "red" for each in findings)
            self.stdout.write(f"{red} of {len(findings)} checks are red." if red else "Ready: nothing is red.")
        if level == "red":
            raise SystemExit(1)


def find(wanted: str) -> Sale:
    """Return the sale with this number or slug.

    Raises:
        CommandError: there is no such sale, or one sale has this number and another sale has this slug.
    """
    named = Q(slug=wanted) | Q(pk=wanted) if wanted.isdecimal() else Q(slug=wanted)
    found = list(Sale.objects.filter(named))
    if not found:
        raise CommandError(f"There is no sale {wanted}. Name one by its number or slug.", returncode=2)
    if len(found) > 1:
        said = f"{wanted} is the number of one sale and the slug of another."
        raise CommandError(f"{said} Name the one by its slug, or the other by its number.", returncode=2)
    return found[0]


def as_json(finding: Finding) -> dict[str, str]:
    return {"check": finding.check, "level": finding.level, "text": finding.text, "more": finding.link}
