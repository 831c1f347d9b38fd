"""Random requests made from the OpenAPI schema are answered as it describes, and none gets a 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import schemathesis
from django.contrib.auth.models import User
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from redis import Redis

from shop import conservation
from shop.accounts import tokens
from shop.api.serializers import NewOrderSerializer, NewPaymentSerializer
from shop.payments import signatures
from shop.runtime.wsgi import application
from tests.factories import on_sale
from tests.shop.conftest import Buyer, order_body
from tests.shop.waiting_support import set_rate

pytest_plugins = ["schemathesis.pytest.plugin"]
pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

api = schemathesis.openapi.from_wsgi(
    "/api/schema/?format=json",
    application,
    config=schemathesis.Config.from_dict(
        {
            "generation": {
                "deterministic": True,
                "database": "none",
                "max-examples": 25,
                "with-security-parameters": False,
                # Unknown query parameters and headers are ignored.
                "allow-extra-parameters": False,
            },
            # A valid order may name an unknown sale, which is answered with 400.
            "checks": {"positive_data_acceptance": {"enabled": False}},
        }
    ),
)


class Shop:
    """A sale, an account and an order for requests to name, and the statuses of all responses."""

    def __init__(self) -> None:
        self.offer = on_sale({"a": 10_000})
        self.room = on_sale({"b": 1})
        set_rate(self.room, 10)
        self.user = User.objects.create_user("ada", password="the right one")
        self.buyer = Buyer(self.user.pk)
        self.order = self.buyer.order(order_body(self.offer, a=1)).json()["id"]
        self.refresh = tokens.issue(self.user)["refresh"]
        self.answers: set[int] = set()

    def name_existing_objects(self, case: schemathesis.Case) -> None:
        """Make half of the valid requests name existing objects, because random ids would match none."""
        body: Any = case.body
        path = case.path_parameters
        match case.operation.label:
            case "POST /api/orders/" if NewOrderSerializer(data=body).is_valid() and body["sale"] % 2:
                body["sale"] = self.offer.sale
                body["items"] = order_body(self.offer, a=body["items"][0]["quantity"])["items"]
            case "GET /api/orders/{order}/" | "POST /api/orders/{order}/pay/" | "POST /api/orders/{order}/cancel/" if (
                is_uuid(path["order"])
            ):
                path["order"] = self.order
            case "POST /api/payments/" if NewPaymentSerializer(data=body).is_valid() and UUID(body["order"]).int % 2:
                body["order"] = self.order
                if is_odd(body, "reference"):
                    body["amount"] = "9.90"
            case "GET /api/sales/{sale}/" if isinstance(path["sale"], int) and path["sale"] % 2:
                path["sale"] = self.offer.sale
            case "POST /api/sales/{sale}/waiting/" if isinstance(path["sale"], int) and path["sale"] % 2:
                path["sale"] = self.room.sale
            case "POST /api/token/" if is_odd(body, "username") and is_odd(body, "password"):
                case.body = {"username": "ada", "password": "the right one"}
            case "POST /api/token/refresh/" if is_odd(body, "refresh"):
                case.body = {"refresh": self.refresh}


def is_uuid(value: Any) -> bool:
    try:
        return UUID(value).int % 2 == 1
    except ValueError:
        return False


def is_odd(body: Any, name: str) -> bool:
    return isinstance(body, dict) and isinstance(body.get(name), str) and len(body[name]) % 2 == 1


@pytest.fixture
def shop(redis: Redis, settings: Any) -> Iterator[Shop]:
    settings.ORDER_RATE = 1_000_000
    shop = Shop()
    yield shop
    assert shop.answers & {200, 201}, "no request succeeded"
    assert all(row.conserved for row in conservation.figures())


@api.parametrize()
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # all cases share one shop
def test_operations_answer_as_described(case: schemathesis.Case, shop: Shop, settings: Any) -> None:
    settings.PAYMENT_SECRET = "shared" if case.operation.label == "POST /api/payments/" else ""
    shop.name_existing_objects(case)
    headers = {"Authorization": f"Bearer {shop.buyer.token}"}
    if signatures.FORM.fullmatch(case.headers.get(signatures.HEADER, "")):
        headers[signatures.HEADER] = signatures.sign(json.dumps(case.body, default=str).encode())
    answer = case.call_and_validate(headers=headers)
    shop.answers.add(answer.status_code)
