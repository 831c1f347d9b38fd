"""What the tests of schedules share: a stage of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.conf import settings

from lab.schedule.stage import Stage
from lab.schedule.stages import MOST, open_stage
from servers import Servers

NUMBER = MOST - 1
"""The stage's: the last, which visitors and commands come to last."""


@pytest.fixture(scope="module")
def stage(servers: Servers, django_db_setup: None, django_db_blocker: object) -> Iterator[Stage]:
    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        opened = open_stage(NUMBER)
        yield opened
        opened.close()


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
    # Of the shop that the settings of this run name, in a terminal that is wide.
    there = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.settings", "COLUMNS": "200", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=there)
