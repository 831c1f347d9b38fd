"""`manage.py reconcile`: repair differences between Redis and Postgres that crashed processes have left."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import InterfaceError, InternalError, OperationalError
from redis import RedisError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shop.reconcile import reconcile_and_audit


class Command(BaseCommand):
    help = (
        "Save queued orders, release units reserved for orders that were never saved, reject orders that the queue has "
        "lost, correct counters that differ from what is on hand, remove counters of skus that are not on sale, "
        "merge stock that is split for a strategy other than the one that sells it, and recount what customers have "
        "bought in sales that queue orders. Safe while the shop is selling; Celery does the same every minute. "
        "Exit status: 0 when the conservation law holds afterwards, 1 when it is broken, 2 when a server does not "
        "answer."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--grace",
            type=float,
            help="age in seconds from which a reservation without an order is released (RECONCILE_GRACE)",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            found = reconcile_and_audit(grace=options["grace"])
        except (RedisError, OperationalError, InterfaceError, InternalError) as error:
            hint = (
                "Show the servers with manage.py servers status, start the project's own with manage.py servers start."
            )
            raise CommandError(
                f"Postgres or Redis does not answer, or reports an error: {error}\n{hint}", returncode=2
            ) from error
        if options["json"]:
            repairs = [asdict(repair) for repair in found.repairs]
            result = {"broken_before": found.before, "repairs": repairs, "broken_after": found.after}
            self.stdout.write(json.dumps(result))
        else:
            if found.repairs:
                table = Table("repair", "sku or request", "units in Redis", title="Repaired")
                for repair in found.repairs:
                    # Pass a `Text`: in a string, rich would read the brackets in a sku such as shirt[xl] as a style.
                    table.add_row(Text(repair.what), Text(repair.name), f"{repair.units:+}")
                Console().print(table)
            law = f"is BROKEN for {', '.join(found.after)}: see manage.py audit" if found.after else "holds"
            self.stdout.write(f"{len(found.repairs)} repairs. The conservation law {law}.")
        if found.after:
            raise SystemExit(1)
