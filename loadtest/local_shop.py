"""A whole shop on this machine: the servers, the web server, and Celery's worker and beat as child processes."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from django.conf import settings
from django.core.management import call_command
from django.db import connections

from servers import Child, ServerError, Servers
from servers.status import Status
from shop.runtime import serve, servers

CHECKOUT = Path(settings.BASE_DIR)
CELERY = (sys.executable, "-m", "celery", "--app")


class LocalShop:
    """A shop on this machine. As a context manager, it starts its processes in order and stops them in reverse.

    While it runs, SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does. So a command stops its shop on SIGTERM, too.

    Args:
        port: port of the web server; 0 for a free port.
        lab: whether to enable the lab's endpoints.
        background: whether to run Celery's worker and beat, too.
        application: WSGI application of the web server.
        tasks: Celery application of the worker.
        environment: variables for web, worker and beat, added to those of this process.
        niceness: by how much the web server gives way to other processes, from 0 to 19, as for `nice`.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        lab: bool = False,
        background: bool = False,
        application: str = "shop.runtime.wsgi:application",
        tasks: str = "shop",
        environment: Mapping[str, str] | None = None,
        niceness: int = 0,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.background = background
        self.tasks = tasks
        self.environment = {**os.environ, "LAB_ENABLED": "1" if lab else "0", **(environment or {})}
        web = serve.web_command("127.0.0.1", self.port, application)
        if niceness:
            web = ["nice", "-n", str(niceness), *web]
        self.web = self._child("web", web, **serve.web_environment())
        self.servers: Servers | None = None
        self.statuses: list[Status] = []
        self.children: list[Child] = []
        self._running = ExitStack()

    def __enter__(self) -> Self:
        """Start all processes, and return once the shop answers.

        Raises:
            ServerError, CommandError: a process does not start. Processes that did start are stopped again.
        """
        serve.refuse_busy_port("127.0.0.1", self.port)
        settings.RUN_FOLDER.create()
        with ExitStack() as starting:
            before = signal.signal(signal.SIGTERM, signal.default_int_handler)
            starting.callback(signal.signal, signal.SIGTERM, before)
            own_servers = [
                name
                for name, ours in (("postgres", settings.DATABASE_IS_OURS), ("valkey", settings.REDIS_IS_OURS))
                if ours
            ]
            if own_servers:
                self.servers = starting.enter_context(Servers(settings.RUN_FOLDER, runs=own_servers))
            self.statuses = servers.statuses(settings.RUN_FOLDER)
            servers.require_answers(self.statuses)
            starting.callback(connections.close_all)
            call_command("migrate", verbosity=0, interactive=False)
            self._start(starting, self.web)
            if self.background:
                self._start(starting, self._child("worker", worker_command(self.tasks)))
                self._start(starting, self._child("beat", beat_command()))
            self.web.wait_until(lambda: is_healthy(self.url), timeout=60)
            self._running = starting.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._running.close()

    def wait(self) -> None:
        """Wait until a process of the shop ends by itself.

        Raises:
            ServerError: always; it names the process and its log.
        """
        while all(child.alive for child in self.children):
            time.sleep(0.5)
        ended = next(child for child in self.children if not child.alive)
        raise ServerError(f"{ended.name} has ended. Read its log to find out why: {ended.log}")

    def _child(self, name: str, command: Sequence[str], **variables: str) -> Child:
        log = settings.RUN_FOLDER.path / f"{name}-{self.port}.log"
        return Child(name, command, log=log, env={**self.environment, **variables}, cwd=CHECKOUT)

    def _start(self, starting: ExitStack, child: Child) -> None:
        child.start()
        starting.callback(child.stop)
        self.children.append(child)


def worker_command(tasks: str) -> tuple[str, ...]:
    return (*CELERY, tasks, "worker", "--pool", "threads", "--concurrency", "2", "--loglevel", "warning")


def beat_command() -> tuple[str, ...]:
    schedule = settings.RUN_FOLDER.path / "beat-schedule"
    return (*CELERY, "shop", "beat", "--loglevel", "warning", "--schedule", str(schedule), "--pidfile", "")


def free_port() -> int:
    """Return a port of the loopback interface that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_healthy(url: str) -> bool:
    """Return whether a healthy shop answers at `url`."""
    try:
        with urllib.request.urlopen(f"{url}/health/", timeout=5) as response:  # noqa: S310
            return bool(response.status == 200)
    except (OSError, ValueError, http.client.HTTPException):
        # ValueError: `url` is no address. HTTPException: a server of another protocol answers there.
        return False
