"""The whole way of a buyer in Chromium: sign up, wait for the opening, buy, pay at the provider, see the receipt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from email import message_from_string
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from playwright.sync_api import Page, expect

from loadtest.local_shop import free_port
from shop.models import Order, OrderItem, Payment, Sale
from tests.browser import IN_BROWSER
from tests.factories import orders_in
from tests.shop.browser_support import (
    SAYS,
    Enter,
    assert_accessible,
    button,
    by_language,
    for_each_reader,
    opened,
    shows,
    sold,
)
from tests.shop.conftest import assert_conserved
from tests.shop.payment_support import SECRET, provider_process
from tests.shop.web_server import web_server
from tests.waiting import wait_for

pytestmark = IN_BROWSER

NAME, ADDRESS, PASSWORD = "ada", "ada@example.com", "the right one 2026"
TEXTS = {
    "log in": ("Log in", "登录"),
    "sign up": ("Sign up", "注册"),
    "confirm": ("Yes, confirm it", "是的，确认"),
    "pay": ("Pay 9.90 EUR", "付款 9.90 EUR"),
    "provider": ("Simulated payment provider: no money moves", "模拟支付机构：不会有真实的资金往来"),
    "back": ("Back to the shop", "返回商店"),
    "paid": ("Paid", "已付款"),
    "receipt": ("Receipt", "收据"),
    "bought": ("Yours. Paid", "已付款，归您了"),
}


@pytest.fixture(scope="module")
def mails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the shop writes its mails."""
    return tmp_path_factory.mktemp("mails")


@pytest.fixture(scope="module")
def port(django_db_setup: None, mails: Path) -> Iterator[int]:
    """Run the shop and the payment provider, each in a process of its own."""
    provider = free_port()
    variables = {
        "EMAIL_URL": f"filemail:///{mails}",
        "PAYMENT_SECRET": SECRET,
        "PAYMENT_PAGE": f"http://127.0.0.1:{provider}/pay/",
    }
    with web_server(**variables) as (port, _), provider_process(provider, f"http://127.0.0.1:{port}"):
        yield port


def links(mails: Path) -> list[str]:
    """Return the links in all mails that the shop has sent."""
    bodies = [message_from_string(file.read_text()).get_payload(decode=True) for file in mails.iterdir()]
    return [link for body in bodies if isinstance(body, bytes) for link in re.findall(r"http://\S+", body.decode())]


@for_each_reader
def test_a_visitor_signs_up_waits_buys_pays_and_gets_a_receipt(
    enter: Enter, mails: Path, language: str, viewport: dict[str, int]
) -> None:
    says, texts = SAYS[language], by_language(TEXTS)[language]
    offer, address = sold(opens=timedelta(minutes=30))
    for mail in mails.iterdir():
        mail.unlink()

    def check(page: Page, name: str) -> None:
        assert_accessible(page, f"journey {name}")

    page = opened(enter(None, language, viewport=viewport), address)
    shows(page, says["coming"])
    check(page, "1 countdown of a visitor")
    page.get_by_role("link", name=says["log in"], exact=True).click()
    check(page, "2 log in")
    page.get_by_role("main").get_by_role("link", name=texts["sign up"]).click()
    for field, value in {"username": NAME, "email": ADDRESS, "password1": PASSWORD}.items():
        page.locator(f"[name={field}]").fill(value)
    check(page, "3 sign up")
    page.get_by_role("main").get_by_role("button", name=texts["sign up"]).click()
    page.wait_for_url("**/account/confirm/")
    check(page, "4 mail sent")
    [link] = wait_for(lambda: links(mails), "the mail")

    mailbox = page.context.new_page()  # The link in a mail opens in a new tab.
    mailbox.goto(link)
    check(mailbox, "5 confirm")
    mailbox.get_by_role("button", name=texts["confirm"]).click()
    check(mailbox, "6 confirmed")
    mailbox.locator("[name=login]").fill(ADDRESS)
    mailbox.locator("[name=password]").fill(PASSWORD)
    mailbox.get_by_role("main").get_by_role("button", name=texts["log in"]).click()
    mailbox.wait_for_url(f"**{address}")
    mailbox.close()

    page.goto(address)
    shows(page, says["coming"])
    expect(page.locator(".buying a.button")).to_be_hidden()
    check(page, "7 countdown")
    Sale.objects.filter(pk=offer.sale).update(opens_at=Now() + timedelta(seconds=6))
    expect(button(page)).to_have_text(re.compile("00:0[1-5]"))
    shows(page, says["buy"])
    check(page, "8 open")
    assert orders_in() == 0
    button(page).click()
    shows(page, says["yours"])
    check(page, "9 bought")
    button(page).click()
    page.wait_for_url("**/orders/*/")
    check(page, "10 order")
    page.get_by_role("button", name=texts["pay"]).click()
    expect(page.get_by_role("banner")).to_have_text(texts["provider"])
    expect(page.locator(".amount")).to_have_text("9.90 EUR")
    check(page, "11 provider")
    page.locator("button[value=pay]").click()
    expect(page.locator(".attempt.accepted")).to_be_visible()
    check(page, "12 reported")
    page.get_by_role("link", name=texts["back"]).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(texts["paid"])
    expect(page.get_by_role("heading", level=2, name=texts["receipt"])).to_be_visible()
    expect(page.locator("table.items")).to_contain_text("1 × Mechanical keyboard")
    check(page, "13 receipt")
    page.goto("/orders/")
    expect(page.get_by_role("main")).to_contain_text(texts["paid"])
    check(page, "14 orders")
    page.goto(address)
    shows(page, texts["bought"])
    check(page, "15 sale")

    ada = User.objects.get(username=NAME).pk
    assert list(Order.objects.values_list("customer", "state")) == [(ada, "paid")]
    assert list(OrderItem.objects.values_list("quantity", flat=True)) == [1]
    assert Payment.objects.count() == 1
    assert_conserved()
