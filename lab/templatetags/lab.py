"""Template filters for texts that are defined in the lab's code."""

from __future__ import annotations

from collections.abc import Iterable

from django import template
from django.utils.translation import gettext

from lab.site.pages.texts import ARTICLES
from lab.site.wording import translated

register = template.Library()
register.filter("translated", translated)


@register.filter
def listed(texts: Iterable[str]) -> str:
    """Translate texts into the reader's language, and join them with commas."""
    return gettext(", ").join(translated(text) for text in texts)


@register.filter
def source_label(source: str) -> str:
    """Return the sources of a rung as text, with the translated titles of known articles."""
    return gettext(", ").join(translated(ARTICLES.get(name, name)) for name in source.split(", "))
