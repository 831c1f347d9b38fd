"""Configuration of the Django app `lab`."""

import logging
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register


class LabConfig(AppConfig):
    name = "lab"
    verbose_name = "Lab"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system check, and keep messages of visitors' replays out of the shop's log."""
        register(check_sandbox_count)
        if settings.LAB_ENABLED:
            from lab.sandbox.pool import is_no_visitors

            for handler in logging.getLogger().handlers:
                handler.addFilter(is_no_visitors)


def check_sandbox_count(**_: Any) -> Sequence[CheckMessage]:
    """Check that LAB_SANDBOXES is from 1 to `MOST`, the number of Redis databases besides the shop's."""
    from lab.sandbox.databases import MOST

    if 1 <= settings.LAB_SANDBOXES <= MOST:
        return []
    return [
        Error(
            f"LAB_SANDBOXES is {settings.LAB_SANDBOXES}, but must be from 1 to {MOST}.",
            hint="Each sandbox needs its own Redis database besides the shop's.",
            id="lab.E001",
        )
    ]
