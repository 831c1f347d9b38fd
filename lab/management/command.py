"""What the lab's commands have in common: how they end when they are stopped, and what they take for an argument."""

from __future__ import annotations

import signal
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from lab.claims import result_store
from lab.claims.interrupts import insist
from lab.ladder.catalogue import LADDER
from lab.workloads.base import NAMES

STOPPED = 130
"""The exit status of a command that Ctrl-C has ended, as shells count it: 128 and the number of the signal."""


class LabCommand(BaseCommand):
    """A command that ends with a sentence when it is stopped."""

    def run_from_argv(self, argv: list[str]) -> None:
        insist(signal.SIGINT, KeyboardInterrupt)
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except KeyboardInterrupt:
            self.stderr.write("Stopped; what was stored so far is kept.")
            raise SystemExit(STOPPED) from None


def refuse_unless_kept(*folders: Path) -> None:
    """See that what is found can be kept there, before it is looked for. A folder that is not there will be made.

    Raises:
        CommandError: it cannot.
    """
    for folder in folders:
        try:
            if folder.exists():
                result_store.refuse_unless_writable(folder)
        except OSError as error:
            text = f"What is found could not be kept in {folder} ({error.strerror}): let this user write there first."
            raise CommandError(text, returncode=2) from error


def rung(said: str) -> str:
    """For `type` of an argument: the slug of a rung."""
    if said not in LADDER:
        raise ArgumentTypeError(f"There is no rung {said}. manage.py ladder shows those that there are.")
    return said


def number(least: int, most: int | None = None) -> Callable[[str], int]:
    """For `type` of an argument: a whole number within bounds."""

    def parse(said: str) -> int:
        try:
            value = int(said)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise ArgumentTypeError(f"a number from {least}{'' if most is None else f' to {most}'}, and not {said}")
        return value

    return parse


clients = number(1, len(NAMES))
"""For `type` of an argument: how many clients."""
