"""Decorators that all lab pages share."""

from __future__ import annotations

from functools import partial

from django.views.decorators.http import require_safe

from shop.pages.page import PageRefused, View, page

__all__ = ["PageRefused", "lab_page", "read_only_lab_page"]

lab_page = partial(page, refused="lab/refused.html")
"""Make a view a lab page, see `shop.pages.page.page`."""


def read_only_lab_page(view: View) -> View:
    """Make a view a lab page that allows only GET and HEAD."""
    return require_safe(lab_page(view))
