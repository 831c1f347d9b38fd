"""The API's middleware answers as the pages' middleware does, with fewer steps."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.test import RequestFactory
from redis import Redis

from loadtest.tokens import access_token
from shop.runtime.wsgi import Chain, application
from tests.factories import new_customer, on_sale

pytestmark = pytest.mark.django_db(transaction=True)

REQUESTS: dict[str, dict[str, Any]] = {
    "a list of sales": {"path": "/api/sales/"},
    "the documentation": {"path": "/api/docs/"},
    "the schema": {"path": "/api/schema/?format=json"},
    "no token": {"path": "/api/orders/"},
    "no such address": {"path": "/api/nothing/"},
    "a missing slash": {"path": "/api/orders"},
    "an unknown host": {"path": "/api/sales/", "HTTP_HOST": "evil.example"},
    "a wrong method": {"path": "/api/sales/", "REQUEST_METHOD": "DELETE"},
    "a secure request": {"path": "/api/sales/", "wsgi.url_scheme": "https"},
}


@pytest.fixture(autouse=True)
def _shared_connection() -> Any:
    """Keep the test's connection open, which a request would otherwise close."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.parametrize("case", REQUESTS)
def test_the_api_answers_the_same_with_fewer_middlewares(case: str, redis: Redis) -> None:
    on_sale({"a": 1})
    pages = Chain(settings.MIDDLEWARE)
    assert answer(application, **REQUESTS[case]) == answer(pages, **REQUESTS[case])


def test_the_chain_of_the_api_is_a_part_of_that_of_the_pages() -> None:
    assert set(settings.API_MIDDLEWARE) < set(settings.MIDDLEWARE)
    assert "django.contrib.sessions.middleware.SessionMiddleware" not in settings.API_MIDDLEWARE


def answer(handler: Any, path: str, **environ: Any) -> tuple[str, dict[str, str], bytes]:
    asked = RequestFactory().get(path, HTTP_HOST="localhost").environ
    token = f"Bearer {access_token(new_customer())}" if path == "/api/orders" else ""
    started: list[Any] = []
    headers = {"HTTP_AUTHORIZATION": token} if token else {}
    response = handler({**asked, **headers, **environ}, lambda status, sent: started.append((status, dict(sent))))
    body = b"".join(response)
    response.close()
    ((status, sent),) = started
    return status, sent, body
