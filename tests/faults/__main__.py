"""Play fault rounds on one running shop: read a JSON line per round, and print its report as a JSON line.

This is a separate process, because pytest's process uses other settings and servers than the shop.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.runtime.settings"

import django

django.setup()

from django.conf import settings  # noqa: E402

from tests.faults.parts import running_parts  # noqa: E402
from tests.faults.rounds import play  # noqa: E402
from tests.waiting import WAIT_TIMEOUT  # noqa: E402

# Wait longer for Redis than the shop does, because a slow disk may delay Redis for seconds.
settings.CACHES["default"]["OPTIONS"]["CONNECTION_POOL_KWARGS"]["socket_timeout"] = WAIT_TIMEOUT


def main() -> None:
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr
    with running_parts() as parts:
        for line in sys.stdin:
            reports.write(json.dumps(play(parts, **json.loads(line))) + "\n")
            reports.flush()
    settings.RUN_FOLDER.delete()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
