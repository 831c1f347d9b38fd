"""nginx in front of a web server on this machine, with the configuration that docker-compose.yml uses."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtest.local_shop import CHECKOUT, free_port
from servers import Child, ServerError


class LocalProxy:
    """nginx as a child process. As a context manager, it starts and stops the process.

    The configuration is used unchanged, except for its addresses, ports and paths, which become local ones.

    Args:
        folder: folder for nginx's configuration, caches and log. It replaces `/tmp/` in the configuration.
        upstream: port of the web server.
        configuration: the text of an `nginx.conf`.
    """

    def __init__(self, folder: Path, upstream: int, *, configuration: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        for there, here in {
            "    resolver 127.0.0.11 valid=5s;\n": "",
            "server web:8000 resolve;": f"server 127.0.0.1:{upstream};",
            "listen 8080;": f"listen 127.0.0.1:{self.port};",
            "/tmp/": f"{folder}/",  # noqa: S108 - the container's
            "/etc/nginx/refusals": f"{CHECKOUT}/shop/runtime/refusals",
        }.items():
            configuration = replaced(configuration, there, here)
        self.configuration = configuration
        directives = "daemon off;" + ("user root;" if os.getuid() == 0 else "")
        command = [require_nginx(), "-c", str(folder / "nginx.conf"), "-g", directives]
        self.process = Child("nginx", command, log=folder / "nginx.log")

    def __enter__(self) -> Self:
        """Start nginx, and return once it listens.

        Raises:
            ServerError: nginx does not start.
        """
        (self.folder / "nginx.conf").write_text(self.configuration)
        self.process.start()
        try:
            self.process.wait_until(self._listens, timeout=30)
        except BaseException:
            self.process.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.stop()

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True


def compose_configuration() -> str:
    """Return the text of the `nginx.conf` that docker-compose.yml uses."""
    return (CHECKOUT / "nginx.conf").read_text()


def find_nginx() -> str | None:
    """Return the path of nginx; None if it is not installed."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def require_nginx() -> str:
    """Return the path of nginx.

    Raises:
        ServerError: nginx is not installed.
    """
    if (path := find_nginx()) is None:
        raise ServerError("nginx is not installed. On Debian, install it: apt-get install nginx-light")
    return path


def replaced(configuration: str, there: str, here: str) -> str:
    """Return a configuration in which the text `there` is replaced by `here`.

    Raises:
        ValueError: the configuration does not contain `there`.
    """
    if there not in configuration:
        raise ValueError(f"nginx.conf has no {there!r}.")
    return configuration.replace(there, here)
