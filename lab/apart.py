"""A place for commands that must share nothing with the shop: servers of their own, and none of our settings."""

from __future__ import annotations

import os
from collections.abc import Mapping

from django.conf import settings

from servers import RunFolder

PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""All that is passed on of our environment: no address, no password and no key of the shop."""


def folder(name: str) -> RunFolder:
    """The run folder of that name, beside the shop's."""
    ours = settings.RUN_FOLDER.path
    return RunFolder(ours.with_name(f"{ours.name}-{name}"))


def environment(own: RunFolder) -> Mapping[str, str]:
    """The whole environment of a command that runs on the servers of that folder."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**passed_on, "RUN_FOLDER": str(own.path), "DJANGO_SETTINGS_MODULE": "shop.settings"}
