"""The cookie `login` for scripts: which responses set, change and delete it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client, RequestFactory

from shop.models import Sale
from shop.pages import login_hint
from shop.pages.page import page
from tests.factories import on_sale

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

PASSWORD = "a quiet evening"
LOG_IN, LOG_OUT, TOKEN = "/account/login/", "/account/logout/", "/account/token/"


@pytest.fixture
def user() -> User:
    return User.objects.create_user("ada", password=PASSWORD)


def hint_in(client: Client) -> str:
    """Return the hint in the cookies of a browser; empty without one."""
    cookie = client.cookies.get(login_hint.COOKIE)
    return cookie.value if cookie else ""


def log_in(client: Client) -> Any:
    return client.post(LOG_IN, {"login": "ada", "password": PASSWORD})


def test_a_log_in_sets_the_hint_and_a_log_out_deletes_it(client: Client, user: User, settings: Any) -> None:
    client.get(LOG_IN)
    assert hint_in(client) == ""
    cookie = log_in(client).cookies[login_hint.COOKIE]
    assert hint_in(client) == login_hint.value_for(user.pk) != login_hint.value_for(user.pk + 1)
    assert (cookie["httponly"], cookie["samesite"], cookie["secure"]) == ("", "Lax", "")
    assert login_hint.COOKIE not in client.get("/account/").cookies, "the browser has it already"
    client.post(LOG_OUT)
    assert hint_in(client) == ""
    settings.SESSION_COOKIE_SECURE = True
    assert log_in(client).cookies[login_hint.COOKIE]["secure"] is True, "with HTTPS"


def test_a_guest_and_a_sign_out_everywhere_change_the_hint(client: Client) -> None:
    slug = Sale.objects.values_list("slug", flat=True).get(pk=on_sale({"a": 1}).sale)
    Sale.objects.update(guest_checkout=True)
    client.post(f"/sales/{slug}/guest/", {"email": "gast@example.com"})
    assert hint_in(client) == login_hint.value_for(User.objects.get().pk)
    client.post("/account/sign-out-everywhere/")
    assert hint_in(client) == ""


def test_a_log_in_without_a_hint_gets_one_on_the_way_through_the_log_in_page(client: Client, user: User) -> None:
    """A session may lack the hint: it is older, or began in the admin. The log-in page then sets it and redirects."""
    client.force_login(user)
    assert client.get(f"{LOG_IN}?next=/sales/").headers["Location"] == "/sales/"
    assert hint_in(client) == login_hint.value_for(user.pk)


@pytest.mark.parametrize("logged_in", [True, False])
def test_a_token_corrects_a_wrong_hint(client: Client, user: User, *, logged_in: bool) -> None:
    """Without a session, the response deletes the hint, so that the page does not request a token again."""
    if logged_in:
        client.force_login(user)
    client.cookies[login_hint.COOKIE] = "forged"
    answer = client.get(TOKEN).json()
    assert answer["customer"] == (user.pk if logged_in else None), "the server does not trust the hint"
    assert hint_in(client) == (login_hint.value_for(user.pk) if logged_in else "")


@pytest.mark.parametrize(("kept", "status", "told"), [("public", 200, 0), ("private", 503, 0), ("private", 200, 1)])
def test_a_public_page_and_a_server_error_set_no_hint(
    client: Client, user: User, kept: str, status: int, told: int
) -> None:
    """Such answers set no hint, even if they have read the session. Control: the last row, a private page."""
    client.force_login(user)
    request = RequestFactory().get("/")
    request.session = client.session
    assert request.session.get("_auth_user_id") == str(user.pk)
    answer = page(lambda _: HttpResponse(status=status, headers={"Cache-Control": kept}))(request)
    assert len(answer.cookies) == told
