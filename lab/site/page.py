"""What every lab page has in common."""

from __future__ import annotations

from functools import partial

from django.views.decorators.http import require_safe

from shop.pages.page import PageRefused, View, page

__all__ = ["PageRefused", "lab_page", "read_only_lab_page"]

lab_page = partial(page, refused="lab/refused.html")
"""Make a view a lab page, see `page`."""


def read_only_lab_page(view: View) -> View:
    """Make a view a lab page that answers GET and HEAD only."""
    return require_safe(lab_page(view))
