"""The decorator of all pages: it sets language, headers and the login-hint cookie, and shows refusals as pages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.db import InterfaceError, InternalError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.template.response import SimpleTemplateResponse
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from inventory.outages import ANSWERING, is_away, outages
from shop.api import problems
from shop.pages import login_hint
from shop.runtime import csp

logger = logging.getLogger(__name__)

View = Callable[..., HttpResponseBase]


class PageRefused(Exception):
    """A page that explains why a request is refused.

    Args:
        status: the HTTP status.
        message: the reason, in the reader's language.
        title: the heading of the page; if empty, a heading that fits the status.
        link: URL of a helpful page; if empty, the page only links to the sales.
        label: text of the link.
        retry_after: seconds after which a retry may succeed; None if a retry does not help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        title: str = "",
        link: str = "",
        label: str = "",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.title = title or default_title(status)
        self.link = link
        self.label = label
        self.retry_after = retry_after


def default_title(status: int) -> str:
    """Return the heading for an HTTP status, in the reader's language."""
    match status:
        case 404:
            return _("Page not found")
        case 429:
            return _("Please wait")
        case 503:
            return _("Not available at the moment")
    return _("This is not possible")


def page(view: View, *, refused: str = "shop/pages/refused.html") -> View:
    """Decorate a view: choose the language, show a `PageRefused` as a page, and set the headers.

    The language is chosen here and not in a middleware, so that responses of the API do not depend on it.

    Args:
        refused: template that shows a `PageRefused`.
    """

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **values: Any) -> HttpResponseBase:
        language = translation.get_language_from_request(request)
        with translation.override(language):
            try:
                response = view(request, *args, **values)
                if isinstance(response, SimpleTemplateResponse):
                    response.render()  # Render now: outside this block, another language is active.
            except PageRefused as refusal:
                response = _refuse(request, refusal, refused)
            except (OperationalError, InterfaceError, InternalError) as error:
                response = _refuse(request, _database_trouble(error), refused)
        response.headers["Content-Language"] = language
        response.headers.setdefault(csp.HEADER, csp.with_pictures_from(settings.PICTURE_ORIGINS))
        patch_vary_headers(response, ("Accept-Language", "Cookie"))
        _update_login_hint(request, response)
        return response

    return answer


def _update_login_hint(request: HttpRequest, response: HttpResponseBase) -> None:
    """Update the cookie of `login_hint`, if this page has read the session.

    A page that a proxy may cache sets no cookie, because other visitors would get it. A server error sets no cookie,
    because the reading of the session may have caused the error.
    """
    session = getattr(request, "session", None)  # Requests of the API have none.
    public = "public" in response.headers.get("Cache-Control", "")
    if session is not None and session.accessed and not public and response.status_code < 500:
        login_hint.update(request, response, session.get(SESSION_KEY))


def _refuse(request: HttpRequest, refusal: PageRefused, template: str) -> HttpResponse:
    """Return the page of a refusal.

    The template of a server error does not get the request, because reading the user of the request needs Postgres.
    """
    known = request if refusal.status < 500 else None
    context = {"refused": refusal, "here": request.get_full_path()}
    response = HttpResponse(render_to_string(template, context, known), status=refusal.status)
    if refusal.retry_after is not None:
        response.headers["Retry-After"] = str(refusal.retry_after)
    return response


def _database_trouble(error: Exception) -> PageRefused:
    if is_away(error):
        outages.failed(ANSWERING, error)
    else:
        logger.warning("Postgres is read-only, or a wait for a lock took too long: %s", error)
    return PageRefused(
        503,
        _("The database cannot be used now. Open the page again in a moment."),
        retry_after=problems.UNAVAILABLE.retry_after,
    )
