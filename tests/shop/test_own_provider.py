"""One class connects a payment provider with its own protocol: where buyers pay, and what the provider reports."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import Client
from redis import Redis
from rest_framework.request import Request

from shop.models import Payment, Refund, UnmatchedReport
from shop.orders.customer_changes import pay_order
from shop.orders.errors import ProviderDecides
from shop.payments import provider as providers
from shop.payments.provider import ProviderReport, ReportKind
from shop.preflight import settings_checks
from shop.runtime.csp import HEADER
from tests.factories import on_sale
from tests.shop.conftest import assert_conserved, assert_problem, buy, logged_in, state
from tests.shop.web_server import CHECKOUT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

SECRET = b"of the provider"


def documented() -> Any:
    """Return the class of the documentation: a provider that counts in cents and has its own names of fields."""
    text = (CHECKOUT / "docs" / "payment-provider.md").read_text()
    (sample,) = re.findall(r"```python\n([^`]*?class TinyPay.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"SECRET": SECRET, "hmac": hmac, "Decimal": Decimal, "urlencode": urlencode}
    exec(sample, names)  # noqa: S102 - the text is ours
    return names["TinyPay"]


class TinyPay(documented()):  # type: ignore[misc]
    """The provider of the documentation, which also reports disputes, and wants "OK" as the answer."""

    accepted = "OK"

    def read_webhook(self, request: Request) -> ProviderReport | None:
        report: ProviderReport | None = super().read_webhook(request)
        if (event := request.data)["type"] != "dispute":
            return report
        money = {"amount": f"{Decimal(event['cents']) / 100:.2f}", "currency": event["iso"]}
        return ProviderReport(ReportKind.CHARGEBACK, {"reference": event["id"], "payment": event["of"], **money})


def signed(body: bytes) -> str:
    return hmac.new(SECRET, body, "sha256").hexdigest()


def tells(signature: str | None = None, **event: Any) -> Any:
    """Send a webhook of TinyPay."""
    body = json.dumps(event).encode()
    headers = {"Tiny-Signature": signed(body) if signature is None else signature}
    client = Client(raise_request_exception=False)
    return client.post("/api/payments/", body, content_type="application/json", headers=headers)


@pytest.fixture(autouse=True)
def tiny(settings: Any) -> Iterator[None]:
    settings.PAYMENT_PROVIDER = f"{__name__}.TinyPay"
    yield
    providers._load.cache_clear()


@pytest.fixture
def order(customer: int, redis: Redis) -> UUID:
    """A pending order of 19.80 EUR."""
    return buy(on_sale({"a": 5}, price="9.90"), customer, a=2).order.pk


def paid(order: UUID, **changed: Any) -> dict[str, Any]:
    return {"type": "paid", "id": "tp_1", "cart": str(order), "cents": 1980, "iso": "EUR", **changed}


def test_a_buyer_pays_there_and_a_dispute_takes_the_money_back(customer: int, order: UUID) -> None:
    client = logged_in(customer)
    page = client.get(f"/orders/{order}/")
    assert f"/orders/{order}/pay/" in page.content.decode()
    assert "form-action 'self' https://tiny.example;" in page.headers[HEADER] + ";"
    leads = client.post(f"/orders/{order}/pay/").headers["Location"]
    assert leads.startswith(f"https://tiny.example/checkout?cart={order}&cents=1980&iso=EUR&to=http")
    assert state(order) == "pending", "only a webhook pays it"
    for _ in range(2):
        answer = tells(**paid(order))
        assert (answer.status_code, answer.content, answer.headers["Content-Type"]) == (200, b"OK", "text/plain")
    payment = Payment.objects.get()
    assert (state(order), payment.reference, str(payment.amount)) == ("paid", "tp_1", "19.80")
    disputed: dict[str, Any] = {"type": "dispute", "id": "d_1", "of": "tp_1", "cents": 1980, "iso": "EUR"}
    assert tells(**disputed).content == b"OK"
    assert (state(order), Refund.objects.get().chargeback) == ("refunded", "d_1")
    assert_conserved()


def test_customers_cannot_mark_orders_as_paid_there(customer: int, order: UUID, settings: Any) -> None:
    settings.PAY_WITHOUT_PROVIDER = True
    assert settings.PAYMENT_SECRET == ""
    with pytest.raises(ProviderDecides):
        pay_order(order, customer=customer)
    settings.PAYMENT_PROVIDER = "shop.payments.signed.SignedProvider"
    assert pay_order(order, customer=customer).order.state == "paid", "the control"


def test_a_webhook_with_a_wrong_signature_changes_and_records_nothing(order: UUID) -> None:
    for signature in ("", "0" * 64, "é"):
        refused = assert_problem(tells(signature, **paid(order)), 403, "signature")
        assert "TinyPay" in refused["detail"]
    assert (state(order), UnmatchedReport.objects.count()) == ("pending", 0)


@pytest.mark.parametrize(
    ("changed", "status", "problem"),
    [
        ({"cents": 1979}, 422, "wrong-amount"),
        ({"id": "customer/1"}, 400, "invalid"),
        ({"cart": "no order"}, 400, "invalid"),
    ],
    ids=lambda value: str(value),
)
def test_the_shop_checks_what_the_class_has_read(
    order: UUID, changed: dict[str, Any], status: int, problem: str
) -> None:
    assert_problem(tells(**{**paid(order), **changed}), status, problem)
    assert (state(order), Payment.objects.count(), UnmatchedReport.objects.count()) == ("pending", 0, 1)


def test_a_webhook_that_says_nothing_of_money_is_accepted(order: UUID) -> None:
    assert (tells(type="hello").content, state(order), UnmatchedReport.objects.count()) == (b"OK", "pending", 0)


def test_preflight_and_serve_know_it(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings_checks.payments()
    assert (found.level, found.text) == ("ok", "Buyers pay at https://tiny.example.")
    with monkeypatch.context() as without_page:
        without_page.setattr(TinyPay, "origin", "")
        assert settings_checks.payments().level == "warning"
    for path in ("nothing", "shop.nothing.Provider", "django.test.Client", f"{__name__}.PaymentProvider"):
        settings.PAYMENT_PROVIDER = path
        assert settings_checks.payments().level == "red", path
        with pytest.raises(ImproperlyConfigured, match=r"^PAYMENT_PROVIDER must name"):
            providers.provider()
        with pytest.raises(CommandError, match=r"^PAYMENT_PROVIDER must name"):
            call_command("serve")
