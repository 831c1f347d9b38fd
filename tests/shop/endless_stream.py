"""The WSGI application of the web server, with a page that never ends: a CSV export of endless length."""

from __future__ import annotations

import os
import threading
from itertools import repeat
from typing import Any

from shop.runtime import streaming
from shop.runtime.wsgi import application as shop

PATH = "/endless/"

if os.environ.get("NO_LIMIT"):  # the negative control
    streaming._free = threading.BoundedSemaphore(1000)


class Endless:
    streaming = True

    def __init__(self) -> None:
        self._pieces = repeat(b"one,two,three\n" * 1000)

    def __iter__(self) -> Any:
        return self._pieces

    def close(self) -> None:
        pass


def application(environ: dict[str, Any], start_response: Any) -> Any:
    if environ["PATH_INFO"] != PATH:
        return shop(environ, start_response)
    start_response("200 OK", [("Content-Type", "text/csv")])
    return Endless()
