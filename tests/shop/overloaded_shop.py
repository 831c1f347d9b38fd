"""A WSGI application for tests of overload: it answers health checks, and holds the thread of any other request."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from shop import limits
from shop.runtime.wsgi import application as shop

# Give up sooner, so that a test need not wait for 10 or 20 s.
limits.BODY = limits.REQUEST = 1


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer a health check, and fail at `/broken/`. For any other request, wait for as long as the process lives."""
    if environ["PATH_INFO"] == "/broken/":
        raise LookupError("a fault of the application")
    if environ["PATH_INFO"] != "/health/":
        threading.Event().wait()
    return shop(environ, start_response)
