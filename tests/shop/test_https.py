"""HTTPS that ends at a proxy, the Content-Security-Policy of pages, and the middleware of the API."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as given
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.test import RequestFactory, override_settings
from redis import Redis
from rest_framework.test import APIClient

from loadtest.tokens import access_token
from shop.api.pagination import NewestFirst
from shop.runtime.csp import ADMIN, HEADER, PAGES, STRICT
from shop.runtime.wsgi import Chain, application
from tests.factories import new_customer, on_sale
from tests.shop.conftest import Buyer, buy, logged_in
from tests.shop.test_settings import read

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

NAMES = (
    *("SECURE_PROXY_SSL_HEADER", "USE_X_FORWARDED_HOST", "SECURE_SSL_REDIRECT", "SECURE_REDIRECT_EXEMPT"),
    *("SECURE_HSTS_SECONDS", "SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE"),
)
PROXY = {"HTTP_X_FORWARDED_PROTO": "https", "HTTP_X_FORWARDED_HOST": "shop.example", "HTTP_HOST": "testserver"}


@pytest.fixture
def https(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Use the settings that HTTPS=1 produces, or the value in the parameter."""
    found = read(monkeypatch, HTTPS=getattr(request, "param", "1"))
    hosts = [*given.ALLOWED_HOSTS, "testserver", "shop.example"]
    with override_settings(ALLOWED_HOSTS=hosts, **{name: found[name] for name in NAMES if name in found}):
        yield


@pytest.mark.parametrize(
    ("https", "address"), [("1", "https://shop.example"), ("0", "http://testserver")], indirect=["https"]
)
def test_links_follow_the_proxy(https: None, buyer: Buyer, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Negative control: without HTTPS=1, clients cannot choose the links by their headers."""
    monkeypatch.setattr(NewestFirst, "page_size", 1)
    offer = on_sale({"a": 5})
    for _ in range(2):
        buy(offer, buyer.customer, a=1)
    following = buyer.get("/api/orders/", **PROXY).json()["next"]
    assert following.startswith(f"{address}/api/orders/?cursor=")


def test_cookies_and_redirects_are_those_of_https(https: None) -> None:
    client = APIClient()
    plain = client.get("/api/sales/", HTTP_HOST="shop.example")
    assert (plain.status_code, plain.headers["Location"]) == (301, "https://shop.example/api/sales/")
    assert client.get("/health/").status_code == 200, "the health check asks without the proxy"
    page = client.get("/admin/login/", **PROXY)
    assert page.headers["Strict-Transport-Security"] == "max-age=31536000"
    assert page.cookies["csrftoken"]["secure"]
    evil = client.get("/api/sales/", **{**PROXY, "HTTP_X_FORWARDED_HOST": "evil.example"})
    assert (evil.status_code, evil.json()["type"]) == (400, "/api/problems/unknown-host/")


def test_every_page_has_its_policy(redis: Redis) -> None:
    client = logged_in(User.objects.create_superuser("root").pk)
    policies = {
        path: client.get(path).headers.get(HEADER)
        for path in ("/admin/", "/admin/login/", "/admin/shop/sale/", "/api/docs/", "/", "/nothing/", "/api/sales/")
    }
    assert policies == {
        **dict.fromkeys(("/admin/", "/admin/login/", "/admin/shop/sale/"), ADMIN),
        "/api/docs/": PAGES,
        **dict.fromkeys(("/", "/nothing/"), STRICT),
        "/api/sales/": None,
    }


# The API's middleware answers as the pages' middleware does, with fewer steps

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


@pytest.fixture
def shared_connection() -> Any:
    """Keep the test's connection open, which a request would otherwise close."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.parametrize("case", REQUESTS)
def test_the_api_answers_the_same_with_fewer_middlewares(case: str, shared_connection: None) -> None:
    on_sale({"a": 1})
    pages = Chain(given.MIDDLEWARE)
    assert answer(application, **REQUESTS[case]) == answer(pages, **REQUESTS[case])


def test_the_chain_of_the_api_is_a_part_of_that_of_the_pages() -> None:
    assert set(given.API_MIDDLEWARE) < set(given.MIDDLEWARE)
    assert "django.contrib.sessions.middleware.SessionMiddleware" not in given.API_MIDDLEWARE


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
