"""The Content-Security-Policy of HTML pages: a browser runs and loads nothing that the shop does not serve itself.

Django 6 has this built in. Until then this is all that is needed: answers of the API are not pages, and pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.http import HttpRequest, HttpResponse

HEADER = "Content-Security-Policy"
PAGES = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
STRICT = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "connect")),
        "img-src 'self' data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""For the shop's own pages, which load their own files and nothing else."""
ADMIN = f"{PAGES}; script-src 'self' 'unsafe-eval'"
"""Alpine.js, which the pages of django-unfold use, evaluates the expressions in their attributes."""


def with_pictures_from(origins: Iterable[str]) -> str:
    """Return the strict policy for pages that also show pictures from other origins."""
    return STRICT.replace("img-src 'self'", " ".join(("img-src 'self'", *origins)))


def with_forms_to(origin: str) -> str:
    """Return the strict policy for a page whose forms may also lead to another origin.

    Chromium applies `form-action` to the redirect after a form, so the page has to name where it leads.

    Args:
        origin: scheme, host and port.
    """
    return STRICT.replace("form-action 'self'", f"form-action 'self' {origin}")


class ContentSecurityPolicy:
    """Middleware that sets the policy of a page, unless its view has set a stricter one, as the shop's own pages do."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if response.headers.get("Content-Type", "").startswith("text/html"):
            response.headers.setdefault(HEADER, ADMIN if request.path_info.startswith("/admin/") else PAGES)
        return response
