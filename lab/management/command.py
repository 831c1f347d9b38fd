"""Base class and argument types of the lab's management commands."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from lab.claims import result_store
from lab.claims.interrupts import insist
from lab.ladder.catalogue import LADDER
from lab.workloads.base import NAMES

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C has ended: 128 plus the number of the signal, as in shells."""
MOST_REPEATS = 1000
"""Maximum number of repeats of one choice in a schedule on the command line."""
SHORTEST_COUNTED = 3
"""Minimum number of equal choices in a row that are written with a count, such as `B*3`."""


class LabCommand(BaseCommand):
    """A command that ends with a message, not with a traceback, when Ctrl-C interrupts it."""

    def run_from_argv(self, argv: list[str]) -> None:
        insist(signal.SIGINT, KeyboardInterrupt)
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except KeyboardInterrupt:
            self.stderr.write("Stopped. The results that were stored so far are kept.")
            raise SystemExit(INTERRUPTED) from None


def refuse_unless_writable(*folders: Path) -> None:
    """Check, before the work begins, that results can be stored in folders. Skip a missing folder: it is created later.

    Raises:
        CommandError: a folder cannot be written.
    """
    for folder in folders:
        try:
            if folder.exists():
                result_store.refuse_unless_writable(folder)
        except OSError as error:
            text = f"Results cannot be stored in {folder} ({error.strerror}). Give this user write access first."
            raise CommandError(text, returncode=2) from error


def rung(text: str) -> str:
    """Argument type: the slug of a rung, which is a lock or strategy in the lab's catalogue."""
    if text not in LADDER:
        raise ArgumentTypeError(f"There is no rung {text}. manage.py ladder lists the rungs.")
    return text


def number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return an argument type: a whole number within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise ArgumentTypeError(f"must be a number from {least}{'' if most is None else f' to {most}'}, not {text}")
        return value

    return parse


def schedule(text: str) -> tuple[str, ...]:
    """Argument type: the choices of a schedule, separated by commas. `B*3` is `B,B,B`."""
    chosen: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        choice, times, count = part.partition("*")
        if not choice.strip():
            raise ArgumentTypeError(f"{part!r} has no choice before the *, as in B*3")
        chosen += [choice.strip()] * (number(1, MOST_REPEATS)(count) if times else 1)
    return tuple(chosen)


def schedule_text(choices: Sequence[str]) -> str:
    """Return a schedule as text, which `schedule` reads. Three or more equal choices in a row get a count: `B*3`."""
    parts: list[str] = []
    for choice, equal in groupby(choices):
        times = len(list(equal))
        parts += [choice] * times if times < SHORTEST_COUNTED else [f"{choice}*{times}"]
    return ",".join(parts)


def this_program() -> list[str]:
    """Return the words that start this program again: Python, by a relative path if possible, and `sys.argv[0]`."""
    python = Path(sys.executable)
    return [str(python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python), sys.argv[0]]


clients = number(1, len(NAMES))
"""Argument type: the number of clients in a schedule."""
