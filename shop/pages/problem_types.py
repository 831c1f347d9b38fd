"""The pages that explain the problem types. The `type` of a problem document is the URL of its page."""

from __future__ import annotations

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext

from shop.api.problem_types import Problems
from shop.api.problems import PROBLEMS, Problem
from shop.pages.page import page
from shop.templatetags.site import with_code

document = Problems.as_view()


def problem_type(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Explain a problem type: as a page for a browser, or as JSON for a program."""
    names_html = any(str(accepted) == "text/html" for accepted in request.accepted_types)
    shown = slug in PROBLEMS and request.method in ("GET", "HEAD") and names_html
    response = explanation(request, PROBLEMS[slug]) if shown else document(request, slug=slug)
    patch_vary_headers(response, ("Accept",))
    return response


@page
def explanation(request: HttpRequest, problem: Problem) -> HttpResponseBase:
    """Show the page of a problem type: what it means, and what to do."""
    words = {"title": gettext(problem.title), "advice": with_code(gettext(problem.advice)), "problem": problem}
    return render(request, "shop/pages/problem.html", words)
