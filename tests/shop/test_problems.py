"""Problem documents tell callers what is wrong with their request, without knowledge of the code."""

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

SAID: dict[str, tuple[Callable[[Buyer], Any], int, str, str]] = {
    "an unknown host": (
        lambda buyer: buyer.get("/api/sales/", HTTP_HOST="evil.example"),
        400,
        "unknown-host",
        "The shop does not answer to the host evil.example.",
    ),
    "no slash at the end": (
        lambda buyer: buyer.post("/api/orders", {}, format="json"),
        404,
        "not-found",
        "There is nothing at /api/orders. Add a slash at the end: /api/orders/",
    ),
    "an unknown address": (
        lambda buyer: buyer.get("/api/nothing"),
        404,
        "not-found",
        "There is nothing at /api/nothing.",
    ),
    "an unknown format": (
        lambda buyer: buyer.get("/api/schema/?format=xml"),
        404,
        "not-found",
        "There is nothing at /api/schema/?format=xml.",
    ),
    "an unavailable format": (
        lambda buyer: buyer.get("/api/schema/", HTTP_ACCEPT="text/html"),
        406,
        "not-acceptable",
        "none of the formats that there are: application/vnd.oai.openapi, application/vnd.oai.openapi+json.",
    ),
    "a cursor of another list": (
        lambda buyer: buyer.get("/api/orders/?cursor=x"),
        404,
        "not-found",
        "The cursor is not one of this list.",
    ),
    "no type of the body": (
        lambda buyer: order(buyer, b"{}", content_type=""),
        415,
        "unsupported-media-type",
        "The body has no Content-Type.",
    ),
    "another type of the body": (
        lambda buyer: order(buyer, b"{}", content_type="text/plain"),
        415,
        "unsupported-media-type",
        "text/plain",
    ),
    "JSON that ends too early": (lambda buyer: order(buyer, b"{"), 400, "invalid", "The body is not valid JSON: "),
    "fields that are missing": (lambda buyer: order(buyer, b"{}"), 400, "invalid", "fields that `errors` lists"),
    "no key": (lambda buyer: buyer.post("/api/orders/"), 400, "idempotency-key", "The Idempotency-Key is missing."),
    "a malformed key": (
        lambda buyer: buyer.post("/api/orders/", headers={"Idempotency-Key": "two words"}),
        400,
        "idempotency-key",
        "The Idempotency-Key is malformed.",
    ),
}


def order(buyer: Buyer, body: bytes, content_type: str = "application/json") -> Any:
    return buyer.generic("POST", "/api/orders/", body, content_type=content_type, HTTP_IDEMPOTENCY_KEY="mine")


@pytest.mark.parametrize("what", SAID)
def test_a_problem_says_what_is_wrong_with_this_request(buyer: Buyer, what: str) -> None:
    ask, status, slug, said = SAID[what]
    assert said in assert_problem(ask(buyer), status, slug)["detail"]


@pytest.mark.parametrize("signature", [None, "t=1"])
def test_a_refused_signature_is_missing_or_malformed(visitor: APIClient, settings: Any, signature: str | None) -> None:
    settings.PAYMENT_SECRET = "shared with the payment provider"
    headers = {} if signature is None else {"Payment-Signature": signature}
    detail = assert_problem(visitor.post("/api/payments/", {}, headers=headers), 403, "signature")["detail"]
    assert ("is missing" in detail, "is malformed" in detail) == (signature is None, signature is not None)


def test_a_page_outside_the_api_says_the_same(settings: Any) -> None:
    client = Client(raise_request_exception=False)
    unknown = client.get("/<b>nothing</b>")
    assert (unknown.status_code, unknown.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "There is nothing at /&lt;b&gt;nothing&lt;/b&gt;.</p>" in unknown.content.decode()
    host = client.get("/admin/", headers={"Host": "<i>.example"})
    assert host.status_code == 400
    assert "The shop does not answer to the host &lt;i&gt;.example." in host.content.decode()
    many = client.post(
        "/admin/login/", {str(number): "" for number in range(settings.DATA_UPLOAD_MAX_NUMBER_FIELDS + 1)}
    )
    assert (many.status_code, "more than 1000 fields" in many.content.decode()) == (400, True)
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    large = client.post("/admin/login/", "x" * 11, content_type="application/x-www-form-urlencoded")
    assert (large.status_code, "longer than 10 bytes" in large.content.decode()) == (413, True)


def test_a_refusal_that_may_name_a_secret_does_not_repeat_it(rf: RequestFactory) -> None:
    answer = error_pages.bad_request(rf.get("/api/sales/"), SuspiciousOperation("/etc/secret"))
    assert assert_problem(answer, 400, "invalid")["detail"] == "The request cannot be read."


def test_no_advice_speaks_of_what_only_some_of_its_requests_have() -> None:
    """Advice for all kinds of requests speaks of the key of an order only, because other requests have no key."""
    for slug in ("busy", "unavailable", "internal"):
        assert "repeat an order with the same key" in PROBLEMS[slug].advice


@pytest.mark.parametrize("price", [10, 10.0, "10", "10,00", "10.0"])
def test_a_wrong_price_is_told_the_form(buyer: Buyer, price: Any) -> None:
    body = order_body(on_sale({"a": 1}), a=1)
    body["items"][0]["price"] = price
    document = assert_problem(buyer.order(body), 400, "invalid", pointers=["#/items/0/price"])
    assert document["errors"][0]["detail"] == 'Send a string with two decimals, such as "10.00".'


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


@pytest.mark.parametrize(
    ("header", "detail"),
    [
        ("", "Get a token at /api/token/ and send it as `Authorization: Bearer …`."),
        ("Bearer garbage", "The token is malformed or not signed by this shop."),
        ("Basic YTpi", "The Authorization header is not `Bearer` and one token."),
    ],
)
def test_without_a_valid_token_the_header_is_told(visitor: APIClient, header: str, detail: str) -> None:
    answer = visitor.get("/api/orders/", headers={"Authorization": header} if header else {})
    assert assert_problem(answer, 401, "unauthenticated")["detail"] == detail
