"""What the tests of the shop share: buyers with tokens, and a shop whose Redis or Postgres is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings
from redis import Redis
from rest_framework.test import APIClient
from rest_framework_simplejwt.tokens import AccessToken

from tests.factories import new_customer


class Buyer(APIClient):
    """A customer with a token, at the API as it is served."""

    def __init__(self, customer: int) -> None:
        token = AccessToken()
        token["user_id"] = str(customer)
        super().__init__(HTTP_AUTHORIZATION=f"Bearer {token}", raise_request_exception=False)
        self.customer = customer


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
