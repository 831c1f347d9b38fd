"""Payments that the provider reports: signatures, repeats, late payments, wrong content."""

from __future__ import annotations

import hmac
import json
import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, OperationalError, transaction
from redis import Redis

from shop import conservation
from shop.models import Payment, Refund, UnmatchedReport
from shop.orders import payments, states
from shop.payments import signatures
from tests.factories import OnSale, on_sale
from tests.shop.conftest import Buyer, Provider, assert_problem, order_body, payment, race, raising, state

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture(autouse=True)
def secret(settings: Any) -> None:
    settings.PAYMENT_SECRET = "shared"


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5}, price="9.90", limit=3, strategy="lua")


@pytest.fixture
def order(buyer: Buyer, offer: OnSale) -> UUID:
    """A pending order of two units of a."""
    return UUID(buyer.order(order_body(offer, a=2)).json()["id"])


def test_a_payment_is_paid_and_repeated_with_the_same_answer(provider: Provider, order: UUID, buyer: Buyer) -> None:
    first, again = (provider.reports(payment(order)) for _ in range(2))
    assert (first.status_code, again.status_code) == (200, 200)
    expected = {**payment(order), "outcome": "paid", "note": "", "received_at": first.json()["received_at"]}
    assert first.json() == again.json() == expected
    assert ("Idempotent-Replayed" in first.headers, again.headers["Idempotent-Replayed"]) == (False, "true")
    saved = Payment.objects.get()
    assert (saved.order_id, saved.outcome, str(saved.amount)) == (order, "paid", "19.80")
    assert buyer.get(f"/api/orders/{order}/").json()["state"] == "paid"
    second = provider.reports(payment(order, "pay_2")).json()
    assert (second["outcome"], second["note"]) == ("refund_due", "The order is already paid.")
    assert provider.reports(payment(order, "pay_2")).json() == second
    assert provider.reports(payment(order)).json()["outcome"] == "paid"


def test_customers_mark_orders_as_paid_only_where_a_setting_lets_them(order: UUID, buyer: Buyer, settings: Any) -> None:
    for asked in (order, uuid4()):
        assert_problem(buyer.post(f"/api/orders/{asked}/pay/"), 403, "not-believed")
    settings.PAYMENT_SECRET, settings.PAY_WITHOUT_PROVIDER = "", False
    refused = assert_problem(buyer.post(f"/api/orders/{order}/pay/"), 403, "not-believed")
    assert "PAY_WITHOUT_PROVIDER" in refused["detail"]
    assert (state(order), Payment.objects.count()) == ("pending", 0)
    settings.PAY_WITHOUT_PROVIDER = True
    assert buyer.post(f"/api/orders/{order}/pay/").status_code == 200


def test_a_wrong_amount_changes_nothing(provider: Provider, order: UUID) -> None:
    for amount in ("19.79", "19.81", "0.00", "1980.00"):
        problem = assert_problem(provider.reports(payment(order, amount=amount)), 422, "wrong-amount")
        assert (problem["expected"], problem["received"]) == ("19.80", amount)
        assert (state(order), Payment.objects.count()) == ("pending", 0)
    assert provider.reports(payment(order)).json()["outcome"] == "paid"


def test_a_reference_belongs_to_one_order_and_amount(
    provider: Provider, order: UUID, buyer: Buyer, offer: OnSale
) -> None:
    other = UUID(buyer.order(order_body(offer, a=1)).json()["id"])
    provider.reports(payment(order))
    assert_problem(provider.reports(payment(other, amount="9.90")), 422, "reference-reused")
    assert_problem(provider.reports(payment(order, amount="9.90")), 422, "reference-reused")
    assert (state(order), state(other), Payment.objects.count()) == ("paid", "pending", 1)


def assert_refused(answer: Any, order: UUID, why: str) -> None:
    assert why in assert_problem(answer, 403, "signature")["detail"]
    assert (state(order), Payment.objects.count()) == ("pending", 0)


def test_a_signature_is_what_the_documentation_says(settings: Any) -> None:
    settings.PAYMENT_SECRET = "shared"
    made = hmac.new(b"shared", b'1700000000.{"a": 1}', "sha256").hexdigest()
    assert signatures.sign(b'{"a": 1}', at=1_700_000_000) == f"t=1700000000,v1={made}"


def test_a_malformed_signature_is_refused(provider: Provider, order: UUID) -> None:
    for signature in ("", "t=1", "v1=" + "0" * 64, "t=x,v1=" + "0" * 64, "t=1,v1=" + "ü" * 64, "t=1,v1=0"):
        assert_refused(provider.reports(payment(order), signature), order, "Send a Payment-Signature header")


def test_a_signature_of_another_body_or_secret_is_refused(provider: Provider, order: UUID, settings: Any) -> None:
    body = json.dumps(payment(order)).encode()
    of_another_body = signatures.sign(body.replace(b"pay_1", b"pay_2"))
    assert_refused(provider.reports(body, of_another_body), order, "does not match the body")
    settings.PAYMENT_SECRET = "guessed"
    of_another_secret = signatures.sign(body)
    settings.PAYMENT_SECRET = "shared"
    assert_refused(provider.reports(body, of_another_secret), order, "does not match the body")
    settings.PAYMENT_SECRET = ""
    assert_refused(provider.reports(body), order, "PAYMENT_SECRET")


@pytest.mark.parametrize("ago", [301, -301, 86_400])
def test_an_old_signature_is_refused_and_its_time_cannot_be_changed(
    provider: Provider, order: UUID, ago: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = int(time.time())
    monkeypatch.setattr(signatures, "time", SimpleNamespace(time=lambda: now))
    body = json.dumps(payment(order)).encode()
    signed = signatures.sign(body, at=now - ago)
    assert_refused(provider.reports(body, signed), order, "more than 300 seconds old")
    recent = signatures.sign(body, at=now - 300)
    forged = signed.replace(str(now - ago), str(now))
    assert_refused(provider.reports(body, forged), order, "does not match the body")
    assert provider.reports(body, recent).status_code == 200


INVALID = {
    "amount": [19.8, 20, "19.8", "-19.80", "1e2", "NaN", "19.80\n", "9" * 15 + ".00", None],
    "reference": ["", "customer/1", "x" * 129, "pay_1\n", 5, "\x00"],
    "order": ["1", None, [], 5, True],
}


def test_an_invalid_payment_is_refused(provider: Provider, order: UUID, subtests: pytest.Subtests) -> None:
    for field, value in [(field, value) for field, values in INVALID.items() for value in values]:
        with subtests.test(field=field, value=repr(value)):
            assert_problem(provider.reports({**payment(order), field: value}), 400, "invalid", pointers=[f"#/{field}"])
    assert (state(order), Payment.objects.count()) == ("pending", 0)


def test_a_body_that_is_no_object_or_too_large_is_refused(provider: Provider) -> None:
    for body in (b"", b"[]", b"null", b"{", b'"x"', b"\xff"):
        assert_problem(provider.reports(body), 400, "invalid")
    assert_problem(provider.reports(b"{}", content_type="text/plain"), 415, "unsupported-media-type")
    for size in (64 * 1024 + 1, 3 * 1024 * 1024):
        assert_problem(provider.reports(b" " * size), 413, "too-large")


@pytest.mark.parametrize(("error", "status"), [(states.StateConflict("x"), 503), (DatabaseError("x"), 500)], ids=repr)
def test_a_state_conflict_is_503_and_a_bug_500(
    provider: Provider, order: UUID, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("shop.orders.payments.states.change", raising(error))
        assert provider.reports(payment(order)).status_code == status
    assert (state(order), Payment.objects.count()) == ("pending", 0)
    assert provider.reports(payment(order)).json()["outcome"] == "paid"
    assert conservation.broken() == []


def test_a_lost_commit_answer_is_found_by_the_next_report(
    provider: Provider, order: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = payments.record_payment

    def record_and_lose(*arguments: Any, **more: Any) -> Payment:
        transaction.on_commit(raising(OperationalError("the answer was lost")))
        return record(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(payments, "record_payment", record_and_lose)
        assert_problem(provider.reports(payment(order)), 503, "unavailable")
    again = provider.reports(payment(order))
    assert (again.json()["outcome"], again.headers["Idempotent-Replayed"]) == ("paid", "true")
    assert Payment.objects.count() == 1


def test_of_two_reports_at_once_with_one_reference_one_is_refused(
    provider: Provider, buyer: Buyer, order: UUID, offer: OnSale
) -> None:
    other = UUID(buyer.order(order_body(offer, a=1)).json()["id"])
    refused, booked = race(
        lambda: provider.reports(payment(order)),
        lambda: Provider().reports(payment(other, amount="9.90")),
        before="INSERT INTO .shop_payment",
    )
    assert (booked.status_code, state(other), state(order)) == (200, "paid", "pending")
    assert_problem(refused, 422, "reference-reused")
    assert "belongs to another payment" in UnmatchedReport.objects.get().reason


def test_of_two_chargebacks_at_once_with_one_reference_one_is_refused(
    provider: Provider, buyer: Buyer, order: UUID, offer: OnSale
) -> None:
    other = UUID(buyer.order(order_body(offer, a=1)).json()["id"])
    provider.reports(payment(order))
    provider.reports(payment(other, "pay_2", "9.90"))

    def charge_back(paid: str, amount: str) -> Any:
        report = {"reference": "cb_1", "payment": paid, "amount": amount, "currency": "EUR"}
        return Provider().reports(report, path="/api/chargebacks/")

    # The second chargeback waits for the stock row, which the first one has locked.
    booked, refused = race(
        lambda: charge_back("pay_1", "19.80"), lambda: charge_back("pay_2", "9.90"), before="INSERT INTO .shop_refund"
    )
    assert (booked.status_code, Refund.objects.get().payment.reference) == (200, "pay_1")
    assert_problem(refused, 422, "reference-reused")
    assert "belongs to another chargeback" in UnmatchedReport.objects.get().reason
