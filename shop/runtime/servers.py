"""Which Postgres and Valkey the shop uses, the project's own or given ones, and whether they answer."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

import psycopg
from django.conf import settings
from django.db import connection

from servers import RunFolder, ServerError, supervisor, valkey
from servers.status import Status


def given() -> dict[str, str]:
    """Return the setting that gives the address of each server; empty for a server that the project runs itself."""
    return {
        "postgres": "" if getattr(settings, "DATABASE_IS_OURS", True) else "DATABASE_URL",
        "valkey": "" if getattr(settings, "REDIS_IS_OURS", True) else "REDIS_URL",
    }


def ours() -> list[str]:
    """Return the servers that the project runs itself."""
    return [name for name, setting in given().items() if not setting]


def statuses(folder: RunFolder) -> list[Status]:
    """Return the states of Postgres and Valkey."""
    own = {server.name: server for server in supervisor.status(folder, runs=ours())}
    return [own.get("postgres") or _given_postgres(), own.get("valkey") or _given_valkey()]


def line_of(server: Status) -> str:
    """Return a line that describes a server."""
    state = f"up, version {server.version}, process {server.pid or 'unknown'}" if server.up else "down"
    setting = given()[server.name]
    return f"{server.name:8}  {state}  {server.address}  ({f'given by {setting}' if setting else 'our own'})"


def require_answers(found: Sequence[Status]) -> None:
    """Check that all servers answer.

    Raises:
        ServerError: one does not answer. The message says what to do.
    """
    if down := [server.name for server in found if not server.up]:
        raise ServerError(
            f"No answer from {' and '.join(down)}. Start the project's own servers with manage.py servers start. "
            "Servers that DATABASE_URL and REDIS_URL name are started elsewhere."
        )


def _given_postgres() -> Status:
    address = _without_credentials(settings.DATABASE_URL)
    try:
        with psycopg.connect(**{**connection.get_connection_params(), "connect_timeout": 5}) as asked:
            return Status("postgres", address, asked.info.parameter_status("server_version"))
    except psycopg.Error:
        return Status("postgres", address)


def _given_valkey() -> Status:
    found = valkey.status(settings.REDIS_URL)
    return Status("valkey", _without_credentials(found.address), found.version, found.pid)


def _without_credentials(url: str) -> str:
    """Return a URL without user, password and options, so that it can be shown."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"***@{host}" if host != parts.netloc else host, parts.path, "", ""))
