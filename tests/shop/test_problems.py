"""Problem documents tell callers what is wrong with their request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import SuspiciousOperation
from django.test import Client, RequestFactory
from redis import Redis
from rest_framework.test import APIClient

from shop.api.problems import PROBLEMS
from shop.pages import error_pages
from tests.factories import on_sale
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = pytest.mark.django_db

Ask = Callable[[Buyer], Any]


def get(path: str, **headers: str) -> Ask:
    return lambda buyer: buyer.get(path, headers=headers)


def post(
    body: bytes, content_type: str = "application/json", key: str | None = "mine", path: str = "/api/orders/"
) -> Ask:
    headers = {} if key is None else {"Idempotency-Key": key}
    return lambda buyer: buyer.generic("POST", path, body, content_type=content_type, headers=headers)


FORM = "application/x-www-form-urlencoded"
FORMATS = "none of the formats that there are: application/vnd.oai.openapi, application/vnd.oai.openapi+json."
SAID: dict[str, tuple[Ask, str, str]] = {
    "an unknown host": (get("/api/", Host="evil.example"), "unknown-host", "not answer to the host evil.example."),
    "no slash at the end": (post(b"{}", path="/api/orders"), "not-found", "Add a slash at the end: /api/orders/"),
    "an unknown address": (get("/api/nothing"), "not-found", "There is nothing at /api/nothing."),
    "an unknown format": (get("/api/schema/?format=xml"), "not-found", "nothing at /api/schema/?format=xml."),
    "an unavailable format": (get("/api/schema/", Accept="text/html"), "not-acceptable", FORMATS),
    "a cursor of another list": (get("/api/orders/?cursor=x"), "not-found", "The cursor is not one of this list."),
    "no type of the body": (post(b"{}", ""), "unsupported-media-type", "The body has no Content-Type."),
    "another type of the body": (post(b"{}", "text/plain"), "unsupported-media-type", "text/plain"),
    "JSON that ends too early": (post(b"{"), "invalid", "The body is not valid JSON: "),
    "fields that are missing": (post(b"{}"), "invalid", "fields that `errors` lists"),
    "no key": (post(b"", key=None), "idempotency-key", "The Idempotency-Key is missing."),
    "a malformed key": (post(b"", key="two words"), "idempotency-key", "The Idempotency-Key is malformed."),
    "no token": (lambda _: APIClient().get("/api/orders/"), "unauthenticated", "Get a token at /api/token/ and send"),
    "an invalid token": (get("/api/orders/", Authorization="Bearer garbage"), "unauthenticated", "token is malformed"),
    "a password": (get("/api/orders/", Authorization="Basic YTpi"), "unauthenticated", "header is not `Bearer` and"),
}


@pytest.mark.parametrize("what", SAID)
def test_a_problem_says_what_is_wrong_with_this_request(buyer: Buyer, what: str) -> None:
    ask, slug, said = SAID[what]
    assert said in assert_problem(ask(buyer), PROBLEMS[slug].status, slug)["detail"]


@pytest.mark.parametrize("signature", [None, "t=1"])
def test_a_refused_signature_is_missing_or_malformed(visitor: APIClient, settings: Any, signature: str | None) -> None:
    settings.PAYMENT_SECRET = "shared with the payment provider"
    headers = {} if signature is None else {"Payment-Signature": signature}
    detail = assert_problem(visitor.post("/api/payments/", {}, headers=headers), 403, "signature")["detail"]
    assert ("is missing" in detail, "is malformed" in detail) == (signature is None, signature is not None)


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


@pytest.mark.parametrize("quantity", ["1", 1.0, True])
def test_a_wrong_quantity_is_told_the_form(buyer: Buyer, quantity: Any) -> None:
    body = order_body(on_sale({"a": 1}), a=1)
    body["items"][0]["quantity"] = quantity
    document = assert_problem(buyer.order(body), 400, "invalid", pointers=["#/items/0/quantity"])
    assert document["errors"][0]["detail"] == "Send a whole number without quotes or decimals, such as 1."


def test_over_the_order_rate_the_limit_is_told(buyer: Buyer, settings: Any, redis: Redis) -> None:
    settings.ORDER_RATE = 0
    document = assert_problem(buyer.order({}), 429, "too-fast")
    assert document["detail"] == "Try again in 1 second. A customer may send 0 order requests in a second."
