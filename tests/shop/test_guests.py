"""Guest checkout: who becomes a guest, what a guest reaches, and how they become a customer with an account."""

from __future__ import annotations

import re
from datetime import timedelta
from smtplib import SMTPException
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from allauth.account.models import EmailAddress
from allauth.account.stages import EmailVerificationStage
from django.contrib.auth.models import User
from django.core import mail
from django.db import IntegrityError
from django.db.models.functions import Now
from django.test import Client
from redis import Redis

from shop.accounts import adapter, guests
from shop.accounts.guests import forget_old_guests
from shop.accounts.tokens import AccessToken
from shop.models import Guest, Order, Sale
from shop.orders.customer_changes import pay_order
from shop.orders.queued import save_queued
from shop.preflight import sale_checks
from shop.runtime.tasks import forget_old_sessions
from shop.sales import offers
from tests.factories import OnSale, interleaved, new_customer, on_sale
from tests.shop.conftest import Gone, assert_conserved, assert_problem, buy, on_hand, order_body, raising
from tests.shop.test_account_pages import CHINESE, LOG_IN, PASSWORD, foreign_words, link, log_in, new_user, visible
from tests.shop.waiting_support import with_room

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

ADDRESS = "gast@example.com"


def allow(offer: OnSale, *, guests: bool = True) -> str:
    """Let guests buy in a sale, or not. Return its slug."""
    Sale.objects.filter(pk=offer.sale).update(guest_checkout=guests)
    offers.forget(offer.sale)
    return str(Sale.objects.values_list("slug", flat=True).get(pk=offer.sale))


@pytest.fixture
def offer() -> OnSale:
    """A sale that allows guests."""
    offer = on_sale({"a": 9})
    allow(offer)
    return offer


@pytest.fixture
def slug(offer: OnSale) -> str:
    return allow(offer)


def browser() -> Client:
    return Client(raise_request_exception=False)


def become_guest(slug: str, client: Client | None = None, email: str = ADDRESS, **sent: Any) -> Client:
    """Post the form of a guest, and return the client, with the response as its attribute `answer`."""
    client = client or browser()
    client.answer = client.post(f"/sales/{slug}/guest/", {"email": email, **sent})  # type: ignore[attr-defined]
    return client


def form_of(client: Client, slug: str, **query: Any) -> dict[str, str]:
    """Return the fields of the form that buys, with the key of the page."""
    page = client.get(f"/sales/{slug}/buy/", query, follow=True).content.decode()
    return dict(re.findall(r'<input [^>]*name="(product|price|key|ticket|quantity)" value="([^"]*)"', page))


def bought(client: Client, slug: str) -> UUID:
    """Buy without JavaScript, and return the id of the order."""
    answer = client.post(f"/sales/{slug}/buy/", form_of(client, slug))
    assert answer.status_code == 302, answer.content.decode()
    return UUID(answer.headers["Location"].split("/")[-2])


def token_of(client: Client) -> dict[str, Any]:
    return dict(client.get("/account/token/").json())


def api_order(client: Client, offer: OnSale, key: str = "", sku: str = "a") -> Any:
    """Order as the script of a page does."""
    headers = {"Authorization": f"Bearer {token_of(client)['access']}", "Idempotency-Key": key or str(uuid4())}
    return client.post("/api/orders/", order_body(offer, **{sku: 1}), content_type="application/json", headers=headers)


# Becoming a guest, and buying


def test_a_visitor_buys_without_javascript_and_a_double_post_is_one_order(offer: OnSale, slug: str) -> None:
    client = browser()
    product = offer.products["a"]
    assert re.search(r"<a [^>]*data-guest hidden>", client.get(f"/sales/{slug}/").text), "only a script shows it"
    asked = client.get(f"/sales/{slug}/buy/?product={product}&quantity=2")
    back = f"/sales/{slug}/buy/?product={product}&quantity=2"
    assert asked.headers["Location"] == f"/sales/{slug}/guest/?next={quote(back)}"
    page = client.get(asked.headers["Location"]).text
    for href in ("/account/login/", "/account/signup/"):
        assert f'href="{href}?next=' in page
    (shown,) = re.findall(r'name="next" value="([^"]*)"', page)
    entered = client.post(f"/sales/{slug}/guest/", {"email": ADDRESS, "next": shown.replace("&amp;", "&")})
    assert (entered.status_code, entered.headers["Location"]) == (302, back)
    form = form_of(client, slug, product=product, quantity=2)
    answers = [client.post(f"/sales/{slug}/buy/", form) for _ in range(2)]
    order = Order.objects.get()
    assert [answer.headers["Location"] for answer in answers] == [f"/orders/{order.pk}/"] * 2
    assert (order.items.get().quantity, order.customer) == (2, Guest.objects.get().user)
    receipt = client.get(f"/orders/{order.pk}/").text
    assert f"<dd>{ADDRESS}</dd>" in receipt
    assert client.post(f"/orders/{order.pk}/pay/").status_code == 302
    assert Order.objects.get().state == "paid"
    other = bought(client, slug)
    client.post(f"/orders/{other}/cancel/")
    assert "Cancelled by you" in client.get(f"/orders/{other}/").text


def test_a_guest_has_no_password_no_address_of_an_account_and_gets_no_mail(slug: str) -> None:
    become_guest(slug)
    guest = Guest.objects.get()
    assert (guest.email, guest.user.email, guest.user.has_usable_password()) == (ADDRESS, "", False)
    assert "gast" not in guest.user.username
    assert (EmailAddress.objects.count(), mail.outbox) == (0, [])


def test_the_script_of_a_page_orders_with_the_token_of_a_guest(offer: OnSale, slug: str) -> None:
    assert token_of(browser())["guest"] is False
    client = become_guest(slug)
    token = token_of(client)
    assert (token["guest"], token["customer"]) == (True, Guest.objects.get().pk)
    assert AccessToken(token["access"])["guest"] is True
    assert api_order(client, offer).status_code == 201
    assert token_of(log_in_customer())["guest"] is False


def log_in_customer() -> Client:
    client = browser()
    client.force_login(User.objects.get(pk=new_customer()))
    return client


def test_who_is_logged_in_does_not_become_a_guest(slug: str) -> None:
    client = become_guest(slug, log_in_customer())
    assert client.answer.headers["Location"] == f"/sales/{slug}/"  # type: ignore[attr-defined]
    assert client.get("/account/guest/").headers["Location"] == "/account/"
    assert browser().get("/account/guest/").headers["Location"] == f"{LOG_IN}?next=/account/guest/"
    client = become_guest(slug)
    become_guest(slug, client, "other@example.com")
    assert Guest.objects.get().email == ADDRESS


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "", "account"])
def test_a_guest_is_led_to_no_other_site(slug: str, back: str) -> None:
    """A guest is led to pages of the shop alone. `redirect` would take `account` for the name of a URL, and fail."""
    assert browser().get(f"/sales/{slug}/guest/", {"next": back}).status_code == 200
    client = become_guest(slug, next=back)
    assert client.answer.headers["Location"] == f"/sales/{slug}/"  # type: ignore[attr-defined]


@pytest.mark.parametrize("email", ["", "no address", "a@b", "x" * 250 + "@example.com"])
def test_a_wrong_address_is_named_in_the_language_of_the_reader(slug: str, email: str) -> None:
    answer = browser().post(f"/sales/{slug}/guest/", {"email": email}, **CHINESE)
    assert (answer.status_code, "errorlist" in answer.text, Guest.objects.count()) == (200, True, 0)
    assert foreign_words(visible(answer.text)) - {"Sale", "by", "guarded", "update", "no", "address"} == set()


def test_while_redis_is_away_or_by_a_form_of_another_site_nobody_becomes_a_guest(slug: str, redis_gone: Gone) -> None:
    answer = become_guest(slug, Client(enforce_csrf_checks=True)).answer  # type: ignore[attr-defined]
    assert (answer.status_code, Guest.objects.count()) == (403, 0)
    with redis_gone():
        answer = become_guest(slug).answer  # type: ignore[attr-defined]
    assert (answer.status_code, answer.headers["Retry-After"], Guest.objects.count()) == (503, "60", 0)


# Sales for accounts alone


@pytest.mark.parametrize("allowed", [False, True], ids=["", "control"])
def test_a_guest_buys_only_where_the_sale_allows_it(slug: str, allowed: bool) -> None:
    """A guest buys only where the sale allows guests. Negative control: where it does, the same requests buy."""
    client, other = become_guest(slug), on_sale({"b": 9})
    there = allow(other, guests=True)
    form = form_of(client, there)
    allow(other, guests=allowed)
    assert browser().get(f"/api/sales/{other.sale}/").json()["guest_checkout"] is allowed
    page = client.get(f"/sales/{there}/buy/", follow=True)
    posted, ordered = client.post(f"/sales/{there}/buy/", form), api_order(client, other, sku="b")
    if allowed:
        assert (page.status_code, posted.status_code, ordered.status_code) == (200, 302, 201)
        return
    for answer in (page, posted):
        assert (answer.status_code, 'href="/account/guest/"' in answer.text) == (403, True)
        assert "Make an account to buy here" in answer.text
    assert_problem(ordered, 403, "no-guests")
    assert not Order.objects.exists()


@pytest.mark.parametrize("allowed", [False, True], ids=["", "control"])
def test_a_guest_takes_no_place_in_the_room_of_another_sale(slug: str, redis: Redis, allowed: bool) -> None:
    room = with_room(coming=True)
    client, there = become_guest(slug), allow(room, guests=allowed)
    page = client.post(f"/waiting/{there}/")
    token = {"Authorization": f"Bearer {token_of(client)['access']}"}
    called = client.post(f"/api/sales/{room.sale}/waiting/", headers=token)
    if allowed:
        assert (page.status_code, called.json()["state"]) == (302, "draw")
        assert "keep your place on this browser" in client.get(f"/waiting/{there}/").text
    else:
        assert page.status_code == 403
        assert_problem(called, 403, "no-guests")
    assert redis.zcard(f"{{waiting:{room.sale}}}:places") == int(allowed)


def test_without_guest_checkout_a_visitor_is_asked_to_log_in() -> None:
    slug = allow(on_sale({"a": 9}), guests=False)
    for path in (f"/sales/{slug}/buy/", f"/waiting/{slug}/"):
        assert browser().get(path).headers["Location"] == f"{LOG_IN}?next={path}"
    answer = become_guest(slug).answer  # type: ignore[attr-defined]
    assert (answer.headers["Location"], Guest.objects.count()) == (f"{LOG_IN}?next=/sales/{slug}/", 0)
    assert "Buy as a guest" not in browser().get(f"/sales/{slug}/").text


def test_the_same_key_finds_the_order_after_guest_checkout_was_switched_off(offer: OnSale, slug: str) -> None:
    client = become_guest(slug)
    first = api_order(client, offer, "one")
    allow(offer, guests=False)
    again = api_order(client, offer, "one")
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert_problem(api_order(client, offer, "two"), 403, "no-guests")


# Addresses


def test_a_guest_with_somebodys_address_is_apart_from_their_account(offer: OnSale, slug: str) -> None:
    owner = new_user("ada")
    theirs = buy(offer, owner.pk, a=1).order.pk
    client = become_guest(slug, email="ada@example.com")
    mine = bought(client, slug)
    assert client.get(f"/orders/{theirs}/").status_code == 404
    assert str(theirs) not in client.get("/orders/").text
    ada = log_in()
    assert ada.get(f"/orders/{mine}/").status_code == 404
    assert list(owner.orders.values_list("pk", flat=True)) == [theirs]


@pytest.mark.parametrize("separate", [True, False], ids=["", "control"])
def test_the_address_of_a_guest_blocks_no_sign_up_and_gets_no_password(slug: str, separate: bool) -> None:
    """A guest's address blocks no sign-up and gets no link for a password. Negative control: an account's does both."""
    become_guest(slug)
    if not separate:
        User.objects.update(email=ADDRESS)
    browser().post("/account/password/reset/", {"email": ADDRESS})
    assert ("There is no such account" in str(mail.outbox[-1].body)) is separate
    browser().post("/account/signup/", {"username": "gast", "email": ADDRESS, "password1": PASSWORD})
    assert User.objects.filter(username="gast").exists() is separate
    if separate:
        assert browser().post(link()).headers["Location"] == LOG_IN
        assert guests.guest_of(Guest.objects.get().pk) is not None, "that of the guest is no other's to confirm"


# Limits


def test_one_browser_makes_one_guest(slug: str, redis: Redis) -> None:
    """A browser makes one guest, even for another address. Negative control: another browser makes another guest."""
    room = with_room(coming=True)
    there = allow(room)
    client = become_guest(there)
    client.post(f"/waiting/{there}/")
    client.post("/account/logout/")
    assert "bought as a guest on this browser before" in client.get(f"/sales/{there}/guest/").text
    again = become_guest(there, client, "other@example.com").answer  # type: ignore[attr-defined]
    assert (again.status_code, "bought as a guest" in again.text, Guest.objects.count()) == (409, True, 1)
    client.post(f"/waiting/{there}/")
    assert redis.zcard(f"{{waiting:{room.sale}}}:places") == 1
    become_guest(there).post(f"/waiting/{there}/")
    assert (redis.zcard(f"{{waiting:{room.sale}}}:places"), Guest.objects.count()) == (2, 2)


def same_browser(slug: str, *, cookie: str = "browser") -> tuple[Client, Client]:
    """Return two windows of a browser that has opened the page of the form and has sent no form yet."""
    first, second = browser(), browser()
    first.get(f"/sales/{slug}/guest/")
    second.cookies[cookie] = first.cookies["browser"].value
    return first, second


@pytest.mark.parametrize("known", [True, False], ids=["", "control"])
def test_forms_that_a_browser_sends_at_the_same_time_make_one_guest(slug: str, known: bool) -> None:
    """Negative control: without a common id of the browser, they make two guests."""
    first, second = same_browser(slug, cookie="browser" if known else "another")
    with interleaved(lambda: become_guest(slug, second, "second@example.com"), before='INSERT INTO "auth_user"'):
        become_guest(slug, first)
    answers = [client.answer.status_code for client in (first, second)]  # type: ignore[attr-defined]
    assert (answers, Guest.objects.count()) == ([302, 302], 1 if known else 2)
    assert (token_of(first)["customer"] == token_of(second)["customer"]) is known
    assert token_of(second)["guest"] is True


def test_the_id_of_a_browser_opens_no_guest_later(slug: str) -> None:
    first, second = same_browser(slug)
    become_guest(slug, first)
    Guest.objects.update(created_at=Now() - guests.SAME_FORM)
    answer = become_guest(slug, second).answer  # type: ignore[attr-defined]
    assert (answer.status_code, "bought as a guest on this browser before" in answer.text) == (409, True)
    assert (Guest.objects.count(), token_of(second)["guest"]) == (1, False)


def test_the_id_of_a_browser_is_not_told_and_with_https_set_by_this_host_alone(slug: str, settings: Any) -> None:
    first, _second = same_browser(slug)
    assert first.cookies["browser"]["httponly"] is True
    become_guest(slug, first)
    assert first.cookies["browser"].value[:16] not in Guest.objects.get().user.username
    settings.SESSION_COOKIE_SECURE = True
    secure = browser()
    secure.get(f"/sales/{slug}/guest/", secure=True)
    cookie = secure.cookies["__Host-browser"]
    assert (cookie["secure"], cookie["path"], cookie["domain"]) == (True, "/", "")


@pytest.mark.parametrize("limited", [True, False], ids=["", "control"])
def test_guests_and_sign_ups_of_an_address_have_one_limit(slug: str, settings: Any, limited: bool) -> None:
    rates = {**settings.ACCOUNT_RATE_LIMITS, "signup": "3/m/ip" if limited else None}
    settings.ACCOUNT_RATE_LIMITS = rates
    signed_up = {"username": "bob", "email": "bob@example.com", "password1": PASSWORD}
    browser().post("/account/signup/", signed_up)
    answers = [become_guest(slug).answer.status_code for _ in range(3)]  # type: ignore[attr-defined]
    assert answers == ([302, 302, 429] if limited else [302] * 3)
    assert Guest.objects.count() == (2 if limited else 3)
    other = browser().post(f"/sales/{slug}/guest/", {"email": ADDRESS}, REMOTE_ADDR="192.0.2.7")
    assert other.status_code == 302


# From guest to customer

ACCOUNT = {"username": "ada", "email": ADDRESS, "password1": PASSWORD}


def test_a_guest_becomes_a_customer_and_keeps_their_orders(slug: str) -> None:
    client = become_guest(slug)
    order = bought(client, slug)
    assert "You are a guest" in client.get("/account/").text
    assert f'value="{ADDRESS}"' in client.get("/account/guest/").text
    made = client.post("/account/guest/", ACCOUNT)
    assert made.headers["Location"] == "/account/confirm/"
    assert client.get(f"/orders/{order}/").status_code == 200, "this browser stays logged in"
    assert "You are a guest" in client.get("/account/").text, "until the address is confirmed"
    other = allow(on_sale({"b": 9}), guests=False)
    assert client.get(f"/sales/{other}/buy/", follow=True).status_code == 403
    assert log_in().answer.headers["Location"] == "/account/confirm/"  # type: ignore[attr-defined]
    assert [message.to for message in mail.outbox] == [[ADDRESS]]
    assert browser().post(link()).headers["Location"] == LOG_IN
    elsewhere = log_in(ADDRESS)
    assert "ada" in elsewhere.get("/account/").text
    assert elsewhere.get(f"/orders/{order}/").status_code == 200
    assert elsewhere.get(f"/sales/{other}/buy/", follow=True).status_code == 200
    assert token_of(elsewhere)["guest"] is False
    assert (User.objects.get(username="ada").email, Order.objects.get().customer.username) == (ADDRESS, "ada")
    assert client.get("/account/guest/").headers["Location"] == "/account/"


def let_in_without_an_address(self: adapter.ConfirmEmail) -> tuple[Any, bool]:
    """Flaw: let accounts without a confirmed address log in, as the shop did before there were guests."""
    if not EmailAddress.objects.filter(user=self.login.user).exists():
        return None, True
    answer: tuple[Any, bool] = EmailVerificationStage.handle(self)
    return answer


@pytest.mark.parametrize("guarded", [True, False], ids=["", "control"])
def test_an_address_that_has_an_account_makes_the_same_answers(
    slug: str, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer reveals whether an address has an account. Negative control: without the check, a log-in reveals it."""
    if not guarded:
        monkeypatch.setattr(adapter.ConfirmEmail, "handle", let_in_without_an_address)
    new_user("bob")
    seen = []
    paths = ("/account/", "/account/guest/", "/orders/")
    for name in ("bob", "nobody"):
        client = become_guest(slug, email=f"{name}@example.com")
        answers = [client.answer]  # type: ignore[attr-defined]
        pages = [client.get(path) for path in paths]
        form = {"username": f"guest.of.{name}", "email": f"{name}@example.com", "password1": PASSWORD}
        answers.append(client.post("/account/guest/", form))
        answers.append(log_in(form["username"]).answer)  # type: ignore[attr-defined]
        answers.append(client.get("/account/email/"))
        pages += [client.get(path) for path in paths]
        leads_to = [(answer.status_code, answer.headers["Location"]) for answer in answers]
        token = r'name="csrfmiddlewaretoken" value="\w+"'
        seen.append((leads_to, [re.sub(token, "", page.text).replace(name, "") for page in pages]))
    assert (seen[0] == seen[1]) is guarded
    if not guarded:
        return
    assert [message.to for message in mail.outbox] == [["bob@example.com"], ["nobody@example.com"]]
    assert "already" in str(mail.outbox[0].body)
    assert set(EmailAddress.objects.values_list("email", "user__username")) == {
        ("bob@example.com", "bob"),
        ("nobody@example.com", "guest.of.nobody"),
    }
    browser().post("/account/password/reset/", {"email": "bob@example.com"})
    assert len(mail.outbox) == 3, "one mail, for bob alone"


def test_a_mistyped_address_is_replaced(slug: str) -> None:
    client = become_guest(slug)
    client.post("/account/guest/", {**ACCOUNT, "email": "wrong@example.com"})
    wrong = link()
    client.post("/account/guest/", ACCOUNT)
    assert [row.email for row in EmailAddress.objects.all()] == [ADDRESS]
    assert "no longer valid" in browser().get(wrong).text
    browser().post(link())
    assert guests.guest_of(Guest.objects.get().pk) is None


def test_a_guest_takes_nobodys_name(slug: str) -> None:
    new_user("ada")
    client = become_guest(slug)
    assert "errorlist" in client.post("/account/guest/", ACCOUNT).text
    assert (Guest.objects.get().user.has_usable_password(), mail.outbox) == (False, [])


@pytest.mark.parametrize("path", ["/account/", "/account/guest/"])
def test_the_pages_of_a_guest_are_in_the_language_of_the_reader(slug: str, path: str) -> None:
    page = become_guest(slug, email="ada@example.com").get(path, **CHINESE)
    assert foreign_words(visible(page.text)) == set()
    assert "no-store" in page.headers["Cache-Control"]


# Old guests

OLD = timedelta(days=15)


def aged(client: Client, *, log_out: bool = True) -> Client:
    Guest.objects.filter(pk=token_of(client)["customer"]).update(created_at=Now() - OLD)
    if log_out:
        client.post("/account/logout/")
    return client


def test_old_guests_without_an_order_are_forgotten(slug: str) -> None:
    gone, ordered, here, young = (become_guest(slug, email=f"{name}@example.com") for name in ("a", "b", "c", "d"))
    pay_order(bought(ordered, slug), customer=token_of(ordered)["customer"])
    for client in (gone, ordered):
        aged(client)
    aged(here, log_out=False)
    young.post("/account/logout/")
    customer = new_customer()
    forget_old_sessions()
    assert set(Guest.objects.values_list("email", flat=True)) == {"b@example.com", "c@example.com", "d@example.com"}
    assert User.objects.count() == 4
    assert User.objects.filter(pk=customer).exists()
    assert Order.objects.count() == 1


def test_an_order_that_is_saved_first_keeps_its_guest(offer: OnSale, slug: str) -> None:
    client = become_guest(slug)
    customer = token_of(client)["customer"]
    aged(client)
    ordering = interleaved(lambda: buy(offer, customer, a=1), before='^DELETE FROM "auth_user"')
    with ordering, pytest.raises(IntegrityError):
        forget_old_guests()
    assert (Order.objects.get().customer_id, forget_old_guests()) == (customer, 0)


@pytest.mark.usefixtures("in_steps")
def test_a_guest_who_is_deleted_first_has_no_order(offer: OnSale, slug: str) -> None:
    client = become_guest(slug)
    customer = token_of(client)["customer"]
    aged(client)
    with interleaved(forget_old_guests, after=r"^WITH\s+request AS"), pytest.raises(IntegrityError):
        buy(offer, customer, a=1)
    assert (User.objects.count(), Order.objects.count(), on_hand()[0]) == (0, 0, 9)
    assert_conserved()


# Operators


def test_operators_find_guests(admin_client: Client, slug: str) -> None:
    client = become_guest(slug)
    order, customer = bought(client, slug), new_customer("buyer")
    guest = Guest.objects.get().user

    def listed(query: str) -> str:
        return admin_client.get(f"/admin/auth/user/{query}").text

    assert (guest.username in listed("?guest=yes"), "buyer" in listed("?guest=yes")) == (True, False)
    assert (guest.username in listed("?guest=no"), "buyer" in listed("?guest=no")) == (False, True)
    assert guest.username in listed(f"?q={ADDRESS}")
    assert f"{ADDRESS}, not confirmed" in admin_client.get(f"/admin/auth/user/{guest.pk}/change/").text
    assert ADDRESS not in admin_client.get(f"/admin/auth/user/{customer}/change/").text
    assert str(order) in admin_client.get(f"/admin/shop/order/?q={ADDRESS}").text


@pytest.mark.parametrize(
    ("guests", "limit", "room", "level", "named"),
    [
        (False, 2, True, "ok", ()),
        (True, None, False, "ok", ()),
        (True, 2, False, "warning", ("limit per customer",)),
        (True, None, True, "warning", ("waiting room",)),
        (True, 2, True, "warning", ("limit per customer", "waiting room")),
    ],
)
def test_preflight_warns_where_guests_weaken_a_limit(
    guests: bool, limit: int | None, room: bool, level: str, named: tuple[str, ...]
) -> None:
    allow(with_room(limit=limit) if room else on_sale({"a": 1}, limit=limit), guests=guests)
    found = sale_checks.guests(Sale.objects.get())
    named_there = tuple(each for each in ("limit per customer", "waiting room") if each in found.text)
    assert (found.level, named_there) == (level, named)


def test_a_guest_who_sends_the_form_again_keeps_the_first_link_and_is_not_forgotten(slug: str) -> None:
    """No second mail is sent, because allauth sends at most one mail to an address in three minutes."""
    client = become_guest(slug)
    for _ in range(2):
        client.post("/account/guest/", ACCOUNT)
    assert len(mail.outbox) == 1
    browser().post(link())
    assert EmailAddress.objects.get().verified
    aged(client)
    assert (forget_old_guests(), User.objects.count()) == (0, 1)


def test_a_guest_stays_logged_in_when_the_mail_cannot_be_sent(slug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = become_guest(slug)
    order = bought(client, slug)
    away = raising(SMTPException("The mail server is away."))
    monkeypatch.setattr("allauth.account.adapter.DefaultAccountAdapter.send_mail", away)
    assert client.post("/account/guest/", ACCOUNT).status_code == 503
    assert client.get(f"/orders/{order}/").status_code == 200


def test_a_guest_with_an_order_in_the_queue_is_kept() -> None:
    offer = on_sale({"a": 3}, strategy="lua-queue")
    client = become_guest(allow(offer))
    assert api_order(client, offer).status_code == 202
    aged(client)
    assert forget_old_guests() == 0
    save_queued()
    assert Order.objects.get().state == Order.State.PENDING


def test_an_address_that_is_confirmed_meanwhile_is_kept(slug: str) -> None:
    """A guest corrects their address in one window, and meanwhile opens the link for the first address in another."""
    client = become_guest(slug)
    client.post("/account/guest/", ACCOUNT)
    first = link()
    with interleaved(lambda: browser().post(first), before='FROM "account_emailaddress".*FOR UPDATE'):
        client.post("/account/guest/", {**ACCOUNT, "email": "other@example.com"})
    assert EmailAddress.objects.filter(verified=True).count() == 1
