"""A burst in which the web server and Valkey are killed (SIGKILL) and started again; prints what was seen as JSON.

A script, since only a main thread may start servers, and pytest's is busy.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"

import django

django.setup()

from django.conf import settings  # noqa: E402

from loadtest.rush import Rush  # noqa: E402
from loadtest.stack import Stack, answers  # noqa: E402

STOCK = 300


def main(strategy: str) -> dict[str, Any]:
    answered = 0
    more = threading.Condition()
    result: dict[str, Any] = {}

    def progress(said: dict[str, Any]) -> None:
        nonlocal answered
        with more:
            answered = said.get("answered", answered)
            more.notify_all()

    def wait_for(orders: int) -> int:
        with more:
            assert more.wait_for(lambda: answered >= orders, timeout=60), f"only {answered} orders were answered"
            return answered

    def burst() -> None:
        result.update(Rush(strategy=strategy, stock=STOCK, clients=30).run(stack.url, progress=progress))

    with Stack() as stack:
        assert stack.servers is not None
        assert stack.servers.valkey is not None
        buyers = threading.Thread(target=burst)
        buyers.start()
        seen = {"answered_before_web_was_killed": wait_for(30)}
        stack.web.kill()
        stack.web.start()
        stack.web.wait_until(lambda: answers(stack.url), timeout=30)
        seen["answered_before_valkey_was_killed"] = wait_for(answered + 30)
        stack.servers.valkey.child.kill()
        stack.servers.valkey.start()
        buyers.join(timeout=90)
        assert not buyers.is_alive(), "the burst did not end"
    settings.RUN_FOLDER.delete()
    return {**seen, **result}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])) + "\n")
