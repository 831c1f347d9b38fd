"""The Content-Security-Policy of HTML pages, which allows browsers to load and run only the shop's own files.

Django 6 can set this header; this module is for Django 5. Responses of the API need no policy, as they are not HTML.
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
"""The policy of the storefront, which loads only its own files."""
ADMIN = f"{PAGES}; script-src 'self' 'unsafe-eval'"
"""The policy of the admin. django-unfold uses Alpine.js, which needs `unsafe-eval` for expressions in attributes."""


def with_pictures_from(origins: Iterable[str]) -> str:
    """Return the strict policy for pages that also show pictures from other origins."""
    return STRICT.replace("img-src 'self'", " ".join(("img-src 'self'", *origins)))


def with_forms_to(origin: str) -> str:
    """Return the strict policy for a page with a form that redirects to another origin.

    Chromium also checks the redirect after a form against `form-action`, so the policy must allow the redirect.

    Args:
        origin: scheme, host and port of the URL to which the form redirects.
    """
    return STRICT.replace("form-action 'self'", f"form-action 'self' {origin}")


class ContentSecurityPolicy:
    """Middleware that sets the policy of an HTML page if its view has set no policy.

    The views of the storefront set a policy of their own.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if response.headers.get("Content-Type", "").startswith("text/html"):
            response.headers.setdefault(HEADER, ADMIN if request.path_info.startswith("/admin/") else PAGES)
        return response
