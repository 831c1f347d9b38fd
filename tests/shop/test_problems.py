"""Problem documents tell callers what is wrong with their request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import SuspiciousOperation
from django.test import Client, RequestFactory
from rest_framework.test import APIClient

from shop.api.problems import PROBLEMS
from shop.pages import error_pages
from tests.shop.conftest import Buyer, assert_problem

pytestmark = pytest.mark.django_db

Ask = Callable[[Buyer], Any]


def get(path: str, **headers: str) -> Ask:
    return lambda buyer: buyer.get(path, headers=headers)


def post(body: bytes, content_type: str = "application/json", path: str = "/api/orders/") -> Ask:
    headers = {"Idempotency-Key": "mine"}
    return lambda buyer: buyer.generic("POST", path, body, content_type=content_type, headers=headers)


FORM = "application/x-www-form-urlencoded"
FORMATS = "none of the formats that there are: application/vnd.oai.openapi, application/vnd.oai.openapi+json."
SAID: dict[str, tuple[Ask, str, str]] = {
    "an unknown host": (get("/api/", Host="evil.example"), "unknown-host", "not answer to the host evil.example."),
    "no slash at the end": (post(b"{}", path="/api/orders"), "not-found", "Add a slash at the end: /api/orders/"),
    "an unknown address": (get("/api/nothing"), "not-found", "There is nothing at /api/nothing."),
    "an unknown format": (get("/api/schema/?format=xml"), "not-found", "nothing at /api/schema/?format=xml."),
    "an unavailable format": (get("/api/schema/", Accept="text/html"), "not-acceptable", FORMATS),
    "another method": (lambda buyer: buyer.options("/api/docs/"), "method-not-allowed", "OPTIONS"),
    "no type of the body": (post(b"{}", ""), "unsupported-media-type", "The body has no Content-Type."),
    "another type of the body": (post(b"{}", "text/plain"), "unsupported-media-type", "text/plain"),
    "fields that are missing": (post(b"{}"), "invalid", "fields that `errors` lists"),
    "no token": (lambda _: APIClient().get("/api/orders/"), "unauthenticated", "Get a token at /api/token/ and send"),
    "an invalid token": (get("/api/orders/", Authorization="Bearer garbage"), "unauthenticated", "token is malformed"),
    "a password": (get("/api/orders/", Authorization="Basic YTpi"), "unauthenticated", "header is not `Bearer` and"),
}


@pytest.mark.parametrize("what", SAID)
def test_a_problem_says_what_is_wrong_with_this_request(buyer: Buyer, what: str) -> None:
    ask, slug, said = SAID[what]
    assert said in assert_problem(ask(buyer), PROBLEMS[slug].status, slug)["detail"]


def test_a_page_outside_the_api_says_the_same(settings: Any) -> None:
    client = Client(raise_request_exception=False)
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS, settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1, 10
    for status, said, answer in (
        (404, "There is nothing at /&lt;b&gt;nothing&lt;/b&gt;.</p>", client.get("/<b>nothing</b>")),
        (400, "not answer to the host &lt;i&gt;.example.", client.get("/admin/", headers={"Host": "<i>.example"})),
        (400, "more than 1 fields", client.post("/admin/login/", "a=&b=", content_type=FORM)),
        (413, "longer than 10 bytes", client.post("/admin/login/", "x" * 11, content_type=FORM)),
    ):
        assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
        assert said in answer.text


def test_a_refusal_that_may_name_a_secret_does_not_repeat_it(rf: RequestFactory) -> None:
    answer = error_pages.bad_request(rf.get("/api/sales/"), SuspiciousOperation("/etc/secret"))
    assert assert_problem(answer, 400, "invalid")["detail"] == "The request cannot be read."
