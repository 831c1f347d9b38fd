"""The account pages in both languages: sign-up, confirmed addresses, log-in, new passwords, sign-out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.contrib.auth.models import User
from django.core import mail
from django.db import connection
from django.db.models.functions import Now
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import get_resolver
from redis import Redis

from shop.accounts import adapter, tokens
from shop.accounts.adapter import AccountAdapter
from shop.models import BrowserSession, Sale
from shop.pages import login_hint
from shop.pages.page import page as page_of_shop
from shop.runtime.csp import STRICT
from shop.runtime.tasks import forget_old_sessions
from tests.factories import on_sale
from tests.shop.conftest import raising

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]

PASSWORD, NEW = "the right one", "a new one 2026"
ADA = {"username": "ada", "email": "ada@example.com", "password1": PASSWORD}
LOG_IN = "/account/login/"


def new_user(name: str = "ada", *, confirmed: bool = True) -> User:
    """Create an account with the address name@example.com."""
    user = User.objects.create_user(name, f"{name}@example.com", PASSWORD)
    EmailAddress.objects.create(user=user, email=user.email, verified=confirmed, primary=True)
    return user


def log_in(name: str = "ada", password: str = PASSWORD, **sent: Any) -> Client:
    """Log in, and return the client, with the response as its attribute `answer`."""
    client = Client(raise_request_exception=False)
    client.answer = client.post(LOG_IN, {"login": name, "password": password}, **sent)  # type: ignore[attr-defined]
    return client


def is_in(client: Client) -> bool:
    return client.get("/account/").status_code == 200


def link(number: int = -1) -> str:
    """Return the path of the link in a mail; by default in the newest one."""
    found = re.search(r"https?://[^/\s]+(/account/\S+)", str(mail.outbox[number].body))
    assert found, mail.outbox[number].body
    return found[1]


def reset(client: Client, email: str = "ada@example.com", password: str = NEW) -> Any:
    """Request a link for a new password, and use it."""
    client.post("/account/password/reset/", {"email": email})
    form = client.get(link()).headers["Location"]
    return client.post(form, {"password1": password, "password2": password})


# From sign-up to log-out


def test_a_new_buyer_confirms_their_address_and_logs_in(client: Client) -> None:
    signed_up = client.post("/account/signup/", ADA)
    assert (signed_up.status_code, signed_up.headers["Location"]) == (302, "/account/confirm/")
    assert not is_in(client)
    assert (log_in().answer.headers["Location"], len(mail.outbox)) == ("/account/confirm/", 1)  # type: ignore[attr-defined]
    assert mail.outbox[0].to == ["ada@example.com"]
    assert "ada@example.com" in client.get(link()).text
    assert not EmailAddress.objects.get().verified, "the page alone, which a mail scanner opens, confirms nothing"
    assert client.post(link()).headers["Location"] == LOG_IN
    assert "ada@example.com is confirmed." in client.get(LOG_IN).text
    for name in ("ada", "ada@example.com", "Ada@Example.com"):
        visitor = log_in(name)
        assert (visitor.answer.headers["Location"], is_in(visitor)) == ("/sales/", True)  # type: ignore[attr-defined]
    assert visitor.post("/account/logout/").headers["Location"] == "/"
    assert not is_in(visitor)
    assert "no longer valid" in client.get("/account/confirm/nonsense/").text


def test_after_the_confirmation_the_log_in_leads_back_to_the_sale(client: Client) -> None:
    client.post("/account/signup/", {**ADA, "next": "/sales/keyboards/"})
    elsewhere = Client().post(link()).headers["Location"]
    assert elsewhere == LOG_IN, "another browser does not know the page"
    client.post("/account/signup/", {**ADA, "username": "eve", "email": "eve@example.com", "next": "/sales/keyboards/"})
    to_log_in = client.post(link()).headers["Location"]
    assert to_log_in == f"{LOG_IN}?next=%2Fsales%2Fkeyboards%2F"
    answer = client.post(to_log_in, {"login": "eve", "password": ADA["password1"]})
    assert answer.headers["Location"] == "/sales/keyboards/"
    visitor, mallory = Client(), {**ADA, "username": "mallory", "email": "mallory@example.com"}
    visitor.post("/account/signup/", {**mallory, "next": "https://evil.example/"})
    assert visitor.post(link()).headers["Location"] == LOG_IN


def test_after_the_log_in_the_page_that_asked_for_it_is_shown(client: Client) -> None:
    new_user()
    asked = client.get("/orders/")
    assert asked.headers["Location"] == f"{LOG_IN}?next=/orders/"
    page = client.get(asked.headers["Location"]).text
    assert '<input type="hidden" name="next" value="/orders/">' in page
    form = {"login": "ada", "password": PASSWORD}
    assert client.post(LOG_IN, {**form, "next": "/orders/"}).headers["Location"] == "/orders/"
    assert log_in(next="x").answer.headers["Location"] == "/sales/"  # type: ignore[attr-defined]
    other = Client().post(LOG_IN, {**form, "next": "https://evil.example/"})
    assert other.headers["Location"] == "/sales/"


def test_an_account_without_an_address_logs_in_too(client: Client) -> None:
    """An account without a mail address can log in. Operators create such accounts."""
    User.objects.create_user("ada", password=PASSWORD)
    visitor = log_in()
    assert is_in(visitor)
    assert "none" in visitor.get("/account/").text


def test_a_closed_account_does_not_log_in(client: Client) -> None:
    new_user()
    User.objects.update(is_active=False)
    assert "is wrong" in log_in().answer.text  # type: ignore[attr-defined]
    client.post("/account/password/reset/", {"email": "ada@example.com"})
    assert "There is no such account" in str(mail.outbox[-1].body)


def test_an_address_that_is_not_confirmed_opens_no_account(client: Client) -> None:
    """An unconfirmed address opens no account, so nobody can claim another person's address."""
    new_user("mallory", confirmed=False)
    EmailAddress.objects.update(email="ada@example.com")
    assert "is wrong" in log_in("ada@example.com").answer.text  # type: ignore[attr-defined]
    new_user()
    visitor = log_in("ada@example.com")
    assert "ada" in visitor.get("/account/").text


WRONG = [("username", "bob"), ("username", "bob@example.com"), ("email", "not an address"), ("password1", "short")]


@pytest.mark.parametrize(("field", "wrong"), WRONG)
def test_a_form_that_is_wrong_says_where(client: Client, field: str, wrong: str) -> None:
    """A user name with @ is refused, because it could be the mail address of another person."""
    new_user("bob")
    page = client.post("/account/signup/", {**ADA, field: wrong}).text
    assert re.search(rf'id="id_{field}_error".*?<input [^>]*id="id_{field}"[^>]* aria-invalid="true"', page, re.DOTALL)
    assert page.count("aria-invalid") == 1
    assert PASSWORD not in page
    assert User.objects.count() == 1


def test_a_name_that_is_taken_after_the_form_was_checked(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    new_user()
    monkeypatch.setattr(AccountAdapter, "clean_username", lambda self, name, shallow=False: name)
    refused = client.post("/account/signup/", {**ADA, "email": "other@example.com"})
    assert refused.status_code == 409
    assert "just taken this user name" in refused.text


# Passwords and addresses


def test_a_forgotten_password_is_set_again_by_a_link_that_works_once(client: Client) -> None:
    user = new_user()
    elsewhere, refresh = log_in(), tokens.issue(user)["refresh"]
    assert reset(client).headers["Location"] == "/account/password/reset/done/"
    assert [is_in(log_in(password=password)) for password in (PASSWORD, NEW)] == [False, True]
    assert not is_in(elsewhere)
    with pytest.raises(tokens.TokenError, match="Log in again"):
        tokens.refresh(refresh)
    assert [message.subject for message in mail.outbox] == ["Set a new password", "Your password was changed"]
    assert "no longer valid" in Client().get(link(0)).text


def test_the_password_is_changed_on_the_page_of_the_account(client: Client) -> None:
    new_user()
    here, elsewhere = log_in(), log_in()
    form = {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW}
    assert "This is not your password." in here.post("/account/password/", {**form, "oldpassword": "wrong"}).text
    changed = here.post("/account/password/", form, follow=True)
    assert (changed.redirect_chain, "The password is changed." in changed.text) == ([("/account/", 302)], True)
    assert (is_in(here), is_in(elsewhere)) == (True, False)
    assert mail.outbox[-1].subject == "Your password was changed"


def test_a_new_address_takes_over_when_it_is_confirmed(client: Client) -> None:
    new_user()
    here = log_in()
    assert change_address(here).status_code == 302
    assert "new@example.com is not confirmed yet" in here.get("/account/email/").text
    page = here.get("/account/").text
    assert page.index("ada@example.com") < page.index("new@example.com")
    assert is_in(log_in("ada@example.com"))
    assert mail.outbox[-1].to == ["new@example.com"]
    assert here.post(link()).headers["Location"] == "/account/"
    assert [row.email for row in EmailAddress.objects.all()] == ["new@example.com"]
    assert User.objects.get().email == "new@example.com"
    assert [is_in(log_in(name)) for name in ("new@example.com", "ada@example.com")] == [True, False]
    told = mail.outbox[-1]
    assert (told.to, "from ada@example.com to new@example.com" in str(told.body)) == (["ada@example.com"], True)


def change_address(client: Client, email: str = "new@example.com", password: str = PASSWORD, **sent: str) -> Any:
    """Request a change of address, and enter the password if the shop asks for it."""
    answer = client.post("/account/email/", {"action_add": "", "email": email}, **sent)
    asked = answer.headers.get("Location", "")
    return client.post(asked, {"password": password}, **sent) if "reauthenticate" in asked else answer


def test_the_address_is_changed_only_with_the_password(client: Client, settings: Any) -> None:
    """A change of address needs the password. Negative control: for some minutes, the next change needs none."""
    new_user()
    here, add = log_in(), {"action_add": "", "email": "new@example.com"}
    assert "This is not your password." in change_address(here, password="wrong").text
    assert here.post("/account/email/", add).headers["Location"].startswith("/account/reauthenticate/")
    assert (mail.outbox, EmailAddress.objects.count()) == ([], 1)
    assert change_address(here).headers["Location"] == "/account/email/"
    assert (len(mail.outbox), EmailAddress.objects.count()) == (1, 2)
    other = {**add, "email": "other@example.com"}
    assert here.post("/account/email/", other).headers["Location"] == "/account/email/"
    settings.ACCOUNT_REAUTHENTICATION_TIMEOUT = 0
    assert here.post("/account/email/", add).headers["Location"].startswith("/account/reauthenticate/")


def test_signing_out_everywhere_ends_sessions_and_tokens(client: Client) -> None:
    user = new_user()
    here, elsewhere, other = log_in(), log_in(), new_user("bob")
    stays, refresh = log_in("bob"), tokens.issue(user)["refresh"]
    assert here.get("/account/sign-out-everywhere/").headers["Location"] == "/account/"
    done = here.post("/account/sign-out-everywhere/", follow=True)
    assert (done.redirect_chain, "logged out on all devices" in done.text) == ([(LOG_IN, 302)], True)
    assert [is_in(each) for each in (here, elsewhere, stays)] == [False, False, True]
    with pytest.raises(tokens.TokenError, match="Log in again"):
        tokens.refresh(refresh)
    assert tokens.refresh(tokens.issue(other)["refresh"])
    with CaptureQueriesContext(connection) as queries:
        tokens.sign_out_everywhere([other.pk])
    sessions = [each["sql"].split()[0] for each in queries if "browsersession" in each["sql"]]
    assert (sessions, is_in(stays)) == (["DELETE"], False), "it reads no session"


def test_an_account_without_a_password_gets_one_by_mail() -> None:
    client = Client()
    client.force_login(User.objects.create_user("ada"))
    asked = client.get("/account/password/", follow=True)
    assert [path for path, _ in asked.redirect_chain] == ["/account/password/set/", "/account/password/reset/"]
    assert asked.status_code == 200


@pytest.mark.parametrize("path", ["password", "email", "login", "signup", "password/reset"])
def test_a_form_is_not_put(path: str) -> None:
    """PUT is refused. allauth would treat it as a POST without fields, and fail."""
    new_user()
    assert log_in().put(f"/account/{path}/").status_code == 405


def test_expired_sessions_are_forgotten(client: Client) -> None:
    new_user()
    here = log_in()
    log_in()
    expired = BrowserSession.objects.filter(pk=here.session.session_key)
    assert expired.update(expire_date=Now() - timedelta(seconds=1)) == 1
    forget_old_sessions()
    assert (expired.count(), BrowserSession.objects.count()) == (0, 1)


@pytest.mark.parametrize("path", ["sign-out-everywhere", "logout", "password", "email", "login", "signup"])
def test_a_form_of_another_site_is_refused(client: Client, path: str) -> None:
    new_user()
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get())
    assert strict.post(f"/account/{path}/", {}).status_code == 403
    assert is_in(strict)


# Languages, headers, addresses

CHINESE = {"HTTP_ACCEPT_LANGUAGE": "zh-CN,zh;q=0.9"}
PAGES = ("", "login/", "signup/", "confirm/", "email/", "reauthenticate/", "password/", "password/reset/", "logout/")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_in_the_language_of_its_reader(client: Client, path: str) -> None:
    new_user()
    reader = Client() if path in ("login/", "signup/") else log_in()
    pages = [reader.get(f"/account/{path}", **sent) for sent in ({}, CHINESE)]
    assert [page.headers["Content-Language"] for page in pages] == ["en", "zh-hans"]
    english, chinese = (visible(page.text) for page in pages)
    assert not re.search(r"[\u4e00-\u9fff]", english.replace("简体中文", ""))
    assert foreign_words(chinese) == set()
    assert "你" not in chinese, "Django's translations say so; the shop says 您"
    for page in pages:
        assert page.headers["Content-Security-Policy"] == STRICT
        assert "no-store" in page.headers["Cache-Control"]


WRONG_FORMS = {
    "login/": {"login": "ada", "password": "wrong"},
    "signup/ ": {"username": "ada", "email": "no address", "password1": "short"},
    "signup/": {"username": "a@b", "email": "", "password1": "password"},
    "email/": {"action_add": "", "email": "ada@example.com"},
    "password/ ": {"oldpassword": "wrong", "password1": NEW, "password2": "another"},
    "password/": {"oldpassword": PASSWORD, "password1": "short", "password2": "short"},
    "reauthenticate/": {"password": "wrong"},
    "password/reset/": {"email": ""},
}


@pytest.mark.parametrize("path", WRONG_FORMS)
def test_what_is_wrong_is_said_in_the_language_of_the_reader(client: Client, path: str) -> None:
    new_user()
    reader = client if path.strip() in ("login/", "signup/") else log_in()
    page = reader.post(f"/account/{path.strip()}", WRONG_FORMS[path], **CHINESE)
    assert (page.status_code, "errorlist" in page.text) == (200, True)
    assert foreign_words(visible(page.text)) == set()
    assert "你" not in visible(page.text)


def foreign_words(chinese: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]{2,}", chinese)) - {"Last", "Unit", "API", "English", "ada", "example", "com"}


def visible(page: str) -> str:
    """Return the text of a page without its tags."""
    return re.sub(r"<[^>]*>", " ", page.partition("<title>")[2])


def every_mail(client: Client, redis: Redis, **sent: str) -> Sequence[Any]:
    """Make the shop send each kind of mail, and return the mails."""
    client.post("/account/signup/", ADA, **sent)
    client.post(link(), **sent)
    redis.flushall()  # Allow another mail to this address within 3 minutes.
    client.post("/account/signup/", {**ADA, "username": "bob"}, **sent)
    for email in ("ada@example.com", "nobody@example.com"):
        client.post("/account/password/reset/", {"email": email}, **sent)
    form = client.get(link(-2), **sent).headers["Location"]
    client.post(form, {"password1": NEW, "password2": NEW}, **sent)
    client.post(LOG_IN, {"login": "ada", "password": NEW}, **sent)
    again = {"oldpassword": NEW, "password1": PASSWORD, "password2": PASSWORD}
    client.post("/account/password/", again, **sent)
    change_address(client, **sent)
    client.post("/account/email/", {"action_remove": "", "email": "new@example.com"}, **sent)
    change_address(client, "newer@example.com", **sent)
    client.post(link(), **sent)
    return mail.outbox


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_mail_is_in_the_language_of_its_reader(
    client: Client, redis: Redis, settings: Any, language: str
) -> None:
    settings.DEFAULT_FROM_EMAIL = "shop@example.com"
    sent = every_mail(client, redis, **(CHINESE if language == "zh" else {}))
    subjects = [each.subject for each in sent]
    assert (len(subjects), len(set(subjects))) == (10, 6), subjects
    for each in sent:
        written = re.sub(r"\S*(?:http|@)\S*|Last Unit|\bada\b", "", f"{each.subject} {each.body}")
        foreign = r"[\u4e00-\u9fff]" if language == "en" else "[A-Za-z]{2,}"
        assert re.findall(foreign, written) == []
        assert each.from_email == "shop@example.com"
        assert "&" not in each.body


@pytest.mark.parametrize("public", ["https://shop.example", ""], ids=["public", "control"])
def test_links_in_mails_lead_to_the_shop_whatever_host_the_request_names(
    client: Client, redis: Redis, settings: Any, public: str
) -> None:
    """Links in mails use PUBLIC_URL, whatever Host a request names. Negative control: without it, they use the Host."""
    settings.PUBLIC_URL = public
    sent = every_mail(client, redis, HTTP_HOST="testserver:666")
    linked = {origin for each in sent for origin in re.findall(r"https?://[^/\s]+", each.body)}
    assert linked == {public or "http://testserver:666"}
    assert sum("/account/" in each.body for each in sent) >= 6


def test_only_the_pages_that_a_buyer_needs_are_there() -> None:
    names = {str(name) for name in get_resolver().reverse_dict if isinstance(name, str)}
    assert {name for name in names if name.startswith(("account", "socialaccount", "mfa", "headless"))} == {
        *("account", "account-token", "account_guest", "account_login", "account_logout", "account_signup"),
        *("account_email", "account_confirm_email", "account_email_verification_sent", "account_sign_out_everywhere"),
        *("account_reauthenticate", "account_change_password", "account_set_password", "account_reset_password"),
        *(f"account_reset_password_{step}" for step in ("done", "from_key", "from_key_done")),
    }


# Mails that cannot be sent


@pytest.mark.parametrize("away", [True, False])
def test_without_a_mail_server_the_page_says_so(client: Client, settings: Any, away: bool) -> None:
    """The page reveals no accounts. Negative control: with a mail server, the mail is sent.

    A password is changed although no mail can tell.
    """
    new_user()
    here = log_in()
    if away:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    answers = [
        client.post("/account/password/reset/", {"email": "ada@example.com"}),
        client.post("/account/password/reset/", {"email": "nobody@example.com"}),
        client.post("/account/signup/", {**ADA, "username": "bob"}),
        client.post("/account/signup/", {**ADA, "username": "eve", "email": "eve@example.com"}),
    ]
    assert [answer.status_code for answer in answers] == [503 if away else 302] * 4
    if away:
        assert {answer.headers["Retry-After"] for answer in answers} == {"60"}
        assert len({visible(answer.text) for answer in answers}) == 1
    form = {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW}
    assert here.post("/account/password/", form).status_code == 302
    assert User.objects.get(username="ada").check_password(NEW)


def test_a_slow_mail_server_takes_a_quarter_of_the_threads(client: Client, settings: Any) -> None:
    with ExitStack() as others:
        for _ in range(max(1, settings.WEB_THREADS // 4)):
            assert adapter._sending.acquire(blocking=False)
            others.callback(adapter._sending.release)
        assert client.post("/account/password/reset/", {"email": "a@example.com"}).status_code == 503
    # Negative control: when other mails have been sent, this one is accepted.
    assert client.post("/account/password/reset/", {"email": "a@example.com"}).status_code == 302


def test_a_mistake_in_a_mail_is_no_mail_server_that_is_away(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccountAdapter, "render_mail", raising(KeyError("a bug")))
    client.raise_request_exception = False
    assert client.post("/account/password/reset/", {"email": "a@example.com"}).status_code == 500
    assert adapter._sending.acquire(blocking=False)
    adapter._sending.release()


# The cookie `login` for scripts


def hint_in(client: Client) -> str:
    """Return the hint in the cookies of a browser; empty without one."""
    cookie = client.cookies.get(login_hint.COOKIE)
    return cookie.value if cookie else ""


def test_a_log_in_sets_the_hint_and_a_log_out_deletes_it(client: Client, settings: Any) -> None:
    user, form = new_user(), {"login": "ada", "password": PASSWORD}
    client.get(LOG_IN)
    assert hint_in(client) == ""
    cookie = client.post(LOG_IN, form).cookies[login_hint.COOKIE]
    assert hint_in(client) == login_hint.value_for(user.pk) != login_hint.value_for(user.pk + 1)
    assert (cookie["httponly"], cookie["samesite"], cookie["secure"]) == ("", "Lax", "")
    assert login_hint.COOKIE not in client.get("/account/").cookies, "the browser has it already"
    client.post("/account/logout/")
    assert hint_in(client) == ""
    settings.SESSION_COOKIE_SECURE = True
    assert client.post(LOG_IN, form).cookies[login_hint.COOKIE]["secure"] is True, "with HTTPS"


def test_a_guest_and_a_sign_out_everywhere_change_the_hint(client: Client) -> None:
    slug = Sale.objects.values_list("slug", flat=True).get(pk=on_sale({"a": 1}).sale)
    Sale.objects.update(guest_checkout=True)
    client.post(f"/sales/{slug}/guest/", {"email": "gast@example.com"})
    assert hint_in(client) == login_hint.value_for(User.objects.get().pk)
    client.post("/account/sign-out-everywhere/")
    assert hint_in(client) == ""


def test_a_log_in_without_a_hint_gets_one_on_the_way_through_the_log_in_page(client: Client) -> None:
    """A session may lack the hint: it is older, or began in the admin. The log-in page then sets it and redirects."""
    user = new_user()
    client.force_login(user)
    assert client.get(f"{LOG_IN}?next=/sales/").headers["Location"] == "/sales/"
    assert hint_in(client) == login_hint.value_for(user.pk)


@pytest.mark.parametrize("logged_in", [True, False])
def test_a_token_corrects_a_wrong_hint(client: Client, *, logged_in: bool) -> None:
    """Without a session, the response deletes the hint, so that the page does not request a token again."""
    user = new_user()
    if logged_in:
        client.force_login(user)
    client.cookies[login_hint.COOKIE] = "forged"
    answer = client.get("/account/token/").json()
    assert answer["customer"] == (user.pk if logged_in else None), "the server does not trust the hint"
    assert hint_in(client) == (login_hint.value_for(user.pk) if logged_in else "")


@pytest.mark.parametrize(("kept", "status", "told"), [("public", 200, 0), ("private", 503, 0), ("private", 200, 1)])
def test_a_public_page_and_a_server_error_set_no_hint(client: Client, kept: str, status: int, told: int) -> None:
    """Such answers set no hint, even if they have read the session. Control: the last row, a private page."""
    user = new_user()
    client.force_login(user)
    request = RequestFactory().get("/")
    request.session = client.session
    assert request.session.get("_auth_user_id") == str(user.pk)
    answer = page_of_shop(lambda _: HttpResponse(status=status, headers={"Cache-Control": kept}))(request)
    assert len(answer.cookies) == told
