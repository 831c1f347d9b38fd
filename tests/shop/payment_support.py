"""The simulated payment provider as a process, and a buyer who goes from the shop to the provider and back."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin
from uuid import UUID

import requests
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from shop.pages import login_hint
from tests.shop.web_server import CHECKOUT
from tests.waiting import WAIT_TIMEOUT, wait_for

SECRET = "shared"
NOWHERE = {
    "DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing",
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "SECRET_KEY": "k" * 64,
}
"""Settings whose addresses lead to no server: the provider needs none of the shop's servers."""


def provider_environment(**variables: str) -> dict[str, str]:
    """Return the environment variables of a provider, with no working address of the shop's servers."""
    mine = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return {**mine, **NOWHERE, "LAB_ENABLED": "0", "PAYMENT_SECRET": SECRET, **variables}


def provider_command(*arguments: str) -> list[str]:
    return [sys.executable, "manage.py", "provider", *arguments]


@contextmanager
def provider_process(port: int, shop: str) -> Iterator[subprocess.Popen[str]]:
    """Run `manage.py provider`, which reports payments to the address of a shop, and wait until it responds."""
    command = provider_command("--port", str(port), "--shop", shop)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=CHECKOUT, env=provider_environment(), stdout=subprocess.DEVNULL, stderr=pipe, text=True
    ) as provider:
        try:
            wait_for(lambda: answers(f"http://127.0.0.1:{port}/"), "the provider to answer", timeout=2 * WAIT_TIMEOUT)
            yield provider
        finally:
            provider.terminate()


def answers(address: str) -> bool:
    try:
        return requests.get(address, timeout=5).ok
    except requests.ConnectionError:
        return False


def session_of(customer: int) -> str:
    """Return the key of a session in which a customer is logged in."""
    client = Client()
    client.force_login(User.objects.get(pk=customer))
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def login_cookies(customer: int, address: str) -> list[Any]:
    """Return the cookies of a browser in which a customer is logged in to the shop at an address, for Playwright."""
    cookies = {settings.SESSION_COOKIE_NAME: session_of(customer), login_hint.COOKIE: login_hint.value_for(customer)}
    url = urljoin(address, "/")  # else the cookies would be for this path alone
    return [{"name": name, "value": value, "url": url} for name, value in cookies.items()]


def hidden(page: str, prefix: str = "") -> dict[str, str]:
    """Return the names and values of the hidden form fields of a page whose names begin with the prefix."""
    fields = re.findall(rf'<input type="hidden" name="({prefix}[^"]*)" value="([^"]*)"', page)
    return {name: html.unescape(value) for name, value in fields}


class Buyer:
    """A buyer whose browser runs no JavaScript."""

    def __init__(self, shop: str, customer: int) -> None:
        self._shop = shop
        self._http = requests.Session()
        self._http.cookies.set(settings.SESSION_COOKIE_NAME, session_of(customer))

    def open(self, order: UUID) -> str:
        """Return the HTML of an order page."""
        answer = self._http.get(f"{self._shop}/orders/{order}/", timeout=30)
        assert answer.status_code == 200
        return answer.text

    def press_pay(self, order: UUID) -> str:
        """Press "Pay", and return the provider's address to which the shop redirects."""
        token = hidden(self.open(order))["csrfmiddlewaretoken"]
        answer = self._http.post(
            f"{self._shop}/orders/{order}/pay/",
            data={"csrfmiddlewaretoken": token},
            headers={"Referer": self._shop},
            allow_redirects=False,
            timeout=30,
        )
        assert answer.status_code == 302
        return answer.headers["Location"]


def choose(page: str, choice: str, **more: str) -> str:
    """Choose an outcome on the provider's page. Return the address of the page about its reports to the shop."""
    shown = requests.get(page, timeout=30)
    assert shown.status_code == 200, shown.text
    return send(page, {**hidden(shown.text), "choice": choice, **more})


def send(page: str, form: Mapping[str, str]) -> str:
    answer = requests.post(page.partition("?")[0], data=form, allow_redirects=False, timeout=30)
    assert answer.status_code == 303, answer.text
    return requests.compat.urljoin(page, answer.headers["Location"])


def reported(address: str) -> str:
    """Wait until the provider stops sending reports, and return its page about them."""

    def ended() -> str:
        text = requests.get(address, timeout=30).text
        return "" if "http-equiv" in text else text

    return html.unescape(wait_for(ended, "the shop to accept the reports"))
