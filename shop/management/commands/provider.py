"""`manage.py provider`: run the simulated payment provider."""

from __future__ import annotations

import threading
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from shop.payments.simulator.payments import Payments
from shop.payments.simulator.reports import Courier
from shop.payments.simulator.server import PAY, Server
from shop.runtime.environment import WEB_ADDRESS
from shop.runtime.stop_signal import StopSignal

HELP = """Run a simulated payment provider until Ctrl-C. No money moves.

Buyers come from the order page. They choose what happens: they pay, they pay after the order has expired, the
provider reports the payment twice, a chargeback before its payment, or a wrong amount, or the payment is declined. The
provider reports it to the shop in signed messages, as a real one does, again and again until the shop accepts it, and
shows each answer of the shop. It keeps nothing: payments are forgotten when it stops.
"""
EXAMPLE = """The shop and the provider share a secret. In two terminals:

  export PAYMENT_SECRET=any-long-text
  PAYMENT_PAGE=http://127.0.0.1:8010/pay/ .venv/bin/python manage.py serve

  export PAYMENT_SECRET=any-long-text
  .venv/bin/python manage.py provider

Then buy something at http://127.0.0.1:8000/sales/ and press "Pay" on the order page.
"""


class Command(BaseCommand):
    help = HELP
    requires_system_checks = []

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, epilog=EXAMPLE, **options
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
        parser.add_argument("--port", type=int, default=8010, help="port to listen on (8010)")
        parser.add_argument(
            "--shop", default="http://127.0.0.1:8000", help="where it reports payments (http://127.0.0.1:8000)"
        )

    def handle(self, *args: Any, host: str, port: int, shop: str, **options: Any) -> None:
        if not settings.PAYMENT_SECRET:
            raise CommandError(
                "PAYMENT_SECRET is not set, so the shop would believe no report. Set it to the same text for the shop "
                "and for this provider, then start both again. manage.py provider --help shows how.",
                returncode=2,
            )
        if not WEB_ADDRESS.fullmatch(f"{shop}/"):
            raise CommandError(f"--shop must be an address such as http://127.0.0.1:8000, not {shop}.", returncode=2)
        courier = Courier(shop, self.stdout.write)
        payments = Payments(courier)
        try:
            server = Server((host, port), payments)
        except (OSError, OverflowError) as error:
            raise CommandError(
                f"Cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}. Stop the program that "
                f"uses this port (`ss -ltnp 'sport = :{port}'` shows it), or choose another port with --port.",
                returncode=2,
            ) from error
        address = f"http://{host}:{port}{PAY}"
        if address != settings.PAYMENT_PAGE:
            self.stderr.write(f"Start the shop with PAYMENT_PAGE={address}, so that its pages lead here.")
        self.stderr.write(f"The simulated provider is at {address} and reports to {shop}. Stop it with Ctrl-C.")
        serve_until_told_to_stop(server)
        courier.stop()
        if lost := payments.unfinished():
            self.stderr.write(f"Stopped. The shop has not accepted the reports of {lost} payments; they are forgotten.")


def serve_until_told_to_stop(server: Server) -> None:
    """Serve pages until SIGTERM or Ctrl-C."""
    told_to_stop = StopSignal()
    threading.Thread(target=server.serve_forever, name="pages", daemon=True).start()
    told_to_stop.wait()
    server.shutdown()
    server.server_close()
