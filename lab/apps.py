"""Django's entry to the room."""

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
        """Have a number of stages refused that there cannot be, and keep visitors' runs out of the shop's log."""
        register(there_can_be_so_many_stages)
        if settings.LAB_ENABLED:
            from lab.sandbox.pool import is_no_visitors

            for handler in logging.getLogger().handlers:
                handler.addFilter(is_no_visitors)


def there_can_be_so_many_stages(**_: Any) -> Sequence[CheckMessage]:
    """A system check: each stage has a Redis database that is not the shop's."""
    from lab.sandbox.databases import MOST

    if 1 <= settings.LAB_SANDBOXES <= MOST:
        return []
    hint = "Redis has a database for each of so many, beside the shop's."
    return [
        Error(f"LAB_SANDBOXES is {settings.LAB_SANDBOXES}, and must be from 1 to {MOST}.", hint=hint, id="lab.E001")
    ]
