"""The WSGI application that `manage.py serve` runs. The API has fewer middleware classes than the pages."""

import gc
import os
from collections.abc import Iterable, Mapping
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")

import django

django.setup(set_prefix=False)

from django.conf import settings  # noqa: E402
from django.core.handlers.wsgi import WSGIHandler  # noqa: E402
from django.urls import reverse  # noqa: E402


class Chain(WSGIHandler):
    """Django's WSGI handler with a given list of middleware.

    Args:
        middleware: dotted paths, as in `settings.MIDDLEWARE`.
    """

    def __init__(self, middleware: list[str]) -> None:
        self.middleware = middleware
        super().__init__()

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: FBT001, FBT002 - the name is Django's
        # Replace the setting during the call, because Django reads the middleware only from there.
        every = settings.MIDDLEWARE
        settings.MIDDLEWARE = self.middleware
        try:
            super().load_middleware(is_async)
        finally:
            settings.MIDDLEWARE = every


class Application:
    """Hands a request to the handler for its path.

    Args:
        chains: lists of middleware by path prefix. All other paths use `settings.MIDDLEWARE`.
    """

    def __init__(self, chains: Mapping[str, list[str]]) -> None:
        self.pages = Chain(settings.MIDDLEWARE)
        self.chains = [(prefix, Chain(middleware)) for prefix, middleware in chains.items()]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        handler = next((chain for prefix, chain in self.chains if path.startswith(prefix)), self.pages)
        answer: Iterable[bytes] = handler(environ, start_response)
        return answer


application = Application({"/api/": settings.API_MIDDLEWARE})

# Load the URLs and their code now, so that no customer waits for that. Then exclude all existing objects from garbage
# collection: to scan a hundred thousand objects again and again would delay requests.
reverse("health")
gc.collect()
gc.freeze()
