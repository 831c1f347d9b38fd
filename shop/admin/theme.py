"""A style sheet and a script for all pages of the admin, in addition to the theme; and a short heading for accounts."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.http import HttpRequest
from django.templatetags.static import static


def more_context(context: dict[str, Any], request: HttpRequest) -> dict[str, Any]:
    """Add the style sheet and the script to the context of a page."""
    return {
        **context,
        "styles": [*context.get("styles", ()), static("shop/admin.css")],
        "scripts": [*context.get("scripts", ()), static("shop/admin.js")],
    }


# unfold calls this function at the end of `each_context`. `UNFOLD` in the settings could name the style sheet and the
# script instead. But a changed setting would make the measured figures of all strategies out of date.
admin.site.extra_context = more_context  # type: ignore[attr-defined]
# Give the pages of Django's app `auth` the heading that they have in the sidebar. On a phone, Django's long heading
# would leave no room for the name of the page.
apps.get_app_config("auth").verbose_name = "People"
