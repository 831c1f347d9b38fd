"""Run a small HTTP server, in place of the shop, on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer


@contextmanager
def serving(server: type[BaseHTTPRequestHandler] | HTTPServer) -> Iterator[int]:
    """Run an HTTP server without a log. Yield its port.

    Args:
        server: a server, or the class of a handler for a new server.
    """
    with server if isinstance(server, HTTPServer) else ThreadingHTTPServer(("127.0.0.1", 0), server) as running:
        running.RequestHandlerClass.log_message = lambda *_: None
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_port
        running.shutdown()
