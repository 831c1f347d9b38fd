"""What the lab's commands have in common: how they end when they are stopped, and what they take for an argument."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

STOPPED = 130
"""The exit status of a command that Ctrl-C has ended, as shells count it: 128 and the number of the signal."""


class LabCommand(BaseCommand):
    """A command that ends with a sentence when it is stopped."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except KeyboardInterrupt:
            self.stderr.write("Stopped; what was stored so far is kept.")
            raise SystemExit(STOPPED) from None
