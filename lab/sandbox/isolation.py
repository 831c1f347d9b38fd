"""A place for commands that must share nothing with the shop: servers of their own, and none of our settings."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from django.conf import settings

from servers import RunFolder, ServerError

PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""All that is passed on of our environment: no address, no password and no key of the shop."""
PATIENCE = 15.0
"""Seconds that the servers of a command that was killed have to end."""
LOOK_AGAIN = 0.1
"""Seconds between two attempts to remove their folder."""


def folder(name: str) -> RunFolder:
    """The run folder of that name, beside the shop's."""
    ours = settings.RUN_FOLDER.path
    return RunFolder(ours.with_name(f"{ours.name}-{name}"))


def remove(own: RunFolder) -> None:
    """Remove a folder whose command has ended. Where that was killed, its servers may still be about to end.

    Raises:
        ServerError: they did not, or it is not a run folder.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            own.delete()
        except ServerError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_AGAIN)
        else:
            return


def environment(own: RunFolder) -> Mapping[str, str]:
    """The whole environment of a command that runs on the servers of that folder."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**passed_on, "RUN_FOLDER": str(own.path), "DJANGO_SETTINGS_MODULE": "shop.runtime.settings"}
