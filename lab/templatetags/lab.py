"""Filters of the lab's templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django import template
from django.utils.translation import gettext

from lab.pages.wording import said

register = template.Library()
register.filter("said", said)


@register.filter
def listed(texts: Iterable[str]) -> str:
    """Texts of the code, in the reader's language, one after the other."""
    return gettext(", ").join(said(text) for text in texts)


@register.filter
def of(table: Mapping[str, Any], key: str) -> Any:
    """What a table says of a key."""
    return table[key]
