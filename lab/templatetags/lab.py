"""Filters of the lab's templates."""

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
    """Return texts of the code as a list in the reader's language."""
    return gettext(", ").join(translated(text) for text in texts)


@register.filter
def source_label(source: str) -> str:
    """Return the source of a rung: the titles of articles, or another source."""
    return gettext(", ").join(translated(ARTICLES.get(name, name)) for name in source.split(", "))
