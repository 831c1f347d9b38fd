"""Bad input: each a clear problem document, never a 500, and no order made.

None of this reaches a strategy, so these tests run in one transaction, in which a strategy would refuse to run.
"""

from __future__ import annotations

import json
from base64 import b64encode
from io import BytesIO
from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from inventory.models import StockItem
from shop.api.parsers import MAX_BODY
from shop.api.serializers import MAX_LINES, MAX_QUANTITY
from tests.factories import OnSale, on_sale, orders_in
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = pytest.mark.django_db

NOBODYS = "0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e"
"""The id of no order; the same in every run, since it is part of the names of tests."""


@pytest.fixture
def offer(db: None, redis: Any) -> OnSale:
    return on_sale({"a": 5, "b": 5})


@pytest.fixture(autouse=True)
def _nothing_was_sold(offer: OnSale) -> Any:
    yield
    assert orders_in() == 0
    assert set(StockItem.objects.values_list("on_hand", flat=True)) == {5}


def send(buyer: Buyer, body: bytes | str, content_type: str = "application/json", **options: Any) -> Any:
    """The bytes as they are."""
    return buyer.post(
        "/api/orders/", body, content_type=content_type, headers={"Idempotency-Key": str(uuid4())}, **options
    )


# Wrong values, and where they are

NO_INTEGERS = ["1", 1.0, 1.5, True, False, None, [], [1], {}, {"id": 1}, "", "\x00", "1e3"]
NO_IDS = [0, -1, -(2**63), -(2**63) - 1, 2**63, 2**64, 10**30]
NO_QUANTITIES = [0, -1, MAX_QUANTITY + 1, 2**31, 2**63, 10**30, -(10**30)]


@pytest.mark.parametrize("sale", NO_INTEGERS + NO_IDS, ids=repr)
def test_a_sale_is_a_positive_integer(buyer: Buyer, offer: OnSale, sale: Any) -> None:
    answer = buyer.order({**order_body(offer, a=1), "sale": sale})
    assert_problem(answer, 400, "invalid", pointers=["#/sale"])


@pytest.mark.parametrize("product", NO_INTEGERS + NO_IDS, ids=repr)
def test_a_product_is_a_positive_integer(buyer: Buyer, offer: OnSale, product: Any) -> None:
    body = order_body(offer, a=1)
    body["items"].append({"product": product, "quantity": 1})
    assert_problem(buyer.order(body), 400, "invalid", pointers=["#/items/1/product"])


@pytest.mark.parametrize("quantity", NO_INTEGERS + NO_QUANTITIES, ids=repr)
def test_a_quantity_is_a_small_positive_integer(buyer: Buyer, offer: OnSale, quantity: Any) -> None:
    body = order_body(offer, a=1, b=1)
    body["items"][0]["quantity"] = quantity
    assert_problem(buyer.order(body), 400, "invalid", pointers=["#/items/0/quantity"])


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity", "1e0", "0x1", "01", "1_0", "9" * 5000])
def test_numbers_that_are_no_integers_of_json_are_refused(buyer: Buyer, offer: OnSale, number: str) -> None:
    (product, _) = offer.products.values()
    body = '{"sale": %s, "items": [{"product": %s, "quantity": 1}]}'
    said = assert_problem(send(buyer, body % (number, product)), 400, "invalid")
    assert [error["pointer"] for error in said.get("errors", [])] in ([], ["#/sale"])


@pytest.mark.parametrize("missing", ["sale", "items"])
def test_what_is_missing_is_named(buyer: Buyer, offer: OnSale, missing: str) -> None:
    body = order_body(offer, a=1)
    del body[missing]
    assert_problem(buyer.order(body), 400, "invalid", pointers=[f"#/{missing}"])


@pytest.mark.parametrize("missing", ["product", "quantity"])
def test_what_is_missing_in_an_item_is_named_by_its_place(buyer: Buyer, offer: OnSale, missing: str) -> None:
    body = order_body(offer, a=1, b=1)
    del body["items"][1][missing]
    assert_problem(buyer.order(body), 400, "invalid", pointers=[f"#/items/1/{missing}"])


@pytest.mark.parametrize("items", [[], {}, {"0": {}}, "", "items", 1, None, True], ids=repr)
def test_items_are_a_list_of_something(buyer: Buyer, offer: OnSale, items: Any) -> None:
    assert_problem(buyer.order({**order_body(offer, a=1), "items": items}), 400, "invalid", pointers=["#/items"])


@pytest.mark.parametrize("item", [None, 1, "a", [], [1, 1], True], ids=repr)
def test_an_item_is_an_object(buyer: Buyer, offer: OnSale, item: Any) -> None:
    body = order_body(offer, a=1)
    body["items"].append(item)
    assert_problem(buyer.order(body), 400, "invalid", pointers=["#/items/1"])


def test_every_mistake_is_pointed_at(buyer: Buyer) -> None:
    body = {"sale": "1", "items": [{"product": 1}, {"product": 0, "quantity": True}]}
    pointers = ["#/sale", "#/items/0/quantity", "#/items/1/product", "#/items/1/quantity"]
    assert_problem(buyer.order(body), 400, "invalid", pointers=pointers)


def test_an_enormous_cart_is_refused(buyer: Buyer, offer: OnSale) -> None:
    items = [{"product": product, "quantity": 1} for product in range(1, MAX_LINES + 2)]
    said = assert_problem(buyer.order({"sale": offer.sale, "items": items}), 400, "invalid", pointers=["#/items"])
    assert str(MAX_LINES) in said["errors"][0]["detail"]
    said = assert_problem(buyer.order({"sale": offer.sale, "items": items[:-1]}), 400, "invalid", pointers=["#/items"])
    assert str(MAX_LINES) not in said["errors"][0]["detail"], "of so many it is a product that is not offered"
    assert_problem(buyer.order({"sale": offer.sale, "items": items * 1000}), 413, "too-large")


def test_a_product_that_is_named_twice_is_refused(buyer: Buyer, offer: OnSale) -> None:
    body = order_body(offer, a=1)
    body["items"] *= 2
    assert_problem(buyer.order(body), 400, "invalid", pointers=["#/items"])


def test_a_sale_and_a_product_that_are_not_there_are_pointed_at(buyer: Buyer, offer: OnSale) -> None:
    body = order_body(offer, a=1)
    for nowhere in (offer.sale + 1, 2**63 - 1):
        assert_problem(buyer.order({**body, "sale": nowhere}), 400, "invalid", pointers=["#/sale"])
    for nothing in (max(offer.products.values()) + 1, 2**63 - 1):
        items = [*body["items"], {"product": nothing, "quantity": 1}]
        assert_problem(buyer.order({**body, "items": items}), 400, "invalid", pointers=["#/items"])


# What is not an order at all


@pytest.mark.parametrize(
    "body",
    [b"{", b"}", b"nul", b'{"sale": 1,}', b"{'sale': 1}", b"\xff\xfe{\x00}\x00", b"\x00", b'"\\ud800"', b'{"sale": "\x01"}', b"[" * 5000, b'{"a":' * 5000, b"sale=1", b" "],  # noqa: E501
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_broken_json_is_refused(buyer: Buyer, body: bytes) -> None:
    said = assert_problem(send(buyer, body), 400, "invalid")
    assert "JSON" in said["detail"]


@pytest.mark.parametrize("body", [b"[]", b"[{}]", b"1", b'"text"', b"null", b"true", b"1.5"])
def test_json_that_is_not_an_object_is_refused(buyer: Buyer, body: bytes) -> None:
    assert_problem(send(buyer, body), 400, "invalid", pointers=["#"])


def test_no_body_is_an_order_without_anything(buyer: Buyer) -> None:
    assert_problem(send(buyer, b""), 400, "invalid", pointers=["#/sale", "#/items"])


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/xml", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "text/json", "nonsense", "application/json-patch+json"],  # noqa: E501
)  # fmt: skip
def test_a_body_that_does_not_say_that_it_is_json_is_415(buyer: Buyer, offer: OnSale, content_type: str) -> None:
    assert_problem(send(buyer, json.dumps(order_body(offer, a=1)), content_type), 415, "unsupported-media-type")


# Size


class Counted(BytesIO):
    """A body that counts what is read of it."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.taken = 0

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(size)
        self.taken += len(piece)
        return piece


TEN_MB = 10 * 1024 * 1024


@pytest.mark.parametrize("path", ["/api/orders/", "/api/token/", "/api/token/refresh/"])
def test_of_a_body_of_10_mb_no_more_is_read_than_the_bound(buyer: Buyer, path: str) -> None:
    body = Counted(b'{"sale": "' + b"a" * TEN_MB + b'"}')
    answer = buyer.post(
        path,
        content_type="application/json",
        headers={"Idempotency-Key": "mine"},
        **{"wsgi.input": body, "CONTENT_LENGTH": str(TEN_MB)},  # type: ignore[arg-type]
    )
    assert_problem(answer, 413, "too-large")
    assert body.taken == MAX_BODY + 1


@pytest.mark.parametrize(
    ("authorization", "content_type", "status", "slug"),
    [
        pytest.param("", "application/json", 401, "unauthenticated", id="without a token"),
        pytest.param(None, "text/plain", 415, "unsupported-media-type", id="not JSON"),
    ],
)
def test_of_a_body_that_nobody_asked_for_nothing_is_read(
    buyer: Buyer, authorization: str | None, content_type: str, status: int, slug: str
) -> None:
    body = Counted(b"a" * TEN_MB)
    headers = {"Idempotency-Key": "mine"} | ({} if authorization is None else {"Authorization": authorization})
    answer = buyer.post(
        "/api/orders/",
        content_type=content_type,
        headers=headers,
        **{"wsgi.input": body, "CONTENT_LENGTH": str(TEN_MB)},  # type: ignore[arg-type]
    )
    assert_problem(answer, status, slug)
    assert body.taken == 0


def test_a_body_of_exactly_the_bound_is_read(buyer: Buyer) -> None:
    fits = b'{"sale": 0}'.ljust(MAX_BODY)
    assert_problem(send(buyer, fits), 400, "invalid", pointers=["#/sale", "#/items"])
    assert_problem(send(buyer, fits + b" "), 413, "too-large")


@pytest.mark.parametrize("length", ["-1", "nonsense", ""])
def test_a_length_that_is_none_is_no_body(buyer: Buyer, offer: OnSale, length: str) -> None:
    assert_problem(send(buyer, json.dumps(order_body(offer, a=1)), CONTENT_LENGTH=length), 400, "invalid")


# Idempotency-Key


@pytest.mark.parametrize(
    "key",
    ["", " ", '""', '"', '"half', 'half"', "a" * 129, f'"{"a" * 129}"', "two words", "a,b", "a/b", "schlüssel", "鍵", "a\x00b", "\x00", "'a'", '""a""', "a\tb", "%41"],  # noqa: E501
    ids=ascii,
)  # fmt: skip
def test_a_key_of_another_form_is_refused(buyer: Buyer, offer: OnSale, key: str) -> None:
    said = assert_problem(buyer.order(order_body(offer, a=1), key=key), 400, "idempotency-key")
    assert "[A-Za-z0-9._~:-]{1,128}" in said["detail"]


def test_an_order_without_a_key_is_refused(buyer: Buyer, offer: OnSale) -> None:
    answer = buyer.post("/api/orders/", order_body(offer, a=1), format="json")
    assert_problem(answer, 400, "idempotency-key")


# Addresses


@pytest.mark.parametrize(
    "path",
    [
        "/api/",
        "/api/nothing/",
        "/api/nothing",
        "/api/orders/1/",
        "/api/orders/not-a-uuid/",
        "/api/orders/%00/",
        f"/api/orders/{NOBODYS}/refund/",
        "/api/sales/a/",
        "/api/sales/-1/",
        "/api/sales/0/",
        "/api/sales/1.0/",
        "/api/sales/%00/",
        f"/api/sales/{2**63}/",
        f"/api/sales/{10**30}/",
        f"/api/sales/{'9' * 5000}/",
        f"/api/orders/{NOBODYS}/",
        "/api/problems/nothing/",
        "/api/problems/%00/",
        "/lab/nothing/",
    ],
    ids=lambda path: path[:40],
)
def test_an_address_where_nothing_is_is_a_problem_document(buyer: Buyer, path: str) -> None:
    assert_problem(buyer.get(path, headers={"Accept": "text/html"}), 404, "not-found")


def test_elsewhere_it_is_a_page(buyer: Buyer) -> None:
    answer = buyer.get("/nothing/")
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")


@pytest.mark.parametrize(
    "cursor",
    [
        "nonsense",
        "%00",
        "schlüssel",
        b64encode(b"p=not-a-uuid").decode(),
        b64encode(b"p=\x00").decode(),
        b64encode(b"p=").decode(),
        b64encode(b"o=-1").decode(),
        b64encode(b"o=many").decode(),
        b64encode(b"r=2&p=1").decode(),
        b64encode(b"r=x").decode(),
    ],
)
def test_a_cursor_that_nobody_was_given_is_not_found(buyer: Buyer, cursor: str) -> None:
    assert_problem(buyer.get("/api/orders/", {"cursor": cursor}), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("put", "/api/orders/"),
        ("patch", "/api/orders/"),
        ("delete", "/api/orders/"),
        ("trace", "/api/orders/"),
        ("post", f"/api/orders/{NOBODYS}/"),
        ("delete", f"/api/orders/{NOBODYS}/"),
        ("get", f"/api/orders/{NOBODYS}/pay/"),
        ("delete", f"/api/orders/{NOBODYS}/cancel/"),
        ("get", "/api/payments/"),
        ("post", "/api/sales/"),
        ("delete", "/api/sales/1/"),
        ("get", "/api/token/"),
        ("put", "/api/token/refresh/"),
        ("post", "/api/problems/invalid/"),
        ("post", "/api/schema/"),
        ("post", "/api/docs/"),
    ],
)
def test_a_method_that_is_not_there_is_405_and_says_which_are(buyer: Buyer, method: str, path: str) -> None:
    answer = getattr(buyer, method)(path)
    assert_problem(answer, 405, "method-not-allowed")
    assert answer.headers["Allow"]


@pytest.mark.parametrize("path", ["/api/orders/", f"/api/orders/{NOBODYS}/", "/api/sales/", "/api/token/"])
def test_options_and_head_are_answered(buyer: Buyer, path: str) -> None:
    assert buyer.options(path).status_code == 200
    assert buyer.head(path).status_code < 500


# The schema and its page, which negotiate


@pytest.mark.parametrize(
    ("path", "accept"),
    [("/api/schema/", "text/html"), ("/api/schema/", "application/xml"), ("/api/docs/", "application/json")],
)
def test_a_form_that_there_is_not_is_406(visitor: APIClient, path: str, accept: str) -> None:
    assert_problem(visitor.get(path, headers={"Accept": accept}), 406, "not-acceptable")


@pytest.mark.parametrize(
    ("path", "accept", "content_type"),
    [
        ("/api/schema/", "", "application/vnd.oai.openapi; charset=utf-8"),
        ("/api/schema/", "application/vnd.oai.openapi+json", "application/vnd.oai.openapi+json"),
        ("/api/schema/?format=json", "", "application/vnd.oai.openapi+json"),
        ("/api/docs/", "text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8"),
    ],
)
def test_the_schema_and_its_page_are_there(visitor: APIClient, path: str, accept: str, content_type: str) -> None:
    answer = visitor.get(path, headers={"Accept": accept} if accept else {})
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, content_type)


# Our own mistake


def test_a_mistake_of_ours_is_a_problem_document_that_tells_nothing_of_it(
    buyer: Buyer, offer: OnSale, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise KeyError("a secret")

    monkeypatch.setattr("shop.api.views.place_order", fail)
    answer = buyer.order(order_body(offer, a=1))
    assert_problem(answer, 500, "internal")
    assert b"secret" not in answer.content
