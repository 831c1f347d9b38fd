"""Filters of the lab's templates."""

from __future__ import annotations

from collections.abc import Iterable

from django import template
from django.utils.translation import gettext

from lab.site.wording import translated

register = template.Library()
register.filter("translated", translated)


@register.filter
def listed(texts: Iterable[str]) -> str:
    """Return texts of the code as a list in the reader's language."""
    return gettext(", ").join(translated(text) for text in texts)


@register.filter
def source_label(source: str) -> str:
    """Return the source of a rung: articles, which have numbers, or another source."""
    if not source[0].isdigit():
        return translated(source)
    sentence = gettext("articles %(numbers)s") if "," in source else gettext("article %(numbers)s")
    return sentence % {"numbers": gettext(", ").join(source.split(", "))}
