"""What templates of several pages use.

Links to the repository are tags, since pages of errors have no request and so no context processor.
"""

from __future__ import annotations

from django import template
from django.conf import settings
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag
def repository() -> str:
    """Return the address of the repository of the code; empty for no link."""
    return str(settings.REPOSITORY_URL)


@register.simple_tag
def in_repository(path: str) -> str:
    """Return the address of a file in the repository of the code; empty if the setting does not say where that is.

    Args:
        path: of the file, with an anchor or without.
    """
    return f"{settings.REPOSITORY_URL.rstrip('/')}/blob/main/{path}" if settings.REPOSITORY_URL else ""


@register.filter
def with_code(text: str) -> SafeString:
    """Return a text as HTML. What is between backticks is code."""
    parts = enumerate(text.split("`"))
    return format_html_join(
        "", "{}", ((format_html("<code>{}</code>", part) if at % 2 else part,) for at, part in parts)
    )
