"""What the pages that only show something have in common."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.timezone import localtime
from unfold.admin import ModelAdmin


class Shown(ModelAdmin):
    """A list and its pages, to look at: nothing is added, changed or deleted there, but by an action."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def to_the_second(moment: datetime) -> str:
    """A sale is over in seconds: the minute alone would say nothing."""
    return f"{localtime(moment):%Y-%m-%d %H:%M:%S}"
