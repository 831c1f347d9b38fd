"""What the web server runs: `manage.py serve` starts granian on it."""

import gc
import os
from collections.abc import Iterable
from typing import Any

from django.core.wsgi import get_wsgi_application
from django.urls import reverse

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")

django = get_wsgi_application()
from shop.api.parsers import MAX_BODY  # noqa: E402 - it wants Django set up

# Bytes of a large body that are read although nobody wants them.
AT_MOST = 16 * 1024 * 1024


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """The shop. A body that is too large is read to its end before it is refused.

    A client that sends all before it listens would find the connection closed, and never learn why.
    """
    answer = django(environ, start_response)
    length = environ.get("CONTENT_LENGTH") or "0"
    if length.isdecimal() and MAX_BODY < int(length) <= AT_MOST:
        while environ["wsgi.input"].read(MAX_BODY):
            pass
    return answer


# Load the addresses, and with them all the code behind them, so that no buyer waits for that. What is there by now
# stays: the collector need not go through its hundred thousand objects, while everybody waits, again and again.
reverse("health")
gc.collect()
gc.freeze()
