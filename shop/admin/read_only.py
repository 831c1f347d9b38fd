"""Helpers for admin pages that only show data."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.timezone import localtime

from shop.admin.checked import CheckedAdmin


class ReadOnlyAdmin(CheckedAdmin):
    """A model admin without forms to add, change or delete rows. Actions can still change rows."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def to_the_second(moment: datetime) -> str:
    """Format a time with seconds, because a sale may sell out within one minute."""
    return f"{localtime(moment):%Y-%m-%d %H:%M:%S}"
