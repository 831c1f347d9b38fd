"""A burst of patient buyers over HTTP, who ask again with the same key until they have an answer."""

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

from loadtest import burst as bursts
from tests.waiting import PATIENCE

BUYERS = 16
AGAIN = {0, 429, 502, 503, 504}  # 500 is an answer that no fault excuses
PAUSE = 0.05  # seconds; sooner than the shop asks for, so that a round is short and the shop is never left alone
ANSWER = 15.0  # seconds until a buyer hangs up


@dataclass
class Wish:
    """An order that somebody wants, and everything that the shop has said to it.

    Args:
        cart: pairs of product and units, in the customer's order.
    """

    customer: int
    key: str
    sale: int
    cart: Sequence[tuple[int, int]]
    orders: set[str] = field(default_factory=set)
    refusals: set[str] = field(default_factory=set)
    requests: int = 0
    queued: bool = False
    answered: bool = False
    put_off: bool = False
    gave_up: bool = False


class Burst:
    """Buyers who take wishes from one list until it is empty. The block ends when everybody has an answer or gave up.

    Args:
        port: of the shop.
        busy: seconds in which nobody has had an answer, after which whoever hears that the shop is busy is put off: he
            wants to come again later, and has not given up.
    """

    def __init__(self, port: int, wishes: Sequence[Wish], *, busy: float = PATIENCE) -> None:
        self.wishes = wishes
        self.answered = 0
        self._busy = busy
        self._answered_at = time.monotonic()
        self._port = port
        self._left = list(reversed(wishes))
        self._more = threading.Condition()
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
        """Return when so many wishes have been answered."""
        with self._more:
            assert self._more.wait_for(lambda: self.answered >= answered, PATIENCE), f"only {self.answered} answered"

    @property
    def over(self) -> bool:
        """Whether nobody asks any more."""
        return all(buyer.done() for buyer in self._buyers)

    def _buy(self) -> None:
        client = Client(self._port)
        while wish := self._next():
            client.buy(wish, lambda: time.monotonic() > self._answered_at + self._busy)
            wish.gave_up |= not wish.answered and not wish.put_off
            with self._more:
                if wish.answered:
                    self.answered += 1
                    self._answered_at = time.monotonic()
                self._more.notify_all()
        client.hang_up()

    def _next(self) -> Wish | None:
        with self._more:
            return self._left.pop() if self._left else None


class Client:
    """One buyer's connection to the shop, made anew when it breaks."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER)

    def hang_up(self) -> None:
        self._connection.close()

    def buy(self, wish: Wish, later: Callable[[], bool]) -> None:
        """Ask until the answer is an order or a refusal, with the same key.

        Args:
            later: whether to come again later, if the shop is busy.
        """
        body = {"sale": wish.sale, "items": [{"product": product, "quantity": n} for product, n in wish.cart]}
        headers = {"Idempotency-Key": wish.key}
        wish.answered = wish.put_off = False
        deadline = time.monotonic() + PATIENCE
        while not wish.answered and not wish.put_off and time.monotonic() < deadline:
            wish.requests += 1
            status, said, location = self._ask("POST", "/api/orders/", wish.customer, headers, body)
            problem = str(said.get("type", "")).strip("/").rpartition("/")[2]
            if status == 201:
                wish.orders.add(said["id"])
                wish.answered = True
            elif status == 202:
                wish.queued = True
                self._follow(wish, location, deadline)
            elif problem == "busy" and later():
                wish.put_off = True
            elif status in AGAIN or problem == "still-running":
                time.sleep(PAUSE)
            else:
                wish.refusals.add(problem or str(status))
                wish.answered = True

    def _follow(self, wish: Wish, location: str, deadline: float) -> None:
        """Look after a queued order until it has an outcome."""
        while time.monotonic() < deadline:
            status, said, _ = self._ask("GET", location, wish.customer, {}, None)
            if status == 200 and said["state"] != "queued":
                wish.orders.add(said["id"])
                wish.answered = True
                return
            time.sleep(PAUSE)

    def _ask(
        self, method: str, path: str, customer: int, headers: dict[str, str], body: Any
    ) -> tuple[int, dict[str, Any], str]:
        """Status, body and Location of an answer; status 0 when none came, or not all of it."""
        headers = {**headers, "Authorization": f"Bearer {bursts.token(customer)}", "Content-Type": "application/json"}
        try:
            self._connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.headers.get("Location", "")
        except (OSError, HTTPException, ValueError):
            self._connection.close()
            return 0, {}, ""
