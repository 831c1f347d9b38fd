"""Commands, searches and flaws for the tests of schedules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from hashlib import sha1
from typing import Any

import pytest
from django.conf import settings

from inventory.requests import OrderRequest, Placement, Save
from inventory.strategies.guarded_update import GuardedUpdate
from lab.claims import verify
from lab.explorer.search import Bounds, Found, explore
from lab.explorer.terms import Invariant
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import faults_of, new_experiment
from locking.redis import connection

ONE_OF_EACH_KIND = {
    *("no-lock", "setnx", "set-nx-ex", "watch-release", "lost-wake-up", "renewal-and-a-pause"),
    *("insert-without-owner-and-expiry", "compute-and-overwrite", "lock-inside-the-transaction", "commit-after-return"),
    *("decr-and-look-at-the-sign", "redis-taken-then-the-process-dies", "redis-loses-its-last-second"),
}
"""A few flawed rungs that cover every invariant, and locks in Redis, Postgres and memory.

They also cover every fault that may happen on a playable flawed rung. Rungs whose clients are processes are left out,
because they are slow.
"""


def slow_but_for_each_kind(slugs: Iterable[str]) -> list[Any]:
    """Return parameters for these rungs, marked slow unless they are in `ONE_OF_EACH_KIND`."""
    return [pytest.param(slug, marks=() if slug in ONE_OF_EACH_KIND else pytest.mark.slow) for slug in slugs]


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a `manage.py` command in a separate process, with the real settings and a wide terminal."""
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
    variables = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", "COLUMNS": "200", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=variables)


def searched(slug: str, sandbox: Sandbox, *, clients: int | None = None, bounds: Bounds = verify.SOUND) -> Found:
    entry = LADDER[slug]
    return explore(new_experiment(entry, sandbox, clients), bounds, faults_of(entry), entry.breaks)


def broken_by(found: Found) -> Invariant | None:
    """Return the invariant that a search found broken, or None."""
    return found.run.broken if found.run else None


class SellsNothing(GuardedUpdate):
    """Reports a sale without selling."""

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        return Placement.COMMITTED


def mutate_script(name: str, old: str, new: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a script of `locking`, and load the changed script into the server."""
    original = connection.script

    def changed(asked: str) -> tuple[str, str]:
        text, digest = original(asked)
        if asked != name:
            return text, digest
        assert old in text
        text = text.replace(old, new)
        sandbox.redis.script_load(text)
        return text, sha1(text.encode(), usedforsecurity=False).hexdigest()

    monkeypatch.setattr(connection, "script", changed)
