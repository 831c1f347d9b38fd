"""Prepare the start of the web server: its command line, its limits, and checks of port and migrations."""

from __future__ import annotations

import errno
import resource
import socket
import sys
from contextlib import closing, suppress

from django.conf import settings
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.migrations.executor import MigrationExecutor

FILES = 512
"""Maximum number of files that a web process opens in addition to the connections of its clients."""


def web_environment() -> dict[str, str]:
    """Return the environment variables of the web processes. They set the size of the pool of Postgres connections."""
    return {"DATABASE_POOL": str(settings.WEB_DATABASE_CONNECTIONS)}


def web_command(host: str, port: int, application: str = "shop.runtime.wsgi:application") -> list[str]:
    """Return the command line that serves a WSGI application."""
    return [
        *(sys.executable, "-m", "shop.runtime.web", application),
        *("--host", host, "--port", str(port)),
        *("--processes", str(settings.WEB_PROCESSES)),
        *("--threads", str(settings.WEB_THREADS)),
        *("--connections", str(allowed_connections())),
    ]


def allowed_connections() -> int:
    """Return how many client connections a web process can accept.

    This is WEB_CONNECTIONS, or less if the limit of open files is too low. The process needs some of these files for
    Postgres and Redis, and idle connections of clients must not use them up.
    """
    allowed = allow_files(settings.WEB_CONNECTIONS + FILES)
    return min(settings.WEB_CONNECTIONS, max(allowed - FILES, allowed // 2))


def allow_files(wanted: int) -> int:
    """Raise the soft limit of open files of this process and its children, up to the hard limit.

    The soft limit is often 1,024, and the hard limit is far higher.

    Returns:
        The new limit, or `wanted` if there is no limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


def migrated() -> bool:
    """Return whether all migrations are applied. Also return True if Postgres does not answer: other checks say so."""
    # Use a new connection and close it, because the web server replaces this process.
    with suppress(Error), closing(connections.create_connection(DEFAULT_DB_ALIAS)) as connection:
        executor = MigrationExecutor(connection)
        return not executor.migration_plan(executor.loader.graph.leaf_nodes())
    return True


def refuse_busy_port(host: str, port: int) -> None:
    """Check that the port is free.

    A second web server on a used port would start without an error, and get half of the requests.

    Raises:
        CommandError: the port is in use or cannot be used. The exit status is 2, because 1 means broken stock.
    """
    if not 0 < port < 65536:
        raise CommandError(f"There is no port {port}. Choose one from 1 to 65535.", returncode=2)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CommandError(
                    f"Port {port} is in use. Stop the program that uses it (`ss -ltnp 'sport = :{port}'` shows it), "
                    f"or choose another port with --port (PORT={port + 1} with make).",
                    returncode=2,
                ) from error
            raise CommandError(f"Cannot listen on {host}:{port}: {error.strerror}.", returncode=2) from error
