"""Django's error handlers, for requests that no view of the REST API has answered.

They send a problem document below /api/ and /lab/, and a short HTML page elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.contrib.admin.exceptions import DisallowedModelAdminLookup, DisallowedModelAdminToField
from django.core.exceptions import BadRequest, DisallowedHost, RequestDataTooBig, TooManyFieldsSent
from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve
from django.utils.html import format_html

from shop.accounts.errors import NotNow, TooManyGuesses
from shop.api import problems
from shop.api.problems import Problem

SHOWN = 100
"""Characters of a host name that an answer repeats."""


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a request that Django has refused before or while it was read."""
    match exception:
        case DisallowedHost():
            host = request.META.get("HTTP_HOST", "")[:SHOWN]
            detail = f"The shop does not answer to the host {host}. {problems.UNKNOWN_HOST.advice}"
            return _page(request, problems.UNKNOWN_HOST, detail)
        case RequestDataTooBig():
            return _page(
                request, problems.TOO_LARGE, f"The body is longer than {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes."
            )
        case TooManyFieldsSent():
            fields = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS
            return _page(request, problems.INVALID, f"The form has more than {fields} fields.")
        case BadRequest() | DisallowedModelAdminLookup() | DisallowedModelAdminToField():
            return _page(request, problems.INVALID, str(exception))
    return _page(request, problems.INVALID, "The request cannot be read.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a request for a page that this user may not open."""
    return _page(request, problems.FORBIDDEN)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a request for an unknown URL, and say so if only the slash at its end is missing."""
    hint = f" Add a slash at the end: {request.path}/" if _is_known(f"{request.path_info}/") else ""
    return _page(request, problems.NOT_FOUND, f"There is nothing at {request.path}.{hint}")


def internal(request: HttpRequest) -> HttpResponse:
    """Answer a request that has failed with an exception."""
    return _page(request, problems.INTERNAL)


class NotNowMiddleware:
    """Answers a log-in that is refused for now, on any page. Django has no handler for it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, NotNow):
            return None
        problem = problems.TOO_MANY_GUESSES if isinstance(exception, TooManyGuesses) else problems.LOGIN_BUSY
        response = _page(request, problem, str(exception))
        response.headers["Retry-After"] = str(exception.wait)
        return response


def _is_known(path: str) -> bool:
    try:
        return resolve(path).url_name is not None  # The address of the admin that takes all others has no name.
    except Resolver404:
        return False


def _page(request: HttpRequest, problem: Problem, detail: str = "") -> HttpResponse:
    if f"{request.path}/".startswith(("/api/", "/lab/")):
        return problems.response(problem, detail)
    page = format_html(
        '<!doctype html><html lang="en"><title>{0}</title><h1>{0}</h1><p>{1}</p>',
        problem.title,
        detail or problem.advice,
    )
    return HttpResponse(page, status=problem.status)
