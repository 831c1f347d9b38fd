"""A server on a clock of its own, which a test can set ahead: libfaketime stands between it and the system's clock."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from servers.valkey import Valkey
from tests.locking.redlock_support import admin
from tests.waiting import wait_for

DEBIAN = "*/faketime/libfaketime.so.1"
WHEEL = "vendor/libfaketime/src/libfaketime.so.1"


def library() -> Path | None:
    """Where libfaketime is: Debian's, or that of the PyPI package of this name. It is loaded, never linked."""
    found = list(Path("/usr/lib").glob(DEBIAN))
    if (wheel := find_spec("libfaketime")) is not None and wheel.origin is not None:
        found += Path(wheel.origin).parent.glob(WHEEL)
    return found[0] if found else None


@contextmanager
def own_clock(node: Valkey) -> Iterator[Callable[[float], None]]:
    """Start a server again on a clock of its own, and yield what sets it ahead of the true time by so many seconds.

    Only the time of day leaps, as when somebody sets it. Afterwards the server is stopped.
    """
    source = library()
    if source is None:
        missing = "libfaketime is not installed; on Debian: apt-get install libfaketime, or: pip install libfaketime"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    # Copied to where the server's user can read it, wherever it is installed.
    copy, ahead = (node.folder.with_name(name) for name in ("libfaketime.so.1", "ahead"))
    shutil.copy(source, copy)
    copy.chmod(0o755)

    def leap(seconds: float) -> None:
        new = ahead.with_suffix(".new")
        new.write_text(f"+{seconds:.0f}")
        new.chmod(0o644)
        new.replace(ahead)
        with admin(node) as client:
            wait_for(lambda: abs(client.time()[0] - time.time() - seconds) < 2, "the server's clock")

    node.stop()
    ahead.write_text("+0")
    ahead.chmod(0o644)
    node.child.env = {
        **(node.child.env or {}),
        "LD_PRELOAD": str(copy),
        "FAKETIME_TIMESTAMP_FILE": str(ahead),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    node.start()
    try:
        yield leap
    finally:
        node.stop()
