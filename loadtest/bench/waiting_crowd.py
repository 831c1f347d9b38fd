"""A crowd of buyers: `python -m loadtest.bench.waiting_crowd < plan.json` prints one JSON object.

Buyers arrive at a fixed rate, even if the shop is too slow for this rate. A buyer places one order. Without a waiting
room, they order immediately. With a waiting room, they enter it, poll at the times that the shop gives, and order when
it is their turn. Like a page of the shop, they repeat a request that is answered 429 or 503, with the same idempotency
key.
"""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from collections import Counter
from typing import Any

import gevent
from geventhttpclient import HTTPClient

BUSY = (429, 503)
CONNECTIONS = 4000


class Crowd:
    """The buyers of a plan, and counts of the shop's answers.

    Args:
        plan: `url` for orders; `room_url` for requests of the waiting room, None for a sale without a room; `sale`;
            `body` of an order; `tokens`, one for each buyer; `per_second`, the buyers who arrive per second; `seconds`
            after which buyers give up.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.clients = {"order": client_of(plan["url"]), "room": client_of(plan["room_url"] or plan["url"])}
        self.statuses: dict[str, Counter[int]] = {"order": Counter(), "room": Counter()}
        self.waits: dict[str, list[float]] = {"order": [], "room": []}
        self.bought: list[float] = []
        self.started = time.monotonic()
        self.end = self.started + plan["seconds"]

    def run(self) -> dict[str, Any]:
        buyers = []
        for number, token in enumerate(self.plan["tokens"]):
            gevent.sleep(max(0.0, self.started + number / self.plan["per_second"] - time.monotonic()))
            buyers.append(gevent.spawn(self.buyer, token))
        arrived = time.monotonic() - self.started
        gevent.joinall(buyers, raise_error=True)
        return {
            "buyers": len(buyers),
            "arrived_per_s": len(buyers) / arrived,
            "bought": len(self.bought),
            "seconds": max(self.bought, default=0.0),
            **{kind: self.figures(kind) for kind in ("order", "room")},
        }

    def buyer(self, token: str) -> None:
        ticket = self.wait_for_turn(token) if self.plan["room_url"] else ""
        if ticket is None:
            return
        headers = {"Idempotency-Key": uuid.uuid4().hex, "Waiting-Ticket": ticket}
        if self.ask("order", "POST", "/api/orders/", token, self.plan["body"], headers) is not None:
            self.bought.append(time.monotonic() - self.started)

    def wait_for_turn(self, token: str) -> str | None:
        """Enter the waiting room, and return the ticket when the buyer may order; None if the time is over earlier."""
        path, method = f"/api/sales/{self.plan['sale']}/waiting/", "POST"
        while (standing := self.ask("room", method, path, token)) is not None:
            if standing["ticket"]:
                return str(standing["ticket"])
            method = "GET"
            gevent.sleep(standing["poll_after"])
        return None

    def ask(self, kind: str, method: str, path: str, token: str, body: str = "", headers: Any = ()) -> Any:
        """Repeat a request while the shop is busy, and return the JSON of the answer; None when the time is over.

        A request without an answer counts as an answer 503.
        """
        while (sent := time.monotonic()) < self.end:
            all_headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **dict(headers)}
            try:
                response = self.clients[kind].request(method, path, body=body, headers=all_headers)
                content, status = response.read(), int(response.status_code)
                pause = int(str(response.get("Retry-After", "1")))
            except OSError:  # no answer
                content, status, pause = b"", 503, 1
            self.statuses[kind][status] += 1
            self.waits[kind].append((time.monotonic() - sent) * 1000)
            if status < 300:
                return json.loads(content)
            if status not in BUSY:
                raise RuntimeError(f"{status}: {content[:300]!r}")
            gevent.sleep(pause + random.random())  # noqa: S311 - no secret
        return None

    def figures(self, kind: str) -> dict[str, Any]:
        waits, statuses = sorted(self.waits[kind]), self.statuses[kind]
        if not waits:
            return {"requests": 0}
        return {
            "requests": len(waits),
            "p50_ms": waits[len(waits) // 2],
            "p99_ms": waits[len(waits) * 99 // 100],
            "busy_share": sum(statuses[status] for status in BUSY) / len(waits),
        }


def client_of(url: str) -> HTTPClient:
    return HTTPClient.from_url(url, concurrency=CONNECTIONS, connection_timeout=30, network_timeout=40)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(Crowd(json.load(sys.stdin)).run()) + "\n")
