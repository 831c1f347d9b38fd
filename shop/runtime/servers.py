"""The states of Postgres and Valkey: the project's own servers, or the servers in DATABASE_URL and REDIS_URL."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings

from servers import RunFolder, ServerError, supervisor, valkey
from servers.servers import CLUSTERS
from servers.status import Status
from shop import limits
from shop.look import look


def given() -> dict[str, str]:
    """Return the name of the setting with each server's URL, by server name; empty for the project's own servers."""
    return {
        "postgres": "" if getattr(settings, "DATABASE_IS_OURS", True) else "DATABASE_URL",
        "valkey": "" if getattr(settings, "REDIS_IS_OURS", True) else "REDIS_URL",
    }


def ours() -> list[str]:
    """Return the names of the servers that the project runs itself."""
    return [name for name, setting in given().items() if not setting]


def clusters(folder: RunFolder) -> list[str]:
    """Return the names of the clusters that run in a run folder."""
    owner = folder.ownership.owner()
    return [name for name in CLUSTERS if owner is not None and name in owner.runs]


def statuses(folder: RunFolder) -> list[Status]:
    """Return the states of Postgres, Valkey and the running clusters."""
    own = {server.name: server for server in supervisor.status(folder, runs=ours())}
    optional = supervisor.status(folder, runs=clusters(folder))
    return [own.get("postgres") or _given_postgres(), own.get("valkey") or _given_valkey(), *optional]


def line_of(server: Status) -> str:
    """Return a line that describes a server."""
    state = f"up, version {server.version}, process {server.pid or 'unknown'}" if server.up else "down"
    setting = given().get(server.name)
    return f"{server.name:9}  {state}  {server.address}  ({f'given by {setting}' if setting else 'our own'})"


def require_answers(found: Sequence[Status]) -> None:
    """Check that all servers answer, and that the settings fit them.

    Raises:
        ServerError: a server does not answer, or a setting is wrong. The message says what to do.
    """
    if wrong := " ".join(server.wrong for server in found if server.wrong):
        raise ServerError(wrong)
    if down := [server.name for server in found if not server.up]:
        raise ServerError(
            f"No answer from {' and '.join(down)}. Start the project's own servers with manage.py servers start. "
            "Servers that DATABASE_URL and REDIS_URL name are started elsewhere."
        )


def _given_postgres() -> Status:
    found = look(limits.POSTGRES_CONNECT)
    return Status("postgres", _without_credentials(settings.DATABASE_URL), found.version, wrong=found.wrong)


def _given_valkey() -> Status:
    found = valkey.status(settings.REDIS_URL)
    return Status("valkey", _without_credentials(found.address), found.version, found.pid)


def _without_credentials(url: str) -> str:
    """Return a URL without user, password and options, so that it can be shown."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"***@{host}" if host != parts.netloc else host, parts.path, "", ""))
