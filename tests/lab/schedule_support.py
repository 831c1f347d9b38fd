"""Commands, searches and flaws for the tests of schedules."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha1

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


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, with the real settings and a wide terminal."""
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
    variables = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", "COLUMNS": "200", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=variables)


def searched(slug: str, sandbox: Sandbox, *, clients: int | None = None, bounds: Bounds = verify.SOUND) -> Found:
    entry = LADDER[slug]
    return explore(new_experiment(entry, sandbox, clients), bounds, faults_of(entry), entry.breaks)


def broken_by(found: Found) -> Invariant | None:
    """Return the invariant that a search has broken."""
    return found.run.broken if found.run else None


class SellsNothing(GuardedUpdate):
    """Says that it has sold."""

    def _place(self, order: OrderRequest, save: Save) -> Placement:
        return Placement.COMMITTED


def mutate_script(name: str, old: str, new: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a script of `locking`, and load it into the server like the other scripts."""
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
