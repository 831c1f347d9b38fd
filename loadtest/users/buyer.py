"""A simulated buyer that orders over HTTP and retries when the shop asks for it."""

from __future__ import annotations

import math
import uuid
from typing import Any

import gevent
from locust import FastHttpUser, task
from locust.exception import StopUser

from loadtest.tokens import access_token

GIVE_UP_AFTER = 30.0
"""Seconds after which a buyer stops retrying an order, or stops waiting for the burst."""
ORDERED = {201, 202}
RETRY = {0, 429, 502, 503, 504}


class Buyer(FastHttpUser):
    """Places one order after another, each for a new customer, until all have ordered or the time is over."""

    connection_timeout = 5.0
    network_timeout = 30.0

    def on_start(self) -> None:
        # Wait for the burst: it reaches a Locust worker as a message, perhaps only after this buyer has started.
        self.burst = self.environment.prepared_burst.get(timeout=GIVE_UP_AFTER)
        self.leaves_at = self._now() + self.burst.seconds if self.burst.seconds else math.inf

    @task
    def buy(self) -> None:
        burst = self.burst
        customer = burst.next_customer() if self._now() < self.leaves_at else None
        if customer is None:
            raise StopUser
        # Retries use the same key. If the response was lost, the shop then finds the order and does not place it twice.
        headers = {
            "Authorization": f"Bearer {access_token(customer)}",
            "Idempotency-Key": str(uuid.uuid4()),
        }
        cart = burst.cart()
        body = burst.body(cart)
        with self.environment.burst_results.attempt() as attempt:
            deadline = min(self._now() + GIVE_UP_AFTER, self.leaves_at)
            while True:
                status, answer, retry_after = self._place(burst.path, headers, body)
                if status in ORDERED:
                    attempt.sold(answer["id"])
                elif status == 409 and answer.get("type", "").endswith("/sold-out/"):
                    attempt.refused(cart)
                elif self._now() < deadline and (status in RETRY or answer.get("type", "").endswith("/still-running/")):
                    attempt.busy()
                    gevent.sleep(retry_after)
                    continue
                return

    def _now(self) -> float:
        return float(gevent.get_hub().loop.now())

    def _place(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any], float]:
        """Send one request. Return the status, the parsed answer and the seconds until a retry.

        Locust's statistics list the request under its outcome.
        """
        with self.client.post(path, json=body, headers=headers, catch_response=True, name="order") as response:
            try:
                answer = response.json() or {}
            except (TypeError, ValueError):  # no body, or not JSON
                answer = {}
            status = response.status_code
            if status in ORDERED and "id" not in answer:
                status = 0  # the response was cut off, so the buyer does not know the id of the order
            problem = answer.get("type", "").strip("/").rpartition("/")[2]
            if status in ORDERED:
                response.success()
                response.request_meta["name"] = "order: sold"
            elif problem == "sold-out":
                response.success()
                response.request_meta["name"] = "order: sold out"
            elif status in RETRY or problem == "still-running":
                response.success()
                response.request_meta["name"] = "order: retry later"
            else:
                response.failure(f"{status} {problem}")
            return status, answer, float((response.headers or {}).get("Retry-After", 0.2))
