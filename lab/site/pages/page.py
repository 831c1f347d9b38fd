"""What every page of the lab has in common: who may load what, the reader's language, and clear refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe

View = Callable[..., HttpResponse]

POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "connect")),
        "img-src 'self' data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""The Content-Security-Policy of every page: nothing but the lab's own files."""


class PageRefused(Exception):
    """There is no such page, or not now.

    Args:
        status: of HTTP.
        message: why, in a sentence, in the reader's language.
        link: the address of what may be done instead; empty: the ladder's.
        label: what that is.
        retry_after: seconds after which to try again; None: that would not help.
    """

    def __init__(
        self, status: int, message: str, *, link: str = "", label: str = "", retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.link = link
        self.label = label
        self.retry_after = retry_after


def page(view: View) -> View:
    """Make a view a page of the lab that is only looked at."""
    return require_safe(shown(view))


def shown(view: View) -> View:
    """Make what a view answers a page of the lab, whatever it was asked with.

    The language is chosen here and not in a middleware, so that no answer of the API depends on it.
    """

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **values: Any) -> HttpResponse:
        language = translation.get_language_from_request(request)
        with translation.override(language):
            try:
                response = view(request, *args, **values)
            except PageRefused as refused:
                response = render(request, "lab/refused.html", {"refused": refused}, status=refused.status)
                if refused.retry_after is not None:
                    response["Retry-After"] = str(refused.retry_after)
        response["Content-Language"] = language
        response["Content-Security-Policy"] = POLICY
        patch_vary_headers(response, ("Accept-Language", "Cookie"))
        return response

    return answer
