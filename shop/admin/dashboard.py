"""The overview, which is the first page of the admin. Its script refreshes the parts of the page while it is open."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from shop.overview import document

admin.site.index_template = "shop/dashboard.html"


def context(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add the parts that this user may see to the template context. `UNFOLD` in the settings names this function."""
    context["title"] = "Overview"
    context["parts"] = document.parts(request, document.shared.for_a_new_page())
    return context
