"""What a payment provider may say: signed, twice, late, wrong; and what it is told."""

from __future__ import annotations

import hmac
import json
import time
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, OperationalError, transaction
from redis import Redis
from rest_framework.test import APIClient

from inventory.models import StockItem
from shop import conservation
from shop.api import signatures
from shop.models import Order, Payment
from shop.orders import payments, states
from shop.orders.customer_changes import cancel_order
from tests.factories import OnSale, on_sale
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def secret(settings: Any) -> None:
    settings.PAYMENT_SECRET = "known to two"


class Provider(APIClient):
    """Who signs what it says."""

    def __init__(self) -> None:
        super().__init__(raise_request_exception=False)

    def says(self, body: Any, signature: str | None = None, **options: Any) -> Any:
        """POST a body, as JSON unless it is bytes, with its signature unless another is given."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Payment-Signature": signatures.sign(sent) if signature is None else signature}
        return self.generic(
            "POST", "/api/payments/", sent, **{"content_type": "application/json", **options}, headers=headers
        )


@pytest.fixture
def provider(redis: Redis) -> Provider:
    return Provider()


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5}, price="9.90", limit=3, strategy="lua")


@pytest.fixture
def order(buyer: Buyer, offer: OnSale) -> UUID:
    """Two units of a, pending."""
    return UUID(buyer.order(order_body(offer, a=2)).json()["id"])


def payment(order: UUID, reference: str = "pay_1", amount: Any = "19.80") -> dict[str, Any]:
    return {"reference": reference, "order": str(order), "amount": amount}


def state(order: UUID) -> str:
    return Order.objects.get(pk=order).state


def test_a_payment_is_told_that_it_paid_and_again_the_same(provider: Provider, order: UUID, buyer: Buyer) -> None:
    first = provider.says(payment(order))
    again = provider.says(payment(order))
    noted = Payment.objects.get()
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == {
        "reference": "pay_1",
        "order": str(order),
        "amount": "19.80",
        "outcome": "paid",
        "note": "",
        "received_at": first.json()["received_at"],
    }
    assert again.json() == first.json()
    assert ("Idempotent-Replayed" in first.headers, again.headers["Idempotent-Replayed"]) == (False, "true")
    assert (noted.order_id, noted.outcome, str(noted.amount)) == (order, "paid", "19.80")
    assert buyer.get(f"/api/orders/{order}/").json()["state"] == "paid"


def test_a_second_reference_for_a_paid_order_is_due_for_refund(provider: Provider, order: UUID) -> None:
    provider.says(payment(order))
    second = provider.says(payment(order, "pay_2"))
    assert (second.json()["outcome"], second.json()["note"]) == ("refund_due", "The order was paid already.")
    assert provider.says(payment(order, "pay_2")).json() == second.json()
    assert provider.says(payment(order)).json()["outcome"] == "paid"


def test_what_the_customer_has_paid_is_not_paid_again_by_the_provider(
    provider: Provider, order: UUID, buyer: Buyer, settings: Any
) -> None:
    secret, settings.PAYMENT_SECRET = settings.PAYMENT_SECRET, ""
    for _ in range(2):
        assert buyer.post(f"/api/orders/{order}/pay/").json()["state"] == "paid"
    settings.PAYMENT_SECRET = secret
    assert provider.says(payment(order)).json()["outcome"] == "refund_due"
    assert list(Payment.objects.order_by("pk").values_list("outcome", flat=True)) == ["paid", "refund_due"]


@pytest.mark.parametrize("whose", ["his", "nobody's"])
def test_where_there_is_a_provider_the_customer_is_not_believed(order: UUID, buyer: Buyer, whose: str) -> None:
    """Without the provider's secret he is: the test above. Whether there is such an order he is not told either."""
    asked = order if whose == "his" else uuid4()
    assert_problem(buyer.post(f"/api/orders/{asked}/pay/"), 403, "not-believed")
    assert (state(order), Payment.objects.count()) == ("pending", 0)


def test_a_late_payment_says_whether_the_units_were_taken_again(
    provider: Provider, order: UUID, buyer: Buyer, other_buyer: Buyer, offer: OnSale
) -> None:
    later = UUID(buyer.order(order_body(offer, a=1)).json()["id"])
    for each in (order, later):
        cancel_order(each, customer=buyer.customer)
    StockItem.objects.update(on_hand=2)
    said = provider.says(payment(order)).json()
    assert (said["outcome"], said["note"]) == ("paid", "The order was cancelled; its units were taken again.")
    said = provider.says(payment(later, "pay_2", "9.90")).json()
    assert said["outcome"] == "refund_due"
    assert said["note"] == "The order is cancelled; a: 1 wanted, 0 left"
    assert (state(order), state(later)) == ("paid", "cancelled")


def test_a_payment_for_an_order_that_is_not_there_yet_may_come_again(
    provider: Provider, buyer: Buyer, offer: OnSale
) -> None:
    queued = uuid4()
    assert_problem(provider.says(payment(queued)), 404, "unknown-order")
    made = UUID(buyer.order(order_body(offer, a=2)).json()["id"])
    assert_problem(provider.says(payment(queued)), 404, "unknown-order")
    assert provider.says(payment(made)).json()["outcome"] == "paid"


@pytest.mark.parametrize("amount", ["19.79", "19.81", "0.00", "1980.00"])
def test_a_wrong_amount_changes_nothing(provider: Provider, order: UUID, amount: str) -> None:
    said = assert_problem(provider.says(payment(order, amount=amount)), 422, "wrong-amount")
    assert (said["expected"], said["received"]) == ("19.80", amount)
    assert (state(order), Payment.objects.count()) == ("pending", 0)
    assert provider.says(payment(order)).json()["outcome"] == "paid"


def test_a_reference_stands_for_one_order_and_one_amount(
    provider: Provider, order: UUID, buyer: Buyer, offer: OnSale
) -> None:
    other = UUID(buyer.order(order_body(offer, a=1)).json()["id"])
    provider.says(payment(order))
    assert_problem(provider.says(payment(other, amount="9.90")), 422, "reference-reused")
    assert_problem(provider.says(payment(order, amount="9.90")), 422, "reference-reused")
    assert (state(order), state(other), Payment.objects.count()) == ("paid", "pending", 1)


# Who says so


def assert_not_believed(answer: Any, order: UUID, why: str) -> None:
    assert why in assert_problem(answer, 403, "signature")["detail"]
    assert (state(order), Payment.objects.count()) == ("pending", 0)


def test_a_signature_is_what_the_readme_says(settings: Any) -> None:
    """As a provider makes it, who has none of our code: of the moment, a dot and the body, in hexadecimal digits."""
    settings.PAYMENT_SECRET = "known to two"
    made = hmac.new(b"known to two", b'1700000000.{"a": 1}', "sha256").hexdigest()
    assert signatures.sign(b'{"a": 1}', at=1_700_000_000) == f"t=1700000000,v1={made}"


@pytest.mark.parametrize(
    "signature", ["", "t=1", "v1=" + "0" * 64, "t=x,v1=" + "0" * 64, "t=1,v1=" + "ü" * 64, "t=1,v1=0"]
)
def test_without_a_signature_nobody_is_believed(provider: Provider, order: UUID, signature: str) -> None:
    assert_not_believed(provider.says(payment(order), signature), order, "Send a Payment-Signature header")


def test_a_signature_of_another_body_or_secret_is_not_believed(provider: Provider, order: UUID, settings: Any) -> None:
    body = json.dumps(payment(order)).encode()
    of_another_body = signatures.sign(body.replace(b"pay_1", b"pay_2"))
    assert_not_believed(provider.says(body, of_another_body), order, "not that of this body")
    settings.PAYMENT_SECRET = "guessed"
    of_another_secret = signatures.sign(body)
    settings.PAYMENT_SECRET = "known to two"
    assert_not_believed(provider.says(body, of_another_secret), order, "not that of this body")


@pytest.mark.parametrize("ago", [301, -305, 86_400])
def test_an_old_message_is_not_believed_and_its_moment_cannot_be_changed(
    provider: Provider, order: UUID, ago: int
) -> None:
    body = json.dumps(payment(order)).encode()
    at = int(time.time()) - ago
    signed = signatures.sign(body, at=at)
    assert_not_believed(provider.says(body, signed), order, "signed more than 300 seconds ago")
    forged = signed.replace(str(at), str(int(time.time())))
    assert_not_believed(provider.says(body, forged), order, "not that of this body")


def test_a_message_of_some_minutes_ago_is_believed(provider: Provider, order: UUID) -> None:
    body = json.dumps(payment(order)).encode()
    assert provider.says(body, signatures.sign(body, at=int(time.time()) - 240)).status_code == 200


def test_without_a_secret_the_shop_believes_nobody(provider: Provider, order: UUID, settings: Any) -> None:
    """An empty secret would be everybody's."""
    settings.PAYMENT_SECRET = ""
    assert_not_believed(provider.says(payment(order)), order, "PAYMENT_SECRET")


def test_a_customers_token_is_no_signature(buyer: Buyer, order: UUID) -> None:
    assert_not_believed(buyer.post("/api/payments/", payment(order), format="json"), order, "Payment-Signature")


# What is no payment


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"amount": 19.8}, "#/amount"),
        ({"amount": 20}, "#/amount"),
        ({"amount": "19.8"}, "#/amount"),
        ({"amount": "-19.80"}, "#/amount"),
        ({"amount": "1e2"}, "#/amount"),
        ({"amount": "NaN"}, "#/amount"),
        ({"amount": "19.80\n"}, "#/amount"),
        ({"amount": "9" * 15 + ".00"}, "#/amount"),
        ({"amount": None}, "#/amount"),
        ({"reference": ""}, "#/reference"),
        ({"reference": "customer/1"}, "#/reference"),
        ({"reference": "x" * 129}, "#/reference"),
        ({"reference": "pay_1\n"}, "#/reference"),
        ({"reference": 5}, "#/reference"),
        ({"reference": "\x00"}, "#/reference"),
        ({"order": "1"}, "#/order"),
        ({"order": None}, "#/order"),
        ({"order": []}, "#/order"),
        ({"order": 5}, "#/order"),
        ({"order": True}, "#/order"),
    ],
)
def test_what_is_no_payment_is_refused(provider: Provider, order: UUID, wrong: dict[str, Any], pointer: str) -> None:
    assert_problem(provider.says({**payment(order), **wrong}), 400, "invalid", pointers=[pointer])
    assert (state(order), Payment.objects.count()) == ("pending", 0)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'"x"', b"\xff"])
def test_what_is_no_object_is_refused(provider: Provider, body: bytes) -> None:
    assert_problem(provider.says(body), 400, "invalid")


def test_a_body_without_end_is_refused_before_it_is_read(provider: Provider) -> None:
    assert_problem(provider.says(b" " * (64 * 1024 + 1)), 413, "too-large")
    assert_problem(provider.says(b" " * (3 * 1024 * 1024)), 413, "too-large")


def test_another_format_is_refused(provider: Provider, order: UUID) -> None:
    assert_problem(provider.says(payment(order), content_type="text/plain"), 415, "unsupported-media-type")


@pytest.mark.parametrize(
    ("error", "slug"), [(states.Overtaken("x"), "busy"), (DatabaseError("x"), None)], ids=["overtaken", "a mistake"]
)
def test_who_is_overtaken_is_told_to_try_again(
    provider: Provider, order: UUID, monkeypatch: pytest.MonkeyPatch, error: Exception, slug: str | None
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("shop.orders.payments.states.change", fail)
    answer = provider.says(payment(order))
    if slug:
        assert_problem(answer, 503, slug)
    else:
        assert answer.status_code == 500
    assert (state(order), Payment.objects.count()) == ("pending", 0)
    monkeypatch.undo()
    assert provider.says(payment(order)).json()["outcome"] == "paid"
    assert [row.conserved for row in conservation.figures()] == [True]


def test_when_the_answer_of_the_commit_is_lost_the_next_report_has_it(
    provider: Provider, order: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = payments.record

    def record_and_lose(*arguments: Any, **more: Any) -> Payment:
        def lose() -> None:
            raise OperationalError("the answer was lost")

        transaction.on_commit(lose)
        return record(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(payments, "record", record_and_lose)
        assert_problem(provider.says(payment(order)), 503, "unavailable")
    again = provider.says(payment(order))
    assert (again.json()["outcome"], again.headers["Idempotent-Replayed"]) == ("paid", "true")
    assert Payment.objects.count() == 1
