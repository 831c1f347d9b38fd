"""Run folders and environments for commands that must not share servers or settings with the shop."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from django.conf import settings

from servers import RunFolder, ServerError

PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""The environment variables of this process that a command with servers of its own inherits.

None of them has an address, password or key of the shop.
"""
STOP_TIMEOUT = 15.0
"""Seconds within which the servers of a killed command must end."""
RETRY_DELAY = 0.1
"""Seconds between two attempts to remove a run folder whose servers have not ended."""


def folder(name: str) -> RunFolder:
    """Return the run folder with this name. It is next to the shop's run folder."""
    shop = settings.RUN_FOLDER.path
    return RunFolder(shop.with_name(f"{shop.name}-{name}"))


def remove(run: RunFolder) -> None:
    """Remove the run folder of a command that has ended. If the command was killed, wait until its servers have ended.

    Raises:
        ServerError: the servers have not ended in time, the folder is not a run folder, or it contains unknown files.
    """
    until = time.monotonic() + STOP_TIMEOUT
    while True:
        try:
            run.delete()
        except ServerError:
            if time.monotonic() > until:
                raise
            time.sleep(RETRY_DELAY)
        else:
            return


def environment(run: RunFolder) -> Mapping[str, str]:
    """Return the complete environment of a command that uses the servers of this run folder."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**passed_on, "RUN_FOLDER": str(run.path), "DJANGO_SETTINGS_MODULE": "shop.runtime.settings"}
