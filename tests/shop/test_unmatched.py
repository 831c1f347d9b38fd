"""Money that matches no order: each signed report is booked, or listed for an operator until it is settled."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.test import Client
from redis import Redis

from inventory.errors import StockUnavailable
from inventory.queue.stream import outcome_key
from inventory.strategies import registry
from shop.models import Order, OrderItem, Payment, Sale, UnmatchedReport
from shop.orders import payments, returns, unmatched
from shop.orders.customer_changes import pay_order
from shop.orders.payments import refunds_due
from shop.orders.queued import save_queued
from tests.factories import OnSale, at_once, elsewhere, on_sale, slow
from tests.shop.conftest import Buyer, Provider, assert_problem, order_body, payment, raising, state
from tests.shop.test_admin import get, rows, run_action, text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

UNMATCHED = "/admin/shop/unmatchedreport/"


@pytest.fixture(autouse=True)
def secret(settings: Any) -> None:
    settings.PAYMENT_SECRET = "shared"


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5}, price="9.90")


@pytest.fixture
def order(buyer: Buyer, offer: OnSale) -> UUID:
    """A pending order of two units of a."""
    return ordered(buyer, offer, a=2)


@pytest.fixture
def queued(buyer: Buyer) -> UUID:
    """A queued order of two units of a."""
    return ordered(buyer, on_sale({"a": 5}, price="9.90", strategy="lua-queue"), a=2)


def ordered(buyer: Buyer, offer: OnSale, **units: int) -> UUID:
    return UUID(buyer.order(order_body(offer, **units)).json()["id"])


def listed() -> list[tuple[str, str]]:
    """Return reason and report of each open report: those that the admin lists."""
    return list(unmatched.open_reports(UnmatchedReport.objects.all()).values_list("reason", "report"))


WRONG: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "too little": ({"amount": "19.79"}, 422, "wrong-amount", "The order costs 19.80, not 19.79."),
    "another currency": ({"currency": "USD"}, 422, "wrong-currency", "The currency is EUR, not USD."),
    "no currency code": ({"currency": "eur"}, 400, "invalid", "The report is not valid. #/currency: Send a currency"),
    "an unknown order": ({"order": str(UUID(int=7))}, 404, "unknown-order", f"There is no order {UUID(int=7)}, or it"),
}


FAST = ["too little", "no currency code"]


@pytest.mark.parametrize("what", [*FAST, *slow(*(what for what in WRONG if what not in FAST))])
def test_money_that_does_not_match_is_listed_until_it_is_settled(
    provider: Provider, order: UUID, admin_client: Client, what: str
) -> None:
    wrong, status, slug, reason = WRONG[what]
    for _ in range(3):
        assert_problem(provider.reports({**payment(order), **wrong}), status, slug)
    assert (state(order), Payment.objects.count()) == ("pending", 0)
    (shown,) = rows(get(admin_client, UNMATCHED, state="open")).values()
    assert listed() == [(shown["reason"], shown["report"])]
    assert shown["reason"].startswith(reason)
    assert all(str(value) in shown["report"] for value in wrong.values())
    assert "Unmatched reports 1 open" in text(get(admin_client, "/admin/"))

    row = UnmatchedReport.objects.get()
    assert f"{row} is settled." in run_action(admin_client, UNMATCHED, "settle", row.pk)
    assert [len(rows(get(admin_client, UNMATCHED, state=each))) for each in ("open", "settled")] == [0, 1]
    assert "Unmatched reports 1 open" not in text(get(admin_client, "/admin/"))
    # Repeating the wrong report lists nothing again. Money of the right amount is still accepted.
    assert_problem(provider.reports({**payment(order), **wrong}), status, slug)
    assert listed() == []
    assert provider.reports(payment(order)).json()["outcome"] == "paid"
    assert_problem(provider.reports({**payment(order), "currency": "USD"}), 422, "reference-reused")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff\x00", b'{"reference": "\\u0000"}'])
def test_a_signed_report_that_cannot_be_read_is_listed(provider: Provider, body: bytes) -> None:
    assert_problem(provider.reports(body), 400, "invalid")
    assert len(listed()) == 1


def test_a_payment_for_a_queued_order_is_booked_when_it_is_repeated(
    provider: Provider, queued: UUID, admin_client: Client
) -> None:
    early = payment(queued)
    assert_problem(provider.reports(early), 404, "unknown-order")
    assert len(listed()) == 1
    save_queued()
    assert provider.reports(early).json()["outcome"] == "paid"
    assert listed() == []
    (row,) = rows(get(admin_client, UNMATCHED, state="settled")).values()
    assert row["settled"].endswith("by a repeated report")


NEVER_SAVED = {
    "Redis was emptied": "The shop has lost order {}.",
    "Postgres was restored": "The shop has lost order {}.",
    "it was rejected without a row": "Order {} was rejected: no such sale",
    "another order took its place": "Order {} repeats order 00000000-0000-0000-0000-000000000007.",
}


@pytest.mark.parametrize("how", NEVER_SAVED)
def test_money_for_an_order_that_is_never_saved_is_listed_and_acknowledged(
    provider: Provider, buyer: Buyer, queued: UUID, redis: Redis, settings: Any, how: str
) -> None:
    if how == "Postgres was restored":
        save_queued()
        OrderItem.objects.all().delete()
        Order.objects.all().delete()
    else:
        redis.flushall()
    rejected = {"sale": Sale.objects.get().pk, "customer": buyer.customer, "hash": "", "reason": "no such sale"}
    if how == "it was rejected without a row":
        redis.set(outcome_key(queued), json.dumps(rejected))
    elif how == "another order took its place":
        redis.set(outcome_key(queued), str(UUID(int=7)))
    else:  # A worker may have read the order before it was lost, and may still save it.
        assert_problem(provider.reports(payment(queued)), 404, "unknown-order")
        settings.RECONCILE_GRACE = 0
    for _ in range(2):
        answer = provider.reports(payment(queued))
        assert answer.status_code == 200
        received = answer.json()
        assert received.items() >= {**payment(queued), "outcome": "unmatched"}.items()
        assert received["note"].startswith(NEVER_SAVED[how].format(queued))
        assert received["received_at"]
    ((reason, report),) = listed()
    assert reason == received["note"]
    assert json.loads(report) == payment(queued)
    assert Payment.objects.count() == 0


NO_ORDERS = {"an id of no order": uuid4(), "an id of the year 10889": UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")}


@pytest.mark.parametrize("why", ["queued", "read by a worker", "Redis is away", "just saved", *NO_ORDERS])
def test_money_for_an_order_that_may_still_be_saved_is_to_be_reported_again(
    provider: Provider, queued: UUID, settings: Any, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Negative control: while an order may still be saved, the provider must report its money again."""
    settings.RECONCILE_GRACE = 0
    early = payment(NO_ORDERS.get(why, queued))
    with monkeypatch.context() as meanwhile:
        if why == "read by a worker":
            read = registry.queue().read("worker", 1)
        elif why == "Redis is away":
            meanwhile.setattr(registry, "queued_order", raising(StockUnavailable("Redis did not answer.")))
        elif why == "just saved":
            meanwhile.setattr(registry, "queued_order", lambda order_id: elsewhere(save_queued) and None)
        assert_problem(provider.reports(early), 404, "unknown-order")
    assert UnmatchedReport.objects.get().reason.endswith("or it is still queued.")
    if why == "read by a worker":
        registry.queue().hand_back("worker", read)
    assert save_queued() == (0 if why == "just saved" else 1)
    if why not in NO_ORDERS:
        assert provider.reports(early).json()["outcome"] == "paid"


def test_money_that_was_sent_back_does_not_pay_an_order(provider: Provider, queued: UUID, admin_client: Client) -> None:
    early = payment(queued)
    assert_problem(provider.reports(early), 404, "unknown-order")
    assert unmatched.settle(UnmatchedReport.objects.get().pk, by=User.objects.get(is_staff=True).pk)
    save_queued()
    booked = provider.reports(early).json()
    assert booked["outcome"] == "refund_due"
    assert booked["note"] == "An operator settled the report before it could be booked."
    assert (state(queued), rows(get(admin_client, "/admin/shop/payment/", refund="due"))) == ("pending", {})


def test_a_report_that_is_recorded_after_it_was_booked_is_closed_by_the_next(order: UUID) -> None:
    """One of two overlapping deliveries finds no order, and is recorded after the other was booked."""
    amount = Order.objects.get(pk=order).total
    pay = partial(payments.receive_payment, "pay", order=order, amount=amount, report="paid")
    take_back = partial(returns.receive_chargeback, "back", payment="pay", amount=amount, report="taken back")
    for book, report in ((pay, "paid"), (take_back, "taken back")):
        assert not book().replayed  # type: ignore[operator]
        unmatched.record(report, "no such order")
        assert book().replayed  # type: ignore[operator]
        assert not unmatched.open_reports(UnmatchedReport.objects.all()).exists()


def test_equal_reports_at_once_are_one_row(order: UUID) -> None:
    report = partial(unmatched.record, "the same", "no such order")
    assert at_once(*[report] * 4) == [UnmatchedReport.objects.get()] * 4


def test_a_report_is_settled_once(customer: int) -> None:
    unmatched.record("a report", "no such order")
    report = UnmatchedReport.objects.get()
    settle = partial(unmatched.settle, report.pk, by=customer)
    assert sorted(at_once(*[settle] * 4)) == [False, False, False, True]  # type: ignore[type-var]


@pytest.mark.parametrize("strategy", ["guarded-update", "group-commit", "lua-queue"])
def test_currency_is_part_of_sale_order_and_payment(
    provider: Provider, buyer: Buyer, settings: Any, strategy: str
) -> None:
    settings.CURRENCY = "CHF"
    offer = on_sale({"a": 5}, price="9.90", strategy=strategy)
    settings.CURRENCY = "EUR"
    assert buyer.get(f"/api/sales/{offer.sale}/").json()["currency"] == "CHF"
    placed = buyer.order(order_body(offer, a=2), key="mine")
    assert placed.json()["currency"] == "CHF"
    assert buyer.get(placed.headers["Location"]).json()["currency"] == "CHF"
    save_queued()
    order = UUID(placed.json()["id"])
    assert buyer.get(placed.headers["Location"]).json()["currency"] == Order.objects.get().currency == "CHF"
    # A payment without a currency is in the shop's currency.
    without = {name: value for name, value in payment(order).items() if name != "currency"}
    problem = assert_problem(provider.reports(without), 422, "wrong-currency")
    assert (problem["expected"], problem["received"]) == ("CHF", "EUR")
    paid = provider.reports({**payment(order), "currency": "CHF"}).json()
    assert (paid["outcome"], paid["currency"]) == ("paid", "CHF")


def test_a_payment_by_the_customer_is_in_the_currency_of_the_order(settings: Any, buyer: Buyer) -> None:
    settings.PAYMENT_SECRET, settings.CURRENCY = "", "CHF"
    order = ordered(buyer, on_sale({"a": 5}), a=1)
    settings.CURRENCY = "EUR"
    pay_order(order, customer=buyer.customer)
    assert Payment.objects.get().currency == "CHF"


def test_the_currency_of_a_sale_cannot_be_changed(offer: OnSale) -> None:
    sale = Sale.objects.get(pk=offer.sale)
    sale.currency = "USD"
    with pytest.raises(ValidationError, match=r"The prices of .* are in EUR"):
        sale.save()


def test_a_payment_of_nothing_for_a_free_order_is_accepted_once(provider: Provider, buyer: Buyer) -> None:
    order = ordered(buyer, on_sale({"a": 5}, price="0.00"), a=1)
    outcomes = [provider.reports(payment(order, name, "0.00")).json()["outcome"] for name in ("one", "two")]
    assert outcomes == ["paid", "refund_due"]
    assert Payment.objects.filter(outcome="paid").get().amount == Decimal("0.00")
    # There is no money to return, so no refund is due. Negative control: a second payment of an order with a price.
    assert not refunds_due(Payment.objects.all()).exists()
    assert Payment.objects.get(reference="two").note == "The order is already paid. There is nothing to refund."
    costly = ordered(buyer, on_sale({"b": 5}, price="9.90"), b=1)
    for name in ("three", "four"):
        provider.reports(payment(costly, name, "9.90"))
    assert [due.reference for due in refunds_due(Payment.objects.all())] == ["four"]
