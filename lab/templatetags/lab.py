"""Filters of the lab's templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django import template
from django.utils.translation import gettext

from lab.site.pages.wording import said

register = template.Library()
register.filter("said", said)


@register.filter
def listed(texts: Iterable[str]) -> str:
    """Texts of the code, in the reader's language, one after the other."""
    return gettext(", ").join(said(text) for text in texts)


@register.filter
def found_in(source: str) -> str:
    """Where a rung is found: in articles, named by number, or elsewhere."""
    if not source[0].isdigit():
        return said(source)
    sentence = gettext("articles %(numbers)s") if "," in source else gettext("article %(numbers)s")
    return sentence % {"numbers": gettext(", ").join(source.split(", "))}


@register.filter
def of(table: Mapping[str, Any], key: str) -> Any:
    """What a table says of a key."""
    return table[key]
