"""What the head of each page needs of the settings. Pages of errors have no request, so no context processor helps."""

from __future__ import annotations

from django import template
from django.conf import settings

register = template.Library()


@register.simple_tag
def repository() -> str:
    """Return the address of the repository of the code; empty for no link."""
    return str(settings.REPOSITORY_URL)
