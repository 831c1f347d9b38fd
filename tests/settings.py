"""The settings of a test run: servers of its own in a folder of its own, so that no test touches anybody's data."""

import atexit
import os
import shutil
import tempfile

from tests import memory

for name in (
    "DATABASE_URL",
    "REDIS_URL",
    "SECRET_KEY",
    "PAYMENT_SECRET",
    "DEBUG",
    "REDLOCK_URLS",
    "ETCD_URL",
    "ZOOKEEPER_HOSTS",
    "LOCK_FOLDER",
):
    os.environ.pop(name, None)
IN_MEMORY = memory.use()
os.environ["RUN_FOLDER"] = tempfile.mkdtemp(prefix="lu-test-")
os.environ["LAB_ENABLED"] = "1"
OWNER = os.getpid()


@atexit.register
def remove() -> None:
    if os.getpid() == OWNER:
        shutil.rmtree(IN_MEMORY or os.environ["RUN_FOLDER"], ignore_errors=True)


from shop.runtime.settings import *  # noqa: E402, F403
from shop.runtime.settings import DATABASES  # noqa: E402
from tests.waiting import PATIENCE  # noqa: E402

# A thread that waits in Postgres for a lock that nobody gives back would outlive the test, and the run its time limit.
DATABASES["default"]["OPTIONS"]["options"] = f"-c lock_timeout={3 * PATIENCE:.0f}s"

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# A client of a test need not look for the static files: they are looked for when they are asked for.
WHITENOISE_AUTOREFRESH = True
