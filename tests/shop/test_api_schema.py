"""The OpenAPI schema: it is valid, has every problem, and its examples are right."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils.translation import trans_real
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.test import APIClient

from shop.api import schema_view
from shop.api.problems import PROBLEMS
from shop.api.schema import EVERYWHERE
from shop.api.schema_view import Schema
from tests.factories import on_sale
from tests.shop.conftest import Buyer, Provider, order_body

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def described() -> dict[str, Any]:
    schema = SchemaGenerator().get_schema(public=True)
    assert isinstance(schema, dict)
    return schema


def test_an_order_has_the_fields_of_its_schema(described: dict[str, Any], buyer: Buyer) -> None:
    """An order's JSON, which no serializer renders, has the fields of its schema."""
    answer = buyer.order(order_body(on_sale({"a": 1}), a=1)).json()
    schemas = described["components"]["schemas"]
    assert list(answer) == list(schemas["Order"]["properties"])
    assert [list(item) for item in answer["items"]] == [list(schemas["OrderItem"]["properties"])]


def test_it_is_valid_openapi(described: dict[str, Any]) -> None:
    validate_schema(described)


def test_every_problem_is_declared_with_its_status(described: dict[str, Any]) -> None:
    """The schema declares every problem with its status. `test_api_search` checks that no other statuses occur."""
    declared = set()
    for operations in described["paths"].values():
        for operation in operations.values():
            slugs = set()
            for status, answer in operation["responses"].items():
                problem = answer.get("content", {}).get("application/problem+json", {})
                for slug, example in problem.get("examples", {}).items():
                    assert (slug, str(example["value"]["status"])) == (PROBLEMS[slug].slug, status)
                    slugs.add(slug)
            assert slugs >= {problem.slug for problem in EVERYWHERE}
            declared |= slugs
    assert set(PROBLEMS) - declared == {"internal", "not-acceptable", "forbidden"}


def test_the_example_of_an_order_is_valid(described: dict[str, Any], buyer: Buyer) -> None:
    operation = described["paths"]["/api/orders/"]["post"]
    (example,) = operation["requestBody"]["content"]["application/json"]["examples"].values()
    (key,) = operation["parameters"][0]["examples"].values()
    offer = on_sale({"a": 1})
    assert example["value"].keys() == order_body(offer, a=1).keys()
    assert buyer.order(order_body(offer, a=1), key=key["value"]).status_code == 201


def test_the_example_of_a_payment_is_valid(
    described: dict[str, Any], buyer: Buyer, provider: Provider, settings: Any
) -> None:
    settings.PAYMENT_SECRET = "shared"
    operation = described["paths"]["/api/payments/"]["post"]
    (example,) = operation["requestBody"]["content"]["application/json"]["examples"].values()
    assert "security" not in operation or operation["security"] == [{}]
    assert provider.reports(example["value"]).json()["outcome"] == "unmatched"
    order = buyer.order(order_body(on_sale({"a": 2}, price="9.90"), a=2)).json()["id"]
    assert provider.reports({**example["value"], "order": order}).json()["outcome"] == "paid"


def test_every_operation_has_a_tag_and_a_summary(visitor: APIClient) -> None:
    answer = visitor.get("/api/schema/", headers={"Accept": "application/vnd.oai.openapi+json"})
    schema = answer.json()
    assert visitor.get("/api/schema/?format=json").json() == schema
    assert answer.headers["Content-Type"] == "application/vnd.oai.openapi+json"
    operations = {(path, method): each for path, ops in schema["paths"].items() for method, each in ops.items()}
    assert {tuple(each["tags"]) for each in operations.values()} == {
        ("chargebacks",), ("orders",), ("payments",), ("sales",), ("token",),
    }  # fmt: skip
    assert [each for each in operations.values() if not each["summary"] or "." in each["summary"]] == []
    assert operations["/api/orders/", "post"]["summary"] == "Place an order"


@pytest.mark.parametrize("once", [True, False], ids=["once", "control"])
def test_a_process_makes_the_schema_once_whatever_the_query_says(
    visitor: APIClient, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    """`lang` and `version` are ignored. Negative control: drf-spectacular's view makes the schema for each request, and
    keeps and echoes what is sent.
    """
    made, make = [], SchemaGenerator.get_schema

    def counted(*args: Any, **values: Any) -> Any:
        made.append(make(*args, **values))
        return made[-1]

    monkeypatch.setattr(SchemaGenerator, "get_schema", counted)
    if not once:
        monkeypatch.setattr(Schema, "get", SpectacularAPIView.get)
    visitor.raise_request_exception = False
    schema_view.rendered.cache_clear()
    plain, languages = visitor.get("/api/schema/"), len(trans_real._translations)
    answers = [
        visitor.get("/api/schema/", query) for query in ({"lang": "made-up"}, {"version": "x"}, {"version": "\n"})
    ]
    assert ([answer.status_code for answer in answers] == [200, 200, 200]) is once
    same = {(answer.content, answer.headers.get("Content-Disposition")) for answer in (plain, *answers)}
    assert (len(same) == 1) is once
    assert (len(made) == 1) is once
    assert (len(trans_real._translations) == languages) is once


def test_the_page_of_the_api_names_its_language(visitor: APIClient) -> None:
    page = visitor.get("/api/docs/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}).content.decode()
    assert '<html lang="en">' in page
    assert "<title>API of Last Unit</title>" in page
