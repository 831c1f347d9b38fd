"""Links to the repository of the code. Pages of errors have no request, so no context processor helps."""

from __future__ import annotations

from django import template
from django.conf import settings

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
