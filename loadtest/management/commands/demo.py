"""`manage.py demo`: compare flawed and sound code under the same burst, then keep the shop running."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from rich.console import Console

from loadtest.arguments import positive
from loadtest.demo import PROGRESSION, close_bursts, left_to_buyers, open_sales, pay_orders, run_progression, welcome
from loadtest.demo_buyers import DemoBuyers
from loadtest.local_shop import LocalShop
from loadtest.rush import RushError
from loadtest.verdict import holds
from servers import ServerError
from shop.runtime.servers import line_of


class Command(BaseCommand):
    help = (
        "Start the whole shop (Postgres, Valkey, web, worker and beat), run the same burst with two flawed and five "
        "sound ways of taking stock, and print the verdicts. Then keep serving until Ctrl-C. The accounts `admin` and "
        "`buyer` get a new password each time. Exit status 1 when a sound one was broken."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=positive, default=8000, help="port of the shop (default: 8000)")
        parser.add_argument("--once", action="store_true", help="exit after the table")

    def handle(self, *args: Any, **options: Any) -> None:
        console = Console()
        password, verdicts = secrets.token_hex(8), None
        try:
            with ExitStack() as running:
                with console.status("Starting Postgres, Valkey, web, worker and beat …"):
                    payable = {"PAY_WITHOUT_PROVIDER": "1"}  # Lets a visitor mark their orders as paid.
                    shop = running.enter_context(
                        LocalShop(port=options["port"], lab=True, background=True, environment=payable)
                    )
                console.print(*map(line_of, shop.statuses), sep="\n", style="dim", soft_wrap=True, highlight=False)
                began = timezone.now()
                verdicts = run_progression(shop.url, console)
                with console.status("Paying orders, and preparing two sales …"):
                    pay_orders(began)
                    close_bursts(began)
                    sale, coming = open_sales(password)
                if not options["once"]:
                    doors = welcome(shop.url, password, sale, coming, mails=shop.web.log)
                    console.print(doors, soft_wrap=True, highlight=False)
                    wanted = {each.pk: left_to_buyers(each) for each in (sale, coming)}
                    running.enter_context(DemoBuyers(shop.url, wanted))
                    shop.wait()
        except KeyboardInterrupt:
            console.print("Stopped." if verdicts is not None else "Stopped: there is no verdict.")
            if verdicts is None:
                raise SystemExit(2) from None
        except (ServerError, RushError) as error:
            raise CommandError(str(error), returncode=2) from error
        sound = [verdict for rush, verdict in zip(PROGRESSION, verdicts, strict=True) if not rush.rung]
        if not all(map(holds, sound)):
            raise SystemExit(1)
