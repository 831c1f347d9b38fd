"""`manage.py serve`: the shop's web server."""

from __future__ import annotations

import errno
import os
import resource
import socket
import sys
from contextlib import closing, suppress
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.migrations.executor import MigrationExecutor

from servers import RunFolder
from shop.management.commands import servers

FILES = 512
"""What a web process has open beside its buyers' connections, at most."""


class Command(BaseCommand):
    help = (
        "Runs the shop with granian until it is stopped. Its size comes from the settings WEB_PROCESSES, "
        "WEB_THREADS, WEB_CONNECTIONS and WEB_DATABASE_CONNECTIONS. The servers have to run: `manage.py servers start`."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_busy_port(options["host"], options["port"])
        down = [server.name for server in servers.statuses(RunFolder.default()) if not server.up]
        if down:
            self.stderr.write(
                f"No answer from {' and '.join(down)}: whoever needs it is told to come back until there is one. "
                "manage.py servers status says where it should be, manage.py servers start starts what is ours."
            )
        if "postgres" not in down and not migrated():
            self.stderr.write(
                "Not all migrations are applied: without its tables the shop answers with errors. Apply them with "
                "manage.py migrate."
            )
        if not settings.PAYMENT_SECRET:
            self.stderr.write(
                "Orders are paid at their customers' word: for that of a payment provider set PAYMENT_SECRET."
            )
        if (accepted := allowed_connections()) < settings.WEB_CONNECTIONS:
            self.stderr.write(
                f"Each web process accepts {accepted:,} connections, and not {settings.WEB_CONNECTIONS:,} "
                "(WEB_CONNECTIONS): it may not open more files. `ulimit -Hn` says how many, and whoever runs it may "
                "allow more."
            )
        self.stderr.write(f"In a moment the shop is at http://{options['host']}:{options['port']}/. Ctrl-C stops it.")
        arguments = granian_arguments(options["host"], options["port"])
        os.execve(sys.executable, arguments, {**os.environ, **environment()})  # noqa: S606 - our server, in our place


def environment() -> dict[str, str]:
    """What the web server's processes need beside the settings: a pool of connections to Postgres."""
    return {"DATABASE_POOL": str(settings.WEB_DATABASE_CONNECTIONS)}


def migrated() -> bool:
    """Whether no migration is missing in the database; true, too, when it does not say."""
    # A connection of its own, which is closed before the web server takes our place.
    with suppress(Error), closing(connections.create_connection(DEFAULT_DB_ALIAS)) as connection:
        executor = MigrationExecutor(connection)
        return not executor.migration_plan(executor.loader.graph.leaf_nodes())
    return True


def allowed_connections() -> int:
    """How many connections each web process can accept: WEB_CONNECTIONS, or fewer where it may not open enough files.

    With more, idle ones would use up what a process needs to reach Postgres and Redis, and to accept anybody at all.
    """
    allowed = allow_files(settings.WEB_CONNECTIONS + FILES)
    return min(settings.WEB_CONNECTIONS, max(allowed - FILES, allowed // 2))


def allow_files(wanted: int) -> int:
    """Let this process and its children have so many files open at a time, or as many as they may.

    A login often allows 1,024 and would allow many more.

    Returns:
        How many they may.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


def granian_arguments(host: str, port: int, application: str = "shop.runtime.wsgi:application") -> list[str]:
    """The command line that serves a WSGI application the shop's way."""
    return [
        *(sys.executable, "-m", "granian", "--interface", "wsgi", application),
        *("--host", host, "--port", str(port)),
        *("--workers", str(settings.WEB_PROCESSES)),
        *("--blocking-threads", str(settings.WEB_THREADS)),
        # Granian counts open connections here, not requests. One for each thread would shut out every buyer whose
        # browser keeps a connection open.
        *("--backpressure", str(allowed_connections())),
        # Without these, one dead worker ends the server, and a stuck one never ends.
        *("--respawn-failed-workers", "--workers-kill-timeout", "5"),
        *("--no-ws", "--log-level", "error"),
    ]


def refuse_busy_port(host: str, port: int) -> None:
    """A second granian on a port starts without a word and takes half of the requests.

    Raises:
        CommandError: the port is in use, or may not be used; with status 2, since that of a burst's verdict is 1.
    """
    if not 0 < port < 65536:
        raise CommandError(f"There is no port {port}: choose one from 1 to 65535.", returncode=2)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CommandError(
                    f"Port {port} is in use. Stop what uses it (`ss -ltnp 'sport = :{port}'` names it), "
                    f"or choose another with --port (PORT={port + 1} with make).",
                    returncode=2,
                ) from error
            raise CommandError(f"Cannot listen on {host}:{port}: {error.strerror}.", returncode=2) from error
