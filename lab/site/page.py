"""Decorators that all lab pages share."""

from __future__ import annotations

from functools import partial

from django.views.decorators.http import require_safe

from shop.pages.page import PageRefused, View, page

__all__ = ["PageRefused", "lab_page", "read_only_lab_page"]

lab_page = partial(page, refused="lab/refused.html")
"""Decorate a view of the lab as `shop.pages.page.page` does. A `PageRefused` is shown with the lab's template."""


def read_only_lab_page(view: View) -> View:
    """Decorate a view of the lab with `lab_page`, and allow only GET and HEAD."""
    return require_safe(lab_page(view))
