"""The WSGI application, which `manage.py serve` runs. The API has a shorter chain of middleware than the pages."""

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
    """Django's handler with a chain of middleware of its own.

    Args:
        middleware: dotted paths, as in `settings.MIDDLEWARE`.
    """

    def __init__(self, middleware: list[str]) -> None:
        self.middleware = middleware
        super().__init__()

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: FBT001, FBT002 - the name is Django's
        # Django reads the chain from the settings, and from nowhere else.
        every = settings.MIDDLEWARE
        settings.MIDDLEWARE = self.middleware
        try:
            super().load_middleware(is_async)
        finally:
            settings.MIDDLEWARE = every


class Application:
    """Hands a request to the chain of its path.

    Args:
        chains: the middleware of the paths that begin with a prefix. All other paths have `settings.MIDDLEWARE`.
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

# Load the URLs and all the code behind them now, so that no customer waits for it. Then exclude all objects that exist
# from garbage collection: going through a hundred thousand of them again and again would delay every request.
reverse("health")
gc.collect()
gc.freeze()
