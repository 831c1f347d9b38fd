"""Buyers over HTTP that retry with the same idempotency key until they have an answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Any, Self

from loadtest.tokens import access_token
from tests.waiting import WAIT_TIMEOUT

BUYERS = 16
PRICE = "9.90"  # of each product
RETRY = {0, 429, 502, 503, 504}  # 500 is missing, because no fault excuses an internal error
PAUSE = 0.05  # seconds between retries; shorter than the shop's Retry-After, to keep the shop busy
RESPONSE_TIMEOUT = 15.0  # seconds


@dataclass
class Purchase:
    """An order that a customer wants (a cart of product ids and units), and all responses to it."""

    customer: int
    key: str
    sale: int
    cart: Sequence[tuple[int, int]]
    orders: set[str] = field(default_factory=set)
    refusals: set[str] = field(default_factory=set)
    requests: int = 0
    queued: bool = False
    answered: bool = False
    postponed: bool = False
    gave_up: bool = False


class Crowd:
    """Concurrent buyers that work through a list of purchases.

    The `with` block ends when each purchase is answered, postponed or given up. A buyer postpones a purchase that the
    shop answers with `busy`, if no purchase was answered for `busy` seconds. Another crowd has to repeat it.
    """

    def __init__(self, port: int, purchases: Sequence[Purchase], *, busy: float = WAIT_TIMEOUT) -> None:
        self.purchases = purchases
        self.answered = 0
        self._busy = busy
        self._answered_at = time.monotonic()
        self._port = port
        self._left = list(reversed(purchases))
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(BUYERS)
        self._buyers: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._buyers = [self._pool.submit(self._buy) for _ in range(BUYERS)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown()
        for buyer in self._buyers:
            buyer.result()

    def wait_until(self, answered: int) -> None:
        """Return when `answered` purchases have been answered."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.answered >= answered, WAIT_TIMEOUT), (
                f"only {self.answered} answered"
            )

    @property
    def done(self) -> bool:
        return all(buyer.done() for buyer in self._buyers)

    def _buy(self) -> None:
        client = ShopClient(self._port)
        while purchase := self._next():
            client.buy(purchase, lambda: time.monotonic() > self._answered_at + self._busy)
            purchase.gave_up |= not purchase.answered and not purchase.postponed
            with self._changed:
                if purchase.answered:
                    self.answered += 1
                    self._answered_at = time.monotonic()
                self._changed.notify_all()
        client.close()

    def _next(self) -> Purchase | None:
        with self._changed:
            return self._left.pop() if self._left else None


class ShopClient:
    """One buyer's HTTP connection to the shop; reconnects when the connection breaks."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=RESPONSE_TIMEOUT)

    def close(self) -> None:
        self._connection.close()

    def buy(self, purchase: Purchase, postpone: Callable[[], bool]) -> None:
        """Send the order, always with the same idempotency key, until it is answered, postponed or too late."""
        items = [{"product": product, "quantity": n, "price": PRICE} for product, n in purchase.cart]
        body = {"sale": purchase.sale, "items": items}
        headers = {"Idempotency-Key": purchase.key}
        purchase.answered = purchase.postponed = False
        deadline = time.monotonic() + WAIT_TIMEOUT
        while not purchase.answered and not purchase.postponed and time.monotonic() < deadline:
            purchase.requests += 1
            status, answer, location = self._send("POST", "/api/orders/", purchase.customer, headers, body)
            problem = str(answer.get("type", "")).strip("/").rpartition("/")[2]
            if status == 201:
                purchase.orders.add(answer["id"])
                purchase.answered = True
            elif status == 202:
                purchase.queued = True
                self._follow(purchase, location, deadline)
            elif problem == "busy" and postpone():
                purchase.postponed = True
            elif status in RETRY or problem == "still-running":
                time.sleep(PAUSE)
            else:
                purchase.refusals.add(problem or str(status))
                purchase.answered = True

    def _follow(self, purchase: Purchase, location: str, deadline: float) -> None:
        """Poll a queued order until it is saved or rejected, or until the deadline."""
        while time.monotonic() < deadline:
            status, answer, _ = self._send("GET", location, purchase.customer, {}, None)
            if status == 200 and answer["state"] != "queued":
                purchase.orders.add(answer["id"])
                purchase.answered = True
                return
            time.sleep(PAUSE)

    def _send(
        self, method: str, path: str, customer: int, headers: dict[str, str], body: Any
    ) -> tuple[int, dict[str, Any], str]:
        """Return status, body and Location of the response. The status is 0 if no complete response came."""
        headers = {**headers, "Authorization": f"Bearer {access_token(customer)}", "Content-Type": "application/json"}
        try:
            self._connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = self._connection.getresponse()
            return response.status, json.loads(response.read()), response.headers.get("Location", "")
        except (OSError, HTTPException, ValueError):
            self._connection.close()
            return 0, {}, ""
