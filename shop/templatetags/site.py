"""Template tags and filters of several pages.

Links to the repository are tags instead of context variables. Context processors need a request, and error pages have
none.
"""

from __future__ import annotations

from django import template
from django.conf import settings
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag
def repository() -> str:
    """Return the URL of the code's repository; empty if pages should not link to it."""
    return str(settings.REPOSITORY_URL)


@register.simple_tag
def in_repository(path: str) -> str:
    """Return the URL of a file in the code's repository; empty if `REPOSITORY_URL` is not set.

    Args:
        path: path of the file in the repository, with or without an anchor.
    """
    return f"{settings.REPOSITORY_URL.rstrip('/')}/blob/main/{path}" if settings.REPOSITORY_URL else ""


@register.filter
def with_code(text: str) -> SafeString:
    """Return a text as HTML, with the parts between backticks as `<code>` elements."""
    parts = enumerate(text.split("`"))
    return format_html_join(
        "", "{}", ((format_html("<code>{}</code>", part) if at % 2 else part,) for at, part in parts)
    )
