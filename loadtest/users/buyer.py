"""A buyer: comes with a token, wants so many units, and asks again when told to."""

from __future__ import annotations

import math
import uuid
from typing import Any

import gevent
from locust import FastHttpUser, task
from locust.exception import StopUser

# How long a buyer keeps asking before giving up, in seconds.
PATIENCE = 30.0
TAKEN = {201, 202}
TRY_AGAIN = {0, 429, 502, 503, 504}


class Buyer(FastHttpUser):
    """Places one order after another, each for a customer of its own, until no customer is left to come."""

    connection_timeout = 5.0
    network_timeout = 30.0

    def on_start(self) -> None:
        # On a worker the burst comes as a message, maybe after the order to start.
        self.burst = self.environment.coming.get(timeout=PATIENCE)
        self.leaves_at = self._now() + self.burst.seconds if self.burst.seconds else math.inf

    @task
    def buy(self) -> None:
        coming = self.burst
        customer = coming.next_customer() if self._now() < self.leaves_at else None
        if customer is None:
            raise StopUser
        headers = {
            "Authorization": f"Bearer {coming.token(customer)}",
            "Idempotency-Key": str(uuid.uuid4()),
        }
        cart = coming.cart()
        body = coming.body(cart)
        tally = self.environment.tally
        with tally.attempt() as attempt:
            deadline = min(self._now() + PATIENCE, self.leaves_at)
            while True:
                status, answer, retry_after = self._place(coming.path, headers, body)
                if status in TAKEN:
                    attempt.sold(answer["id"])
                elif status == 409 and answer.get("type", "").endswith("/sold-out/"):
                    attempt.refused(cart)
                elif self._now() < deadline and (
                    status in TRY_AGAIN or answer.get("type", "").endswith("/still-running/")
                ):
                    attempt.busy()
                    # The same key again: an order whose answer was lost is found, not placed twice.
                    gevent.sleep(retry_after)
                    continue
                return

    def _now(self) -> float:
        return float(gevent.get_hub().loop.now())

    def _place(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any], float]:
        """One request; its outcome is its name in Locust's statistics."""
        with self.client.post(path, json=body, headers=headers, catch_response=True, name="order") as response:
            try:
                answer = response.json() or {}
            except (TypeError, ValueError):  # no body, or not JSON
                answer = {}
            status = response.status_code
            if status in TAKEN and "id" not in answer:
                status = 0  # cut off in the middle: whoever cannot read the answer has none
            problem = answer.get("type", "").strip("/").rpartition("/")[2]
            if status in TAKEN:
                response.success()
                response.request_meta["name"] = "order: sold"
            elif problem == "sold-out":
                response.success()
                response.request_meta["name"] = "order: sold out"
            elif status in TRY_AGAIN or problem == "still-running":
                response.success()
                response.request_meta["name"] = "order: told to try again"
            else:
                response.failure(f"{status} {problem}")
            return status, answer, float((response.headers or {}).get("Retry-After", 0.2))
