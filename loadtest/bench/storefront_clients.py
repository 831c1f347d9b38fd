"""Clients of the storefront: `python -m loadtest.bench.storefront_clients < plan.json` prints one JSON object.

They send requests at a fixed rate, or each request as soon as the previous request is answered. They parse only the
status, the end and the ETag of an answer: an HTTP library takes more CPU time for a request than nginx, and would limit
the rate.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import resource
import sys
import time
from collections import Counter
from typing import Any, cast

LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)")
ETAG = re.compile(rb"(?i)\r\netag: ([^\r]+)")
LAST = re.compile(rb"(?i)\r\nconnection: close")
STARTED = "started"
"""The line that this program writes when all clients are connected."""


class PageClients:
    """All clients of the plan, and counts of their answers.

    Args:
        plan: `port` on this machine; `requests`, pairs of head (without its empty line) and body, which are sent in
            turn; `rate` in requests per second for all together, or null; `connections`; `seconds`; `conditional`,
            whether a client sends the ETag of its last answer, so that it gets only a changed document.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.requests = itertools.cycle([(head.encode(), body.encode()) for head, body in plan["requests"]])
        self.statuses: Counter[str] = Counter()
        self.waits: list[float] = []
        self.started = 0.0
        self.end = 0.0

    async def run(self) -> dict[str, Any]:
        """Send requests until the time is over. Return the figures when all requests are answered."""
        clients = [PageClient(self, number) for number in range(self.plan["connections"])]
        for client in clients:
            await client.connect()
        sys.stdout.write(f"{STARTED}\n")
        sys.stdout.flush()
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.started = time.monotonic()
        self.end = self.started + self.plan["seconds"]
        for client in clients:
            client.plan_next()
        await asyncio.gather(*(client.finished for client in clients))
        took = time.monotonic() - self.started
        spent = resource.getrusage(resource.RUSAGE_SELF)
        self.waits.sort()
        return {
            "answers": dict(self.statuses),
            "seconds": took,
            "per_s": len(self.waits) / took,
            "p50_ms": self.waits[len(self.waits) // 2],
            "p99_ms": self.waits[len(self.waits) * 99 // 100],
            "generator_cpu": (spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime) / took,
        }


class PageClient(asyncio.Protocol):
    """One connection. It sends a request when the request is due and the previous request has been answered.

    Args:
        clients: all clients.
        number: index of this client, from 0, which determines when its requests are due.
    """

    def __init__(self, clients: PageClients, number: int) -> None:
        self.clients = clients
        self.turns = itertools.count(number, clients.plan["connections"])
        self.loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = self.loop.create_future()
        self.due = 0.0
        self.condition = b""
        self.answer = b""
        self.waiting = False

    async def connect(self) -> None:
        await self.loop.create_connection(lambda: self, "127.0.0.1", self.clients.plan["port"])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def plan_next(self) -> None:
        """Send the next request now or when it is due. After the end of the plan, close the connection."""
        now, rate = time.monotonic(), self.clients.plan["rate"]
        self.due = self.clients.started + next(self.turns) / rate if rate else now
        if max(now, self.due) >= self.clients.end:
            self.finished.set_result(None)
            self.transport.close()
        elif self.due > now:
            self.loop.call_at(self.due, self.send)
        else:
            self.send()

    def send(self) -> None:
        head, body = next(self.clients.requests)
        self.waiting = True
        self.transport.write(head + self.condition + b"\r\n" + body)

    def data_received(self, data: bytes) -> None:
        self.answer += data
        if not is_complete(self.answer):
            return
        answer, self.answer = self.answer, b""
        self.waiting = False
        self.count(answer[9:12].decode())
        if self.clients.plan["conditional"] and (etag := ETAG.search(answer)):
            self.condition = b"If-None-Match: " + etag[1] + b"\r\n"
        # nginx closes a connection after a thousand requests.
        if LAST.search(answer.partition(b"\r\n\r\n")[0]):
            self.transport.close()
        else:
            self.plan_next()

    def connection_lost(self, error: Exception | None) -> None:
        if self.waiting:
            self.waiting = False
            self.count("no answer")
        if not self.finished.done():
            self.reconnecting = self.loop.create_task(self.reconnect())

    async def reconnect(self) -> None:
        try:
            await self.connect()
            self.plan_next()
        except OSError as error:
            self.finished.set_exception(error)

    def count(self, status: str) -> None:
        """Count an answer, and the time since its request was due. So a request that was sent late counts as slow."""
        self.clients.statuses[status] += 1
        self.clients.waits.append((time.monotonic() - self.due) * 1000)


def is_complete(answer: bytes) -> bool:
    """Return whether an answer has arrived in full. Nothing follows it, because one request is sent at a time."""
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    if length := LENGTH.search(head):
        return len(body) >= int(length[1])
    return b"chunked" not in head or body.endswith(b"\r\n0\r\n\r\n")


async def main() -> None:
    clients = PageClients(json.load(sys.stdin))
    sys.stdout.write(json.dumps(await clients.run()) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
