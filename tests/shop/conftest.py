"""What the tests of the shop share: buyers with tokens, and a shop whose Redis or Postgres is gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings
from redis import Redis
from rest_framework.test import APIClient
from rest_framework_simplejwt.tokens import AccessToken

from tests.factories import OnSale, new_customer


class Buyer(APIClient):
    """A customer with a token, at the API as it is served."""

    def __init__(self, customer: int) -> None:
        self.customer = customer
        self.token = AccessToken()
        self.token["user_id"] = str(customer)
        super().__init__(HTTP_AUTHORIZATION=f"Bearer {self.token}", raise_request_exception=False)

    def order(self, body: Any, key: str | None = None, **options: Any) -> Any:
        """POST an order, of a new key unless there is one; `None` as the body is no body."""
        headers = {"Idempotency-Key": str(uuid4()) if key is None else key, **options.pop("headers", {})}
        return self.post("/api/orders/", body, format="json", headers=headers, **options)


@pytest.fixture
def visitor(db: None, redis: Redis) -> APIClient:
    """Somebody without a token."""
    return APIClient(raise_request_exception=False)


@pytest.fixture
def buyer(db: None, redis: Redis) -> Buyer:
    return Buyer(new_customer())


@pytest.fixture
def other_buyer(db: None, redis: Redis) -> Buyer:
    return Buyer(new_customer())


Gone = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def redis_gone(redis: Redis, tmp_path: Path) -> Gone:
    """Inside the context nobody answers where the shop looks for Redis."""

    @contextmanager
    def gone() -> Iterator[None]:
        caches = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": f"unix://{tmp_path}/none"}}
        with override_settings(CACHES=caches):
            yield

    return gone


@pytest.fixture
def postgres_gone(tmp_path: Path) -> Gone:
    """Inside the context nobody answers where this thread looks for Postgres."""

    @contextmanager
    def gone() -> Iterator[None]:
        there = connections["default"]
        connections["default"] = type(there)({**there.settings_dict, "HOST": str(tmp_path)}, "default")
        try:
            yield
        finally:
            connections["default"].close()
            connections["default"] = there

    return gone


ADVISES_TO_WAIT = {"still-queued", "still-running", "busy", "not-loaded", "unavailable", "too-fast", "unknown-order"}


def assert_problem(response: Any, status: int, slug: str, *, pointers: Sequence[str] | None = None) -> dict[str, Any]:
    """The answer is this problem document, complete, and its type is an address that explains it.

    Args:
        pointers: what its `errors` point at, in order; None where it does not matter.
    """
    assert (response.status_code, response.headers["Content-Type"]) == (status, "application/problem+json")
    document: dict[str, Any] = json.loads(response.content)
    assert (document["type"], document["status"]) == (f"/api/problems/{slug}/", status)
    assert isinstance(document["title"], str)
    assert document["title"]
    assert isinstance(document["detail"], str)
    assert document["detail"]
    assert ("Retry-After" in response.headers) is (slug in ADVISES_TO_WAIT)
    if "Retry-After" in response.headers:
        assert int(response.headers["Retry-After"]) >= 1
    assert ("WWW-Authenticate" in response.headers) is (status == 401)
    explained = APIClient().get(document["type"])
    assert (explained.status_code, explained.json()["title"]) == (200, document["title"])
    if pointers is not None:
        assert [error["pointer"] for error in document["errors"]] == list(pointers)
        assert all(error["detail"] for error in document["errors"])
    return document


def order_body(offer: OnSale, **units: int) -> dict[str, Any]:
    """The JSON of an order."""
    items = [{"product": product, "quantity": quantity} for product, quantity in offer.cart(**units).items()]
    return {"sale": offer.sale, "items": items}
