"""Limits on the account pages for guesses, sign-ups and mails; what responses reveal; what works without Redis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from allauth.account import forms
from allauth.account.adapter import DefaultAccountAdapter
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.core import mail
from django.test import Client

from shop.accounts import guesses, hashers
from shop.accounts.adapter import AccountAdapter
from shop.accounts.forms import ChangePasswordForm
from shop.accounts.guess_counts import LocalCounts
from tests.factories import slow
from tests.shop.conftest import Gone, assert_problem
from tests.shop.test_account_pages import ADA, CHINESE, NEW, PASSWORD, change_address, is_in, log_in, new_user, reset
from tests.shop.test_guesses import by_admin, by_token

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]

WRONG = "wrong"
OTHER = {"REMOTE_ADDR": "198.51.100.7"}


@pytest.fixture(autouse=True)
def _no_local_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "local", LocalCounts())


def guess(name: str = "ada", password: str = WRONG, **sent: Any) -> int:
    return int(log_in(name, password, **sent).answer.status_code)  # type: ignore[attr-defined]


def form_of_sign_up(number: int) -> dict[str, str]:
    return {**ADA, "username": f"user{number}", "email": f"{number}@example.com"}


# Guesses of passwords


@pytest.mark.parametrize("guarded", [True, False])
def test_a_log_in_by_address_counts_against_the_same_account(
    settings: Any, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Log-ins by user name and by mail address have one limit. Negative control: allauth does not limit guesses."""
    new_user()
    settings.GUESSES_PER_ACCOUNT = 3
    if not guarded:
        monkeypatch.setattr(AccountAdapter, "authenticate", DefaultAccountAdapter.authenticate)
        settings.AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
    answers = [guess(name) for name in ("ada", "ada@example.com", "Ada@example.com", "ada", "ada@example.com")]
    assert answers == ([200] * 3 + [429] * 2 if guarded else [200] * 5)
    if guarded:
        assert [guess(name, PASSWORD) for name in ("ada", "ada@example.com")] == [429] * 2
        assert_problem(by_token("ada", PASSWORD), 429, "too-many-guesses")
        assert by_admin("ada", PASSWORD).status_code == 429


@pytest.mark.parametrize("page", ["password", "password, control", "reauthenticate"])
def test_the_pages_of_an_account_limit_guesses(settings: Any, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    """The forms that ask for the password again limit guesses. Negative control: allauth's own form has no limit."""
    new_user()
    settings.GUESSES_PER_ACCOUNT = 2
    path, _, control = page.partition(",")
    if control:
        monkeypatch.setattr(ChangePasswordForm, "clean_oldpassword", forms.ChangePasswordForm.clean_oldpassword)
    here = log_in()
    form = {"password": WRONG, "oldpassword": WRONG, "password1": NEW, "password2": NEW}
    answers = [here.post(f"/account/{path}/", form).status_code for _ in range(3)]
    assert answers == [200, 200, 200 if control else 429]


def test_a_new_password_opens_the_account_where_it_was_set(client: Client, settings: Any) -> None:
    """A new password ends the limit for the IP address that has set it. Another IP address stays limited."""
    new_user()
    settings.GUESSES_PER_ACCOUNT = 2
    assert [guess() for _ in range(3)] == [200, 200, 429]
    reset(client)
    assert guess(password=NEW, **OTHER) == 429
    assert guess(password=NEW) == 302
    # Wrong guesses from a known IP address have a count of their own. The next new password deletes this count.
    assert [guess() for _ in range(3)] == [200, 200, 429]
    reset(client, password=PASSWORD)
    assert guess(password=PASSWORD) == 302


@pytest.mark.parametrize(("sent", "says"), [({}, "Try again in 15 minutes"), (CHINESE, "请 15 分钟后重试")])
def test_too_many_guesses_are_a_page_in_the_language_of_the_reader(
    settings: Any, sent: dict[str, str], says: str
) -> None:
    settings.GUESSES_PER_ACCOUNT = 1
    guess()
    refused = log_in(**sent).answer  # type: ignore[attr-defined]
    assert refused.status_code == 429
    assert says in refused.text
    assert 'href="/account/password/reset/"' in refused.text


def test_a_busy_process_says_so_on_each_page_that_hashes(
    client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page that hashes a password answers 503 while the process is busy. Afterwards the same forms work.

    A sign-up with a known mail address hashes a password, too, so its duration does not reveal the account. Negative
    control: without that hash, it succeeds although the process is busy.
    """
    new_user()
    here = log_in()
    settings.PASSWORD_HASHERS = [
        "shop.accounts.hashers.PasswordHasher",
        "django.contrib.auth.hashers.MD5PasswordHasher",
    ]
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 1)
    monkeypatch.setattr(hashers, "WAIT", 0.0)
    change = {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW}
    known = {**ADA, "username": "other"}

    def answers(number: int) -> list[Any]:
        return [
            client.post("/account/signup/", form_of_sign_up(number)),
            client.post("/account/signup/", known),
            here.post("/account/password/", change),
            log_in("nobody", WRONG).answer,
        ]

    with hashers.turn():
        refused = answers(1)
        with monkeypatch.context() as without_hash:
            without_hash.setattr("shop.accounts.adapter.make_password", lambda password: "")
            assert client.post("/account/signup/", known).status_code == 302
    assert [(each.status_code, each.headers["Retry-After"]) for each in refused] == [(503, "1")] * 4
    assert all("Try again in a few seconds" in each.text for each in refused)
    assert not User.objects.filter(username="user1").exists()
    assert [each.status_code for each in answers(2)] == [302, 302, 302, 200]


# Sign-ups and mails


@pytest.mark.parametrize("limited", [True, *slow(False)])
def test_sign_ups_are_limited_by_address(client: Client, settings: Any, limited: bool) -> None:
    """Sign-ups are limited per IP address. Negative control: without limits, all succeed."""
    if not limited:
        settings.ACCOUNT_RATE_LIMITS = False
    statuses = [client.post("/account/signup/", form_of_sign_up(number)).status_code for number in range(21)]
    assert statuses == [302] * 20 + [429 if limited else 302]
    assert client.post("/account/signup/", form_of_sign_up(21), **OTHER).status_code == 302
    if limited:
        refused = client.post("/account/signup/", form_of_sign_up(22), **CHINESE)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
        assert "操作过于频繁" in refused.text


def test_the_limit_is_for_the_address_that_the_proxy_names(client: Client, settings: Any) -> None:
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "NUM_PROXIES": 1}
    settings.ACCOUNT_RATE_LIMITS = {**settings.ACCOUNT_RATE_LIMITS, "signup": "2/m/ip"}
    statuses = [
        client.post("/account/signup/", form_of_sign_up(number), HTTP_X_FORWARDED_FOR=address).status_code
        for number, address in enumerate(["203.0.113.1"] * 3 + ["203.0.113.2"])
    ]
    assert statuses == [302, 302, 429, 302]


def test_mails_are_limited_by_recipient_and_by_ip_address(client: Client) -> None:
    def ask(email: object, host: int) -> int:
        address = {"REMOTE_ADDR": f"192.0.2.{host}"}
        return client.post("/account/password/reset/", {"email": f"{email}@example.com"}, **address).status_code

    assert [ask("ada", host) for host in range(6)] == [302] * 5 + [429]
    assert ask("bob", 6) == 302
    assert len(mail.outbox) == 6
    assert [ask(name, 7) for name in range(21)] == [302] * 20 + [429]


def test_the_mail_to_confirm_an_address_is_sent_once_in_three_minutes(client: Client) -> None:
    client.post("/account/signup/", ADA)
    assert [guess(password=PASSWORD) for _ in range(3)] == [302] * 3
    assert len(mail.outbox) == 1


# What an answer tells


@pytest.mark.parametrize("page", ["signup", "password/reset"])
def test_nobody_learns_which_addresses_have_an_account(client: Client, page: str) -> None:
    """A form does not reveal whether a mail address has an account. Negative control: the mails differ."""
    new_user()
    answers = []
    for email in ("ada@example.com", "nobody@example.com"):
        visitor = Client()
        answer = visitor.post(f"/account/{page}/", {**ADA, "username": "new", "email": email})
        shown = visitor.get(answer.headers["Location"])
        answers.append((answer.status_code, answer.headers["Location"], sorted(visitor.cookies), shown.text))
    assert answers[0] == answers[1]
    first, second = mail.outbox
    assert first.body != second.body


# Without Redis


@pytest.mark.parametrize("trouble", ["away", "full", "none"])
def test_without_redis_mails_wait_and_log_ins_do_not(
    client: Client, redis_gone: Gone, full: Callable[[], Any], trouble: str
) -> None:
    """Without Redis or with a full one, the shop sends no mail, and log-ins work. Negative control: a working Redis."""
    new_user()
    context = {"away": redis_gone, "full": full, "none": nullcontext}[trouble]
    with context():
        here = log_in()
        assert is_in(here)
        limited = [
            client.post("/account/signup/", form_of_sign_up(1)),
            client.post("/account/password/reset/", {"email": "ada@example.com"}),
            change_address(here),
            here.post("/account/password/", {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW}),
        ]
        free = [
            client.get("/account/signup/"),
            client.get("/account/password/reset/"),
            here.get("/account/email/"),
            here.post("/account/sign-out-everywhere/"),
        ]
    assert [each.status_code for each in limited] == ([302] * 4 if trouble == "none" else [503] * 4)
    assert [each.status_code for each in free] == [200, 200, 200, 302]
    if trouble != "none":
        assert {each.headers["Retry-After"] for each in limited} == {"60"}
        assert "Try again in a minute" in limited[0].text
        assert mail.outbox == []
