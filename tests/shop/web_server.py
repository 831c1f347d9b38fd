"""Run the shop's web server on the test database, and send HTTP requests to it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.test import override_settings

from loadtest.local_shop import free_port
from shop.runtime.serve import web_command, web_environment
from tests.waiting import WAIT_TIMEOUT, wait_for

CHECKOUT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def web_server(
    *, log: Path = Path(os.devnull), application: str = "shop.runtime.wsgi:application", **variables: str
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run the web server of `manage.py serve`, without serve's checks. Yield its port and process.

    Args:
        log: the file for its log.
        application: the WSGI application to serve.
        variables: settings of the web server that differ from those of the tests.
    """
    port = free_port()
    database = settings.DATABASES["default"]
    sizes = {"WEB_PROCESSES": "1", **variables}  # Each process needs a second of CPU time to start.
    sizes = {name: int(sizes[name]) for name in ("WEB_PROCESSES", "WEB_THREADS", "WEB_CONNECTIONS") if name in sizes}
    with override_settings(**sizes):
        command, pool = web_command("127.0.0.1", port, application), web_environment()
    environment = {
        **{name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        "DATABASE_URL": f"postgres://{database['USER']}@/{database['NAME']}?host={database['HOST']}",
        "SECRET_KEY": settings.SECRET_KEY,
        **pool,
        **{name: str(size) for name, size in sizes.items()},
        **variables,
    }
    with log.open("wb") as file, subprocess.Popen(command, cwd=CHECKOUT, env=environment, stderr=file) as server:
        try:
            wait_for(lambda: answers(port), "the shop to answer", timeout=3 * WAIT_TIMEOUT)
            yield port, server
        finally:
            server.terminate()


def answers(port: int) -> bool:
    try:
        return ask(port, "GET", "/health/")[0] == 200
    except OSError:
        return False


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, Any]:
    """Return a response's status, content type, and JSON or text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body=body, headers=named, encode_chunked=hasattr(body, "__next__"))
    response = connection.getresponse()
    text = response.read().decode()
    kind = response.headers.get("Content-Type", "")
    connection.close()
    return response.status, kind, json.loads(text) if "json" in kind else text


def connect(port: int, sent: bytes = b"") -> socket.socket:
    """Return a connection on which these bytes were sent."""
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.sendall(sent)
    return client


def received(client: socket.socket) -> bytes:
    """Return all bytes that the server sends until it closes the connection."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)
