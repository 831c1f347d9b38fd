"""Django's error handlers, for errors outside the views of the REST API.

A program gets a problem document. A person gets a page in their language.
"""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.contrib.admin.exceptions import DisallowedModelAdminLookup, DisallowedModelAdminToField
from django.core.exceptions import BadRequest, DisallowedHost, RequestDataTooBig, TooManyFieldsSent
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve
from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from shop.accounts.errors import NotNow, TooManyGuesses
from shop.api import problems
from shop.api.problems import Problem
from shop.pages.page import PageRefused, page

SHOWN = 100
"""Maximum number of characters of a host name in an error message."""

Text = str | Promise
"""A text, or a lazy translation. Problem documents show it in English, pages in the reader's language."""


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Respond to a request that Django cannot parse, or that a check has refused with `BadRequest`."""
    match exception:
        case DisallowedHost():
            host = request.META.get("HTTP_HOST", "")[:SHOWN]
            advice = _(problems.UNKNOWN_HOST.advice)
            detail = format_lazy(_("The shop does not answer to the host {host}. {advice}"), host=host, advice=advice)
            return _answer(request, problems.UNKNOWN_HOST, detail)
        case RequestDataTooBig():
            limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
            return _answer(
                request, problems.TOO_LARGE, format_lazy(_("The body is longer than {limit} bytes."), limit=limit)
            )
        case TooManyFieldsSent():
            fields = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS
            return _answer(
                request, problems.INVALID, format_lazy(_("The form has more than {fields} fields."), fields=fields)
            )
        case BadRequest() | DisallowedModelAdminLookup() | DisallowedModelAdminToField():
            return _answer(request, problems.INVALID, str(exception))
    return _answer(request, problems.INVALID, _("The request cannot be read."))


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Respond to a request for a page that the user may not open."""
    return _answer(request, problems.FORBIDDEN)


def form_refused(request: HttpRequest, reason: str = "") -> HttpResponseBase:
    """Respond to a form whose CSRF token is missing or belongs to another browser."""
    detail = _(
        "The form is too old, or this browser keeps no cookies. Nothing was changed. Open the page of the form again, "
        "and send it from there."
    )
    return _answer(request, problems.FORBIDDEN, detail)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Respond to a request for an unknown URL. If only the slash at its end is missing, link to the right URL."""
    path = request.path
    if _is_known(f"{request.path_info}/"):
        missing = _("There is nothing at {path}. Add a slash at the end: {path}/")
        return _answer(request, problems.NOT_FOUND, format_lazy(missing, path=path), link=f"{path}/")
    if path.startswith("/lab/") and not settings.LAB_ENABLED:
        off = _("There is nothing at {path}. The lab is off: start the shop with LAB_ENABLED=1.")
        return _answer(request, problems.NOT_FOUND, format_lazy(off, path=path))
    return _answer(request, problems.NOT_FOUND, format_lazy(_("There is nothing at {path}."), path=path))


def internal(request: HttpRequest) -> HttpResponseBase:
    """Respond to a request whose view has raised an unexpected exception."""
    for_people = _(
        "The shop has failed at this page; its operator finds the reason in the log. Try again. If you have sent an "
        "order, look at your orders first: it may have been placed."
    )
    return _answer(request, problems.INTERNAL, "" if wants_document(request) else for_people)


class NotNowMiddleware:
    """Middleware that responds to a refused log-in (`NotNow`) on any page, because Django has no handler for it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        if not isinstance(exception, NotNow):
            return None
        if isinstance(exception, TooManyGuesses):
            detail = format_lazy(_("Too many wrong passwords. Try again in {wait} seconds."), wait=exception.wait)
            response = _answer(request, problems.TOO_MANY_GUESSES, detail)
        else:
            response = _answer(request, problems.LOGIN_BUSY, str(exception) if wants_document(request) else "")
        response.headers["Retry-After"] = str(exception.wait)
        return response


def wants_document(request: HttpRequest) -> bool:
    """Return whether the client is a program: the URL is below /api/, or its Accept header prefers JSON to HTML."""
    path = f"{request.path}/"
    if path.startswith("/api/"):
        return True
    kinds = ["text/html", problems.CONTENT_TYPE, "application/json"]
    # The lab has an API, too. So below /lab/, a client that accepts every type counts as a program.
    preferred = request.get_preferred_type([*kinds[1:], kinds[0]] if path.startswith("/lab/") else kinds)
    return preferred not in (None, "text/html")


def _is_known(path: str) -> bool:
    try:
        return resolve(path).url_name is not None  # The admin's catch-all URL has no name, and does not count.
    except Resolver404:
        return False


def _answer(request: HttpRequest, problem: Problem, detail: Text = "", *, link: str = "") -> HttpResponseBase:
    if wants_document(request):
        return problems.response(problem, str(detail))
    return _refuse(request, problem, detail, link)


@page
def _refuse(request: HttpRequest, problem: Problem, detail: Text, link: str) -> HttpResponseBase:
    raise PageRefused(
        problem.status,
        str(detail) or gettext(problem.advice),
        title=gettext(problem.title),
        link=link,
        label=link,
        retry_after=problem.retry_after,
    )
