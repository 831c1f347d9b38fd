"""`manage.py servers start|stop|status`: the project's own Postgres and Valkey, unless others are given."""

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from servers import RunFolder, ServerError, supervisor, valkey
from servers.status import Status


class Command(BaseCommand):
    """Start, stop or show the servers that are ours; those given from outside are shown and left alone."""

    help = "Start, stop or show the project's own Postgres and Valkey. DATABASE_URL and REDIS_URL win when set."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One verb, and what goes with it."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("start", help="start them and return once they answer")
        stop = verbs.add_parser("stop", help="stop them and return once they are gone")
        stop.add_argument("--delete", action="store_true", help="remove the run folder with all its data too")
        status = verbs.add_parser("status", help="show them; exit status 1 unless both answer")
        status.add_argument("--json", action="store_true", dest="as_json", help="one JSON object, for programs")

    def handle(self, *, verb: str, delete: bool = False, as_json: bool = False, **options: Any) -> None:
        """Do what the verb says, in the run folder of this checkout."""
        folder = RunFolder.default()
        try:
            if verb == "start":
                self._start(folder)
            elif verb == "stop":
                self._stop(folder, delete=delete)
            else:
                self._status(folder, as_json=as_json)
        except ServerError as error:
            raise CommandError(str(error)) from error

    def _start(self, folder: RunFolder) -> None:
        if not (ours := _ours()):
            self.stdout.write("Nothing to start: both servers are given from outside.")
        elif supervisor.start(folder, runs=ours):
            self.stdout.write(f"Started {' and '.join(ours)} in {folder.path}.")
        else:
            self.stdout.write(f"Already running in {folder.path}.")
        self._show(found := statuses(folder))
        refuse_the_dead(found)

    def _stop(self, folder: RunFolder, *, delete: bool) -> None:
        ran = supervisor.stop(folder, delete=delete)
        self.stdout.write(f"Stopped the servers in {folder.path}." if ran else f"No servers run in {folder.path}.")
        if delete:
            self.stdout.write(f"Removed {folder.path} and all its data.")

    def _status(self, folder: RunFolder, *, as_json: bool) -> None:
        found = statuses(folder)
        if as_json:
            shown = {s.name: {"up": s.up, "address": s.address, "version": s.version, "pid": s.pid} for s in found}
            self.stdout.write(json.dumps(shown))
        else:
            self._show(found)
        refuse_the_dead(found)

    def _show(self, found: Sequence[Status]) -> None:
        for server in found:
            self.stdout.write(line_of(server))


def line_of(server: Status) -> str:
    """Which server is in use, and whose it is."""
    state = f"up, version {server.version}, process {server.pid or 'unknown'}" if server.up else "down"
    given = _given()[server.name]
    return f"{server.name:8}  {state}  {server.address}  ({f'given by {given}' if given else 'our own'})"


def refuse_the_dead(found: Sequence[Status]) -> None:
    """Say which servers do not answer, and what to do about it.

    Raises:
        ServerError: one does not.
    """
    if down := [server.name for server in found if not server.up]:
        raise ServerError(
            f"No answer from {' and '.join(down)}. Start what is ours with manage.py servers start; what DATABASE_URL "
            "and REDIS_URL name is started elsewhere."
        )


def _given() -> dict[str, str]:
    """The variable that names each server from outside; empty for one that is ours to run."""
    return {
        "postgres": "" if getattr(settings, "DATABASE_IS_OURS", True) else "DATABASE_URL",
        "valkey": "" if getattr(settings, "REDIS_IS_OURS", True) else "REDIS_URL",
    }


def _ours() -> list[str]:
    return [name for name, given in _given().items() if not given]


def statuses(folder: RunFolder) -> list[Status]:
    """How Postgres and Valkey are, ours or given."""
    ours = {server.name: server for server in supervisor.status(folder, runs=_ours())}
    return [ours.get("postgres") or _given_postgres(), ours.get("valkey") or _given_valkey()]


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
    """The address as it may be shown: user, password and options are hidden."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"***@{host}" if host != parts.netloc else host, parts.path, "", ""))
