"""`manage.py reconcile`: what processes that died have left between Redis and Postgres, put right."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import InterfaceError, InternalError, OperationalError
from redis import RedisError
from rich.console import Console
from rich.table import Table

from shop.reconcile import reconcile_audited


class Command(BaseCommand):
    help = (
        "Saves what is queued, gives back units that are reserved for orders that never came, rejects those that the "
        "queue has lost, mends counters that differ from what is on hand, removes those of what is not on sale, "
        "gathers stock that is split up for another strategy than the one that sells it, and counts again what "
        "customers have bought, where the queue holds them to a limit. Safe while the shop is selling. "
        "Celery does the same every minute. Exit status 0 when the conservation law holds afterwards, 1 when it is "
        "broken, 2 when a server did not answer."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--grace",
            type=float,
            help="seconds after which a reservation that became no order is nobody's (RECONCILE_GRACE)",
        )
        parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            found = reconcile_audited(grace=options["grace"])
        except (RedisError, OperationalError, InterfaceError, InternalError) as error:
            hint = "See manage.py servers status; manage.py servers start starts what is ours."
            raise CommandError(
                f"A server did not answer, or not as it should: {error}\n{hint}", returncode=2
            ) from error
        if options["json"]:
            repairs = [asdict(repair) for repair in found.repairs]
            said = {"broken_before": found.before, "repairs": repairs, "broken_after": found.after}
            self.stdout.write(json.dumps(said))
        else:
            if found.repairs:
                table = Table("what was wrong", "sku or request", "units in Redis", title="Repaired")
                for repair in found.repairs:
                    table.add_row(repair.what, repair.name, f"{repair.units:+}")
                Console().print(table)
            law = f"BROKEN for {', '.join(found.after)}: see manage.py audit" if found.after else "holds"
            self.stdout.write(f"{len(found.repairs)} repairs. The conservation law {law}.")
        if found.after:
            raise SystemExit(1)
