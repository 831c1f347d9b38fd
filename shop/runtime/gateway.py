"""Translate between RSGI, granian's interface, and WSGI, Django's interface."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any

Headers = list[tuple[str, str]]
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

# Maximum number of header names in the cache. Clients send fewer in practice. The limit keeps a client from filling the
# memory with made-up names.
NAMES = 256
_names = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}


class File:
    """The `wsgi.file_wrapper`: a response body that is a file."""

    def __init__(self, file: IO[bytes], block_size: int = 0) -> None:
        self.file = file

    def __iter__(self) -> Iterable[bytes]:
        yield self.file.read()

    def close(self) -> None:
        self.file.close()


_CONSTANT: dict[str, Any] = {
    "SCRIPT_NAME": "",
    "SERVER_SOFTWARE": "granian",
    "wsgi.version": (1, 0),
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
    "wsgi.run_once": False,
    "wsgi.errors": sys.stderr,
    "wsgi.file_wrapper": File,
}


def environ(scope: Any, body: bytes) -> dict[str, Any]:
    """Return the WSGI environment of a request.

    Args:
        scope: the RSGI scope.
        body: the whole body.
    """
    host, _, port = scope.server.rpartition(":")
    path = scope.path
    found = {
        **_CONSTANT,
        "SERVER_NAME": host,
        "SERVER_PORT": port,
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "REMOTE_ADDR": client_address(scope),
        "REQUEST_METHOD": scope.method,
        # WSGI demands a str whose characters are the bytes of the path.
        "PATH_INFO": path if path.isascii() else path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "wsgi.url_scheme": scope.scheme,
        "wsgi.input": io.BytesIO(body),
    }
    for header, value in scope.headers.items():
        if "_" in header:
            continue  # In WSGI, X_Forwarded_For of a client has the same name as the X-Forwarded-For of the proxy.
        name = _names.get(header) or _name(header)
        # Join the values of a repeated header with a comma, and those of cookies with a semicolon.
        found[name] = value if name not in found else f"{found[name]}{';' if name == 'HTTP_COOKIE' else ','}{value}"
    if "HTTP_HOST" not in found:
        found["HTTP_HOST"] = scope.authority or ""
    return found


def client_address(scope: Any) -> str:
    """Return the IP address of the client or proxy that has opened the connection."""
    return str(scope.client.rpartition(":")[0].strip("[]"))


def _name(header: str) -> str:
    name = f"HTTP_{header.replace('-', '_').upper()}"
    if len(_names) < NAMES:
        _names[header] = name
    return name


class StartResponse:
    """The `start_response` of WSGI, which stores the status and the headers."""

    status = 500
    headers: Headers

    def __call__(self, status: str, headers: Headers, error: Any = None) -> None:
        self.status = int(status[:3])
        self.headers = headers
