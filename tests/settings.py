"""Settings for tests. The servers are in a temporary run folder, so that no test touches other data.

The files of a run are in memory, if there is room: on a disk, a third of the run is spent writing. No test needs a
disk, because the files of a killed process survive in memory.
"""

import atexit
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - mkdir fails if another user made the folder
PREFIX = "lu-tests-"
ROOM = 4 << 30
"""Bytes that must be free: several times what a test run needs."""


def use_memory() -> Path | None:
    """Create the folder and make it the place of temporary files for this process and its children.

    Returns:
        The folder, or None when `TMPDIR` is set or memory is unsuitable. Docker, for example, gives a container 64 MB
        and forbids executing files there.
    """
    if "TMPDIR" in os.environ:
        return None
    try:
        about = os.statvfs(MEMORY)
        if about.f_flag & os.ST_NOEXEC or about.f_bavail * about.f_frsize < ROOM:
            return None
        sweep()
        folder = MEMORY / f"{PREFIX}{os.getpid()}"
        folder.mkdir()
    except OSError:
        return None
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def sweep() -> None:
    """Remove the folders of test runs whose process has ended."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(PREFIX)).exists():
            shutil.rmtree(folder, ignore_errors=True)


# No setting of the caller's shop reaches the tests.
SETTINGS = Path(__file__).resolve().parent.parent / "shop" / "runtime" / "settings.py"
for name in re.findall(r'\benvironment\.\w+\(\s*"([A-Z_]+)"', SETTINGS.read_text(encoding="utf-8")):
    os.environ.pop(name, None)
# Write .pyc files. Without them, each of the hundreds of processes that tests start compiles the project.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
IN_MEMORY = use_memory()
os.environ["RUN_FOLDER"] = tempfile.mkdtemp(prefix="lu-test-")
os.environ.setdefault("FIRST_RUN_FOLDER", os.environ["RUN_FOLDER"])  # the same for all workers of a run
os.environ["LAB_ENABLED"] = "1"
os.environ["PAY_WITHOUT_PROVIDER"] = "1"
OWNER = os.getpid()


@atexit.register
def remove() -> None:
    if os.getpid() == OWNER:
        shutil.rmtree(IN_MEMORY or os.environ["RUN_FOLDER"], ignore_errors=True)


from shop.runtime.settings import *  # noqa: E402, F403
from shop.runtime.settings import DATABASES  # noqa: E402
from tests.waiting import WAIT_TIMEOUT  # noqa: E402

# Without this timeout, a thread that waits in Postgres for a lost lock would outlive its test.
DATABASES["default"]["OPTIONS"]["options"] = f"-c lock_timeout={3 * WAIT_TIMEOUT:.0f}s"

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Look for static files at each request. Otherwise every test client scans them all when it is made.
WHITENOISE_AUTOREFRESH = True
