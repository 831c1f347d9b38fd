"""The benchmark's load: so many connections, each asking again as soon as it was answered, for so many seconds.

A process of its own, lighter than Locust, so that the generator is not what is measured:
`python -m loadtest.bench.load < plan.json` prints one JSON object.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import time
import uuid
from collections import Counter
from typing import Any

import gevent
from geventhttpclient import HTTPClient


def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Ask `plan["path"]` of `plan["url"]` with `plan["body"]` over `plan["clients"]` connections.

    The tokens are used in turn. Seconds throughout; waits are milliseconds. `client_min` and `client_max` are the
    answers of the unluckiest and of the luckiest connection.
    """
    answers: Counter[int] = Counter()
    waits: list[float] = []
    turns: list[int] = []
    tokens = itertools.cycle(plan["tokens"])
    begun = time.monotonic()
    end = begun + plan["seconds"]

    def client() -> None:
        mine = 0
        connection = HTTPClient.from_url(plan["url"], connection_timeout=10, network_timeout=30)
        while (asked := time.monotonic()) < end:
            headers = {
                "Authorization": f"Bearer {next(tokens)}",
                "Content-Type": "application/json",
                "Idempotency-Key": uuid.uuid4().hex,
            }
            response = connection.post(plan["path"], body=plan["body"], headers=headers)
            response.read()
            answers[response.status_code] += 1
            waits.append((time.monotonic() - asked) * 1000)
            mine += 1
        turns.append(mine)
        connection.close()

    gevent.joinall([gevent.spawn(client) for _ in range(plan["clients"])], raise_error=True)
    took = time.monotonic() - begun
    used = resource.getrusage(resource.RUSAGE_SELF)
    waits.sort()
    return {
        "answers": {str(status): count for status, count in answers.items()},
        "seconds": took,
        "p50_ms": waits[len(waits) // 2],
        "p95_ms": waits[len(waits) * 95 // 100],
        "p99_ms": waits[len(waits) * 99 // 100],
        "client_min": min(turns),
        "client_max": max(turns),
        "generator_cpu": (used.ru_utime + used.ru_stime) / took,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(json.load(sys.stdin))) + "\n")
