"""Payments through the simulated provider. Shop and provider talk over HTTP; the tests check the tables."""

from __future__ import annotations

import hmac
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
import requests
from django.core.management import CommandError, call_command
from django.test import override_settings
from redis import Redis

from inventory import stock
from loadtest.local_shop import free_port
from shop.models import Payment, Refund, UnmatchedReport
from shop.orders import unmatched
from shop.orders.expiry import expire_unpaid
from shop.payments.request import NotSigned, PaymentRequest
from shop.payments.simulator import reports, server
from shop.payments.simulator.payments import Button, Payments
from tests.factories import OnSale, on_sale
from tests.shop.conftest import assert_conserved, buy, make_due, state
from tests.shop.payment_support import SECRET, Buyer, choose, hidden, provider_process, reported, send
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@contextmanager
def provider_in_a_thread(shop: str) -> Iterator[str]:
    """Run a provider that reports to the address of a shop, and yield its own address."""
    courier = reports.Courier(shop, lambda _line: None)
    serving = server.Server(("127.0.0.1", 0), Payments(courier))
    threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}"
    finally:
        courier.stop()
        serving.shutdown()
        serving.server_close()


@pytest.fixture
def pages(live_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the shop and a provider in threads, and yield the address of the provider's pages.

    Processes would take seconds to start, and test nothing more.
    """
    monkeypatch.setattr(reports, "RETRY_DELAYS", (0.1,) * 10)
    with (
        provider_in_a_thread(live_server.url) as provider,
        override_settings(PAYMENT_SECRET=SECRET, PAYMENT_PAGE=f"{provider}/pay/"),
    ):
        yield f"{provider}/pay/"


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 2}, price="9.90", strategy="lua")


@pytest.fixture
def order(offer: OnSale, customer: int) -> UUID:
    """A pending order of all units: two of a, for 19.80."""
    return buy(offer, customer, a=2).order.pk


@pytest.fixture
def buyer(live_server: Any, pages: str, customer: int) -> Buyer:
    return Buyer(live_server.url, customer)


def outcomes() -> list[tuple[str, str]]:
    """Return the outcome and amount of each payment."""
    return [(payment.outcome, str(payment.amount)) for payment in Payment.objects.order_by("pk")]


def listed(what: UUID | str) -> list[str]:
    """Return the reasons of unmatched reports of this order or payment. Earlier tests may leave other reports."""
    of_order = unmatched.open_reports(UnmatchedReport.objects.filter(report__contains=str(what)))
    return list(of_order.values_list("reason", flat=True))


@pytest.mark.parametrize(
    ("choice", "answers", "ended", "payments", "shown"),
    [
        ("pay", ["UTC: 200"], "paid", 1, "Print the receipt"),
        ("twice", ["UTC: 200"] * 2, "paid", 1, "Print the receipt"),
        ("out-of-order", ["UTC: 404", "UTC: 200", "UTC: 200"], "refunded", 1, "19.80 EUR taken back by the payment"),
        ("decline", [], "pending", 0, "Pay 19.80 EUR"),
    ],
)
def test_a_button_of_the_provider_has_one_outcome(
    live_server: Any, buyer: Buyer, order: UUID, choice: str, answers: list[str], ended: str, payments: int, shown: str
) -> None:
    """A payment is booked once. A chargeback that arrives before its payment is repeated until it is booked."""
    assert "Pay 19.80 EUR" in buyer.open(order)
    page = buyer.press_pay(order)
    assert "19.80 EUR" in requests.get(page, timeout=30).text
    told = reported(choose(page, choice))
    # The provider may repeat an early chargeback several times.
    assert [*dict.fromkeys(told_answers := re.findall("UTC: [0-9]+", told))] == [*dict.fromkeys(answers)]
    assert told_answers.count("UTC: 200") == answers.count("UTC: 200")
    assert ("Declined" in told, "POST /api" in told) == (not answers, bool(answers))
    assert f'href="{live_server.url}/orders/{order}/?from_provider=1"' in told
    assert (state(order), outcomes()) == (ended, [("paid", "19.80")] * payments)
    assert not any(listed(each) for each in (order, *Payment.objects.values_list("reference", flat=True)))
    assert [(str(each.amount), bool(each.chargeback), bool(each.sent_at)) for each in Refund.objects.all()] == (
        [("19.80", True, True)] if ended == "refunded" else []
    )
    assert shown in buyer.open(order)
    assert stock.on_hand("a") == (2 if ended == "refunded" else 0)
    assert_conserved()


def test_two_presses_of_the_same_button_are_one_payment(buyer: Buyer, order: UUID) -> None:
    page = buyer.press_pay(order)
    form = {**hidden(requests.get(page, timeout=30).text), "choice": "pay"}
    told = send(page, form)
    assert send(page, form) == told
    reported(told)
    assert outcomes() == [("paid", "19.80")]


@pytest.mark.parametrize("sold", [False, True])
def test_a_late_payment_takes_the_units_again_or_is_refunded(
    buyer: Buyer, order: UUID, offer: OnSale, sold: bool
) -> None:
    page = buyer.press_pay(order)
    make_due(order)
    assert expire_unpaid() == 1
    if sold:
        buy(offer, a=1)
    told = choose(page, "late", seconds="1")
    assert "Next attempt at" in requests.get(told, timeout=30).text
    reported(told)
    assert state(order) == ("expired" if sold else "paid")
    assert outcomes() == [("refund_due" if sold else "paid", "19.80")]
    assert ("Sold out: of “A”, 2 were wanted and 1 were left." in buyer.open(order)) is sold
    assert_conserved()


def test_a_wrong_amount_is_refused_and_listed(buyer: Buyer, order: UUID) -> None:
    told = choose(buyer.press_pay(order), "wrong-amount")
    shown = wait_for(lambda: text if "wrong-amount/" in (text := requests.get(told, timeout=30).text) else "")
    assert "UTC: 422" in shown
    assert (state(order), outcomes()) == ("pending", [])
    assert listed(order) == ["The order costs 19.80, not 19.79."]
    assert_conserved()


# Links


def wanted(**changed: Any) -> PaymentRequest:
    values: dict[str, Any] = {
        "order": uuid4(),
        "amount": Decimal("19.80"),
        "currency": "EUR",
        "pay_by": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "back": "http://localhost:8000/orders/1/?from_provider=1",
        "language": "zh-hans",
    }
    return PaymentRequest(**{**values, **changed})


@pytest.mark.parametrize(
    ("before", "after"), [("19.80", "1.00"), ("EUR", "JPY"), ("localhost", "evil.example"), ("2026", "2036")]
)
def test_a_link_that_was_changed_is_refused(monkeypatch: pytest.MonkeyPatch, before: str, after: str) -> None:
    """A changed link is refused. Negative control: without comparing signatures, its amount is accepted."""
    changed = wanted().signed(SECRET).replace(before, after, 1)
    with pytest.raises(NotSigned):
        PaymentRequest.read(changed, SECRET)
    with pytest.raises(NotSigned):
        PaymentRequest.read(wanted().signed("guessed"), SECRET)
    monkeypatch.setattr(hmac, "compare_digest", lambda *_: True)
    assert PaymentRequest.read(changed, SECRET) != wanted()


def test_the_provider_refuses_a_changed_amount_and_reports_nothing(pages: str, buyer: Buyer, order: UUID) -> None:
    page = buyer.press_pay(order)
    changed = page.replace("amount=19.80", "amount=0.01")
    assert changed != page
    for answer in (
        requests.get(changed, timeout=30),
        requests.post(pages, data={"request": changed.partition("?")[2], "choice": "pay"}, timeout=30),
    ):
        assert answer.status_code == 403
        assert "This link was changed on its way" in answer.text
    assert (state(order), outcomes(), listed(order)) == ("pending", [], [])


@pytest.mark.parametrize("back", ["https://evil.example/orders/1/", "javascript:alert(1)", "//evil.example/", ""])
def test_a_link_leads_back_to_the_shop_alone(back: str) -> None:
    """A link leads back only to the shop. Negative control: if the shop accepts any host, it leads to any host."""
    signed = wanted(back=back).signed(SECRET)
    with override_settings(PAYMENT_SECRET=SECRET, ALLOWED_HOSTS=["localhost"]):
        assert server.read_request(wanted().signed(SECRET)).back == wanted().back
        with pytest.raises(server.RequestRefused, match="not the shop's"):
            server.read_request(signed)
    if back.startswith("https:"):
        with override_settings(PAYMENT_SECRET=SECRET, ALLOWED_HOSTS=["*"]):
            assert server.read_request(signed).back == back


def test_without_repeating_a_chargeback_before_its_payment_would_be_lost(
    live_server: Any, order: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: without repeats, a chargeback that arrives before its payment is lost."""
    monkeypatch.setattr(reports, "RETRY_DELAYS", ())
    with override_settings(PAYMENT_SECRET=SECRET):
        payments = Payments(reports.Courier(live_server.url, lambda _line: None))
        made = payments.make(Button.OUT_OF_ORDER, wanted(order=order), reference="sim_0123456789abcdef", seconds=0)
        wait_for(lambda: made.ended, "both reports to end")
    assert [report.accepted for report in made.reports] == [False, True]
    assert state(order) == "paid"


# The command


@pytest.mark.parametrize(
    ("secret", "arguments", "said"),
    [
        ("", (), "PAYMENT_SECRET is not set, .* --help"),
        (SECRET, ("--shop", "localhost:8000"), "--shop must be an address"),
        (SECRET, ("--port", "{busy}"), "Cannot listen on 127.0.0.1:{busy}.* choose another port with --port"),
    ],
)
def test_a_failed_start_says_why(settings: Any, secret: str, arguments: tuple[str, ...], said: str) -> None:
    settings.PAYMENT_SECRET = secret
    with socket.create_server(("127.0.0.1", 0)) as listening:
        busy = listening.getsockname()[1]
        with pytest.raises(CommandError, match=said.format(busy=busy)) as refused:
            call_command("provider", *(each.format(busy=busy) for each in arguments))
    assert refused.value.returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_provider(number: signal.Signals) -> None:
    """A provider that a signal ends prints how many payments the shop has not accepted."""
    port, away = free_port(), free_port()
    with provider_process(port, f"http://127.0.0.1:{away}") as provider:
        told = choose(f"http://127.0.0.1:{port}/pay/?{wanted().signed(SECRET)}", "pay")
        wait_for(lambda: "没有应答" in requests.get(told, timeout=30).text, "the first attempt")
        provider.send_signal(number)
        _nothing, said = provider.communicate(timeout=WAIT_TIMEOUT)
    assert provider.returncode == 0
    assert f"Start the shop with PAYMENT_PAGE=http://127.0.0.1:{port}/pay/" in said
    assert "The shop has not accepted the reports of 1 payments" in said
