"""The WSGI application, which `manage.py serve` runs."""

import gc
import os
from collections.abc import Iterable
from typing import Any

from django.core.wsgi import get_wsgi_application
from django.urls import reverse

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")

django = get_wsgi_application()
from shop.api.parsers import MAX_BODY  # noqa: E402 - it needs Django to be set up

MAX_READ = 16 * 1024 * 1024
"""Length in bytes up to which a body that is too large is read."""


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer a request. A body that is too large is read to its end before it is refused.

    Otherwise a client that sends the whole body first would find the connection closed and not see the answer.
    """
    answer = django(environ, start_response)
    length = environ.get("CONTENT_LENGTH") or "0"
    if length.isdecimal() and MAX_BODY < int(length) <= MAX_READ:
        while environ["wsgi.input"].read(MAX_BODY):
            pass
    return answer


# Load the URLs and all the code behind them now, so that no customer waits for it. Then exclude all objects that exist
# from garbage collection: going through a hundred thousand of them again and again would delay every request.
reverse("health")
gc.collect()
gc.freeze()
