"""The load generator of the strategy benchmark: `python -m loadtest.bench.load < plan.json` prints one JSON object.

Each connection sends its next request as soon as the previous one is answered. The generator is a separate process, and
uses less CPU time than Locust, so that it does not distort the figures of the shop.
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
    """Send the POST requests of a plan, and return the counts.

    The plan has `url` and `path`, the number of `clients` (connections), `seconds`, and `bodies` and `tokens`, which
    are used in turn. `client_min` and `client_max` are the smallest and the largest number of responses on one
    connection. `generator_cpu` is the CPU time of this process per second.
    """
    statuses: Counter[int] = Counter()
    waits: list[float] = []
    responses: list[int] = []
    tokens, bodies = itertools.cycle(plan["tokens"]), itertools.cycle(plan["bodies"])
    started = time.monotonic()
    end = started + plan["seconds"]

    def client() -> None:
        own = 0
        connection = HTTPClient.from_url(plan["url"], connection_timeout=10, network_timeout=30)
        while (sent := time.monotonic()) < end:
            headers = {
                "Authorization": f"Bearer {next(tokens)}",
                "Content-Type": "application/json",
                "Idempotency-Key": uuid.uuid4().hex,
            }
            response = connection.post(plan["path"], body=next(bodies), headers=headers)
            response.read()
            statuses[response.status_code] += 1
            waits.append((time.monotonic() - sent) * 1000)
            own += 1
        responses.append(own)
        connection.close()

    gevent.joinall([gevent.spawn(client) for _ in range(plan["clients"])], raise_error=True)
    took = time.monotonic() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    waits.sort()
    return {
        "answers": {str(status): count for status, count in statuses.items()},
        "seconds": took,
        "p50_ms": waits[len(waits) // 2],
        "p95_ms": waits[len(waits) * 95 // 100],
        "p99_ms": waits[len(waits) * 99 // 100],
        "client_min": min(responses),
        "client_max": max(responses),
        "generator_cpu": (used.ru_utime + used.ru_stime) / took,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(json.load(sys.stdin))) + "\n")
