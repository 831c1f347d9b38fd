"""`manage.py servers start|stop|status`: the project's own Postgres and Valkey, and clusters for locks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

import psutil
from django.core.management.base import BaseCommand, CommandError, CommandParser

from servers import RunFolder, ServerError, supervisor
from servers.servers import CLUSTERS
from servers.status import Status
from shop.runtime.servers import line_of, ours, require_answers, statuses

SUPERVISOR = ["-m", "servers"]
"""First arguments of the process that `servers start` starts and leaves running, see `servers/supervisor.py`."""


def program_that_runs(folder: RunFolder) -> str:
    """Return the command line, without the interpreter, of a program that runs the servers for itself, such as a demo.

    Return "" if there is none.
    """
    owner = folder.ownership.owner()
    if owner is None or owner.pid is None:
        return ""
    try:
        _, *words = psutil.Process(owner.pid).cmdline()
    except (psutil.Error, ValueError):  # The program has just ended.
        return ""
    return "" if words[:2] == SUPERVISOR else shlex.join(words)


class Command(BaseCommand):
    help = (
        "Start, stop or show the project's own Postgres and Valkey. A server that DATABASE_URL or REDIS_URL names is "
        "shown, but not started or stopped."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        start = verbs.add_parser("start", help="start them and wait until they answer")
        start.add_argument(
            "also",
            nargs="*",
            choices=[*CLUSTERS, []],
            metavar="CLUSTER",
            help="also a cluster of three: etcd, zookeeper",
        )
        stop = verbs.add_parser(
            "stop", help="stop them, or the demo or load test that runs them, and wait until they have ended"
        )
        stop.add_argument("--delete", action="store_true", help="also delete the run folder with all its data")
        status = verbs.add_parser("status", help="show them; exit status 1 unless both answer")
        status.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")

    def handle(
        self, *, verb: str, also: Sequence[str] = (), delete: bool = False, as_json: bool = False, **options: Any
    ) -> None:
        folder = RunFolder.default()
        try:
            if verb == "start":
                self._start(folder, also)
            elif verb == "stop":
                self._stop(folder, delete=delete)
            else:
                self._status(folder, as_json=as_json)
        except ServerError as error:
            raise CommandError(str(error)) from error

    def _start(self, folder: RunFolder, also: Sequence[str]) -> None:
        if not (own := [*ours(), *also]):
            self.stdout.write("Nothing to start: DATABASE_URL and REDIS_URL name both servers.")
        elif supervisor.start(folder, runs=own):
            self.stdout.write(f"Started {' and '.join(own)} in {folder.path}.")
        else:
            self.stdout.write(f"Already running in {folder.path}.")
        found = statuses(folder)
        self._show(found)
        require_answers(found)

    def _stop(self, folder: RunFolder, *, delete: bool) -> None:
        program = program_that_runs(folder)
        ran = supervisor.stop(folder, delete=delete)
        if program and ran:
            self.stdout.write(f"Stopped `{program}`, which ran the servers in {folder.path}.")
        else:
            self.stdout.write(f"Stopped the servers in {folder.path}." if ran else f"No servers run in {folder.path}.")
        if delete:
            self.stdout.write(f"Deleted {folder.path} and all its data.")

    def _status(self, folder: RunFolder, *, as_json: bool) -> None:
        found = statuses(folder)
        if as_json:
            by_name = {s.name: {"up": s.up, "address": s.address, "version": s.version, "pid": s.pid} for s in found}
            self.stdout.write(json.dumps(by_name))
        else:
            self._show(found)
        require_answers(found)

    def _show(self, found: Sequence[Status]) -> None:
        for server in found:
            self.stdout.write(line_of(server))
