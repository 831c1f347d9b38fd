"""The first page, and the choice of a language."""

from __future__ import annotations

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_safe

from shop.pages.page import page

YEAR = 365 * 24 * 3600


@require_safe
@page
def home(request: HttpRequest) -> HttpResponse:
    """Say what this is, and show the doors: buy, operate, learn, build."""
    return render(request, "shop/pages/home.html", {"lab": settings.LAB_ENABLED})


@require_safe
def choose_language(request: HttpRequest, code: str) -> HttpResponse:
    """Remember the language of the pages in a cookie, and go back to the page.

    A link and not a form, so that a page needs no token of its visitor and can be cached for everyone.
    """
    if code not in dict(settings.LANGUAGES):
        raise Http404(f"There is no language {code}.")
    back = request.GET.get("next", "")
    local = url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    response = HttpResponseRedirect(back if local else "/")
    response.set_cookie(
        settings.LANGUAGE_COOKIE_NAME, code, max_age=YEAR, secure=settings.LANGUAGE_COOKIE_SECURE, samesite="Lax"
    )
    return response
