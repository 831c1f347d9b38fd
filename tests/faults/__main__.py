"""Plays rounds on one running shop: a line of JSON in, a line of JSON out, until there is no more to read.

A process of its own, since pytest's has other settings, and other servers, than a shop that is killed.
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

from tests.faults.parts import running  # noqa: E402
from tests.faults.rounds import play  # noqa: E402
from tests.waiting import PATIENCE  # noqa: E402

# Who looks on is more patient than the shop: a disk may stand still for seconds, and Redis with it.
settings.CACHES["default"]["OPTIONS"]["CONNECTION_POOL_KWARGS"]["socket_timeout"] = PATIENCE


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr
    with running() as parts:
        for line in sys.stdin:
            answers.write(json.dumps(play(parts, **json.loads(line))) + "\n")
            answers.flush()
    settings.RUN_FOLDER.delete()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
