"""`manage.py serve`: run the web server."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from servers import RunFolder
from shop.payments.provider import provider
from shop.runtime import serve, servers


class Command(BaseCommand):
    help = (
        "Run the shop's web server (granian) until Ctrl-C. The settings WEB_PROCESSES, WEB_THREADS, WEB_CONNECTIONS "
        "and WEB_DATABASE_CONNECTIONS set its size. Start Postgres and Valkey first: manage.py servers start."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
        parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            connected = provider().connected
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=2) from error
        serve.refuse_busy_port(options["host"], options["port"])
        found = servers.statuses(RunFolder.default())
        if wrong := " ".join(server.wrong for server in found if server.wrong):
            raise CommandError(wrong, returncode=2)
        down = [server.name for server in found if not server.up]
        if down:
            self.stderr.write(
                f"No answer from {' and '.join(down)}. Until there is one, requests are answered with 503. "
                "Show the servers with manage.py servers status, start the project's own with manage.py servers start."
            )
        if "postgres" not in down and not serve.migrated():
            self.stderr.write(
                "Some migrations are not applied, so the shop will answer with errors. Apply them with manage.py "
                "migrate."
            )
        if os.geteuid() == 0:
            self.stderr.write(
                "The shop runs as root, so an attacker who takes it over has this machine. Run it as an ordinary user."
            )
        if not connected:
            self.stderr.write(
                "PAYMENT_SECRET is not set, so customers can mark their own orders as paid (PAY_WITHOUT_PROVIDER). Set "
                "it to let a payment provider report payments."
                if settings.PAY_WITHOUT_PROVIDER
                else "PAYMENT_SECRET is not set, so no order can be paid. Set it to let a payment provider report "
                "payments. To try the shop, set PAY_WITHOUT_PROVIDER=1: customers mark their own orders as paid."
            )
        if (accepted := serve.allowed_connections()) < settings.WEB_CONNECTIONS:
            self.stderr.write(
                f"Each web process accepts {accepted:,} connections instead of {settings.WEB_CONNECTIONS:,} "
                "(WEB_CONNECTIONS), because it may not open more files. Raise the limit that `ulimit -Hn` shows."
            )
        # Pass `style_func`, because otherwise Django prints every message to standard error in red.
        starting = f"Starting the shop at http://{options['host']}:{options['port']}/. Stop it with Ctrl-C."
        self.stderr.write(starting, style_func=str)
        arguments = serve.web_command(options["host"], options["port"])
        os.execve(sys.executable, arguments, {**os.environ, **serve.web_environment()})  # noqa: S606 - our own command
