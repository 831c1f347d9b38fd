"""What every page has in common: the reader's language, a content policy, and clear refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import translation
from django.utils.cache import patch_vary_headers

from shop.runtime.csp import HEADER, STRICT

View = Callable[..., HttpResponseBase]


class PageRefused(Exception):
    """The page cannot be shown: it does not exist, or cannot be shown now.

    Args:
        status: the HTTP status.
        message: the reason in one sentence, in the reader's language.
        link: address of a page that helps; if empty, only a link to the first page is shown.
        label: text of that link.
        retry_after: seconds after which a retry may succeed; None: a retry does not help.
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


def page(view: View, *, refused: str = "shop/pages/refused.html") -> View:
    """Make a view a page: choose the language, answer `PageRefused` with a page, and set the headers.

    The language is chosen here and not in a middleware, so that no answer of the API depends on it.

    Args:
        refused: template of the page that shows a `PageRefused`.
    """

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **values: Any) -> HttpResponseBase:
        language = translation.get_language_from_request(request)
        with translation.override(language):
            try:
                response = view(request, *args, **values)
            except PageRefused as refusal:
                response = render(request, refused, {"refused": refusal}, status=refusal.status)
                if refusal.retry_after is not None:
                    response["Retry-After"] = str(refusal.retry_after)
        response["Content-Language"] = language
        response.headers.setdefault(HEADER, STRICT)
        patch_vary_headers(response, ("Accept-Language", "Cookie"))
        return response

    return answer
