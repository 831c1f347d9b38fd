"""Bad input: each request gets a clear problem document, never a 500, and no order is created.

Tests may run inside a transaction, because none of these requests reaches a strategy.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import RequestFactory
from rest_framework.test import APIClient

from inventory.models import StockItem
from shop.api.parsers import MAX_BODY
from shop.api.serializers import MAX_ITEMS, MAX_QUANTITY
from tests.factories import OnSale, on_sale, orders_in
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = pytest.mark.django_db

UNKNOWN = "0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e"
"""An id that belongs to no order. It is constant, because test names contain it."""


@pytest.fixture
def offer(db: None, redis: Any) -> OnSale:
    return on_sale({"a": 5, "b": 5})


@pytest.fixture(autouse=True)
def _nothing_was_sold(offer: OnSale, settings: Any) -> Any:
    settings.ORDER_RATE = 1000
    yield
    assert orders_in() == 0
    assert set(StockItem.objects.values_list("on_hand", flat=True)) == {5}


def send(buyer: Buyer, body: bytes | str, content_type: str = "application/json", **options: Any) -> Any:
    headers = {"Idempotency-Key": str(uuid4())}
    return buyer.post("/api/orders/", body, content_type=content_type, headers=headers, **options)


NO_INTEGERS = ["1", 1.0, 1.5, True, False, None, [], [1], {}, {"id": 1}, "", "\x00", "1e3"]
NO_IDS = [0, -1, -(2**63), -(2**63) - 1, 2**63, 2**64, 10**30]
NO_QUANTITIES = [0, -1, MAX_QUANTITY + 1, 2**31, 2**63, 10**30, -(10**30)]
ITEM = {"product": 1, "quantity": 1, "price": "9.90"}


def invalid_bodies() -> Iterator[Any]:
    """Yield each invalid body with the fields that the response must name."""
    for value in NO_INTEGERS + NO_IDS:
        yield {"sale": value, "items": [ITEM]}, ["#/sale"]
        yield {"sale": 1, "items": [ITEM, {**ITEM, "product": value}]}, ["#/items/1/product"]
    for value in NO_INTEGERS + NO_QUANTITIES:
        yield {"sale": 1, "items": [{**ITEM, "quantity": value}, ITEM]}, ["#/items/0/quantity"]
    for items in ([], {}, {"0": {}}, "", "items", 1, None, True):
        yield {"sale": 1, "items": items}, ["#/items"]
    for item in (None, 1, "a", [], [1, 1], True):
        yield {"sale": 1, "items": [ITEM, item]}, ["#/items/1"]
    for body in ([], [{}], 1, "text", None, True, 1.5):
        yield body, ["#"]
    yield {}, ["#/sale", "#/items"]
    yield {"items": [ITEM]}, ["#/sale"]
    yield {"sale": 1}, ["#/items"]
    yield {"sale": 1, "items": [ITEM, ITEM]}, ["#/items"]
    for missing in ITEM:
        yield {"sale": 1, "items": [{name: ITEM[name] for name in ITEM if name != missing}]}, [f"#/items/0/{missing}"]
    several = ["#/sale", "#/items/0/quantity", "#/items/0/price", "#/items/1/product", "#/items/1/quantity"]
    yield {"sale": "1", "items": [{"product": 1}, {**ITEM, "product": 0, "quantity": True}]}, several


def test_every_invalid_field_is_named(buyer: Buyer, subtests: pytest.Subtests) -> None:
    for body, pointers in invalid_bodies():
        with subtests.test(body=repr(body)):
            assert_problem(send(buyer, json.dumps(body)), 400, "invalid", pointers=pointers)


def test_numbers_must_be_json_integers(buyer: Buyer, subtests: pytest.Subtests) -> None:
    body = '{"sale": %s, "items": [{"product": 1, "quantity": 1, "price": "9.90"}]}'
    for number in ("1e400", "-1e400", "NaN", "Infinity", "1e0", "0x1", "01", "1_0", "9" * 5000):
        with subtests.test(number=number[:10]):
            problem = assert_problem(send(buyer, body % number), 400, "invalid")
            assert [error["pointer"] for error in problem.get("errors", [])] in ([], ["#/sale"])
    # Arrays in 900 levels are valid JSON. They are refused, because validating them would exhaust the stack.
    deep = send(buyer, (body % 1).replace('"9.90"', "[" * 900 + "]" * 900))
    assert "arrays and objects" in assert_problem(deep, 400, "invalid")["detail"]


def test_too_many_items_are_refused(buyer: Buyer, offer: OnSale) -> None:
    items = [{**ITEM, "product": product} for product in range(1, MAX_ITEMS + 2)]
    for count, is_too_many in ((MAX_ITEMS + 1, True), (MAX_ITEMS, False)):
        body = {"sale": offer.sale, "items": items[:count]}
        problem = assert_problem(buyer.order(body), 400, "invalid", pointers=["#/items"])
        assert (str(MAX_ITEMS) in problem["errors"][0]["detail"]) is is_too_many
    assert_problem(buyer.order({"sale": offer.sale, "items": items * 1000}), 413, "too-large")


def test_an_unknown_sale_or_product_is_named(buyer: Buyer, offer: OnSale) -> None:
    body = order_body(offer, a=1)
    for sale in (offer.sale + 1, 2**63 - 1):
        assert_problem(buyer.order({**body, "sale": sale}), 400, "invalid", pointers=["#/sale"])
    elsewhere = on_sale({"c": 5}).products["c"]
    for product in (elsewhere, elsewhere + 1, 2**63 - 1):
        items = [*body["items"], {**ITEM, "product": product}]
        assert_problem(buyer.order({**body, "items": items}), 400, "invalid", pointers=["#/items"])


INVALID_JSON = (
    [b"{", b"}", b"nul", b'{"sale": 1,}', b"{'sale': 1}", b"\xff\xfe{\x00}\x00", b"\x00", b'"\\ud800"', b'{"sale": "\x01"}', b"[" * 5000, b'{"a":' * 5000, b"sale=1", b" "]  # noqa: E501
)  # fmt: skip


def test_invalid_json_is_refused(buyer: Buyer, subtests: pytest.Subtests) -> None:
    for body in INVALID_JSON:
        with subtests.test(body=repr(body[:12])):
            assert "JSON" in assert_problem(send(buyer, body), 400, "invalid")["detail"]


OTHER_TYPES = (
    ["text/plain", "application/xml", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "text/json", "nonsense", "application/json-patch+json"]  # noqa: E501
)  # fmt: skip


def test_another_content_type_is_415(buyer: Buyer, offer: OnSale, subtests: pytest.Subtests) -> None:
    for content_type in OTHER_TYPES:
        with subtests.test(content_type=content_type):
            answer = send(buyer, json.dumps(order_body(offer, a=1)), content_type)
            assert_problem(answer, 415, "unsupported-media-type")


class Counted(BytesIO):
    """A request body that counts how many bytes are read."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.taken = 0

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(size)
        self.taken += len(piece)
        return piece


TEN_MB = 10 * 1024 * 1024


@pytest.mark.parametrize(
    ("path", "headers", "status", "slug", "taken"),
    [
        ("/api/orders/", {}, 413, "too-large", MAX_BODY + 1),
        ("/api/token/", {}, 413, "too-large", MAX_BODY + 1),
        ("/api/token/refresh/", {}, 413, "too-large", MAX_BODY + 1),
        ("/api/orders/", {"Authorization": ""}, 401, "unauthenticated", 0),
        ("/api/orders/", {"Content-Type": "text/plain"}, 415, "unsupported-media-type", 0),
    ],
)
def test_of_a_large_body_no_more_is_read_than_needed(
    buyer: Buyer, path: str, headers: dict[str, str], status: int, slug: str, taken: int
) -> None:
    body = Counted(b'{"sale": "' + b"a" * TEN_MB + b'"}')
    sent: dict[str, Any] = {"wsgi.input": body, "CONTENT_LENGTH": str(TEN_MB)}
    content_type = headers.get("Content-Type", "application/json")
    answer = buyer.post(path, content_type=content_type, headers={"Idempotency-Key": "mine", **headers}, **sent)
    assert_problem(answer, status, slug)
    assert body.taken == taken


def test_a_body_has_a_valid_length_of_at_most_the_limit(buyer: Buyer, offer: OnSale) -> None:
    fits = b'{"sale": 0}'.ljust(MAX_BODY)
    for empty in (b"", fits):
        assert_problem(send(buyer, empty), 400, "invalid", pointers=["#/sale", "#/items"])
    assert_problem(send(buyer, fits + b" "), 413, "too-large")
    for length in ("-1", "nonsense", ""):
        assert_problem(send(buyer, json.dumps(order_body(offer, a=1)), CONTENT_LENGTH=length), 400, "invalid")


MALFORMED_KEYS = (
    [None, "", " ", '""', '"', '"half', 'half"', "a" * 129, f'"{"a" * 129}"', "two words", "a,b", "a/b", "schlüssel", "鍵", "a\x00b", "\x00", "'a'", '""a""', "a\tb", "%41"]  # noqa: E501
)  # fmt: skip


def test_a_missing_or_malformed_key_is_refused(buyer: Buyer, offer: OnSale, subtests: pytest.Subtests) -> None:
    for key in MALFORMED_KEYS:
        with subtests.test(key=ascii(key)):
            headers = {} if key is None else {"Idempotency-Key": key}
            answer = buyer.post("/api/orders/", order_body(offer, a=1), format="json", headers=headers)
            assert "[A-Za-z0-9._~:-]{1,128}" in assert_problem(answer, 400, "idempotency-key")["detail"]


ORDERS = ["1", "not-a-uuid", "%00", UNKNOWN, f"{UNKNOWN}/refund"]
SALES = ["a", "-1", "0", "1.0", "%00", str(2**63), "1" + "0" * 30, "9" * 500]
OTHERS = ["api", "api/nothing", "api/problems/nothing", "api/problems/%00", "lab/nothing"]


def test_what_does_not_exist_is_a_problem_document(buyer: Buyer, subtests: pytest.Subtests) -> None:
    for path in (*(f"api/orders/{order}" for order in ORDERS), *(f"api/sales/{sale}" for sale in SALES), *OTHERS):
        with subtests.test(path=path[:60]):
            assert_problem(buyer.get(f"/{path}/"), 404, "not-found")
    assert_problem(buyer.get("/api/orders/1/", headers={"Accept": "text/html"}), 404, "not-found")


CURSORS = [b"p=not-a-uuid", b"p=\x00", b"p=", b"o=-1", b"o=many", b"r=2&p=1", b"r=x", "text", "%00", "schlüssel"]


def test_an_invalid_cursor_is_not_found(buyer: Buyer, subtests: pytest.Subtests) -> None:
    for cursor in CURSORS:
        with subtests.test(cursor=repr(cursor)):
            sent = cursor if isinstance(cursor, str) else b64encode(cursor).decode()
            assert_problem(buyer.get("/api/orders/", {"cursor": sent}), 404, "not-found")


OTHER_METHODS = {
    "orders": "put patch delete trace",
    f"orders/{UNKNOWN}": "post delete",
    f"orders/{UNKNOWN}/pay": "get",
    f"orders/{UNKNOWN}/cancel": "delete",
    **dict.fromkeys(("payments", "token", "token/refresh"), "get"),
    **dict.fromkeys(("sales", "sales/1", "problems/invalid", "schema", "docs"), "post"),
}


def test_another_method_is_405_with_allow(buyer: Buyer, subtests: pytest.Subtests) -> None:
    for path, methods in OTHER_METHODS.items():
        for method in methods.split():
            with subtests.test(path=path, method=method):
                answer = getattr(buyer, method)(f"/api/{path}/")
                assert_problem(answer, 405, "method-not-allowed")
                assert answer.headers["Allow"]


def test_an_unavailable_format_is_406(visitor: APIClient) -> None:
    refused = [("/api/schema/", "text/html"), ("/api/schema/", "application/xml"), ("/api/docs/", "application/json")]
    for path, accept in refused:
        assert_problem(visitor.get(path, headers={"Accept": accept}), 406, "not-acceptable")


def test_a_file_in_a_form_is_written_nowhere(rf: RequestFactory) -> None:
    """A file in a form is not stored: no address accepts files, and a stranger could fill the disk."""
    request = rf.post("/admin/login/", {"name": "value", "file": SimpleUploadedFile("a", b"x" * 10_000)})
    assert (dict(request.POST), dict(request.FILES)) == ({"name": ["value"]}, {})
