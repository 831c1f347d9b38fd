"""Only a valid access token of an active account is accepted."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import jwt
import pytest
from allauth.account.models import EmailAddress
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from redis import Redis
from rest_framework.test import APIClient
from rest_framework_simplejwt.utils import aware_utcnow

from shop.accounts import tokens
from shop.accounts.tokens import AccessToken, RefreshToken
from shop.models import SignOut
from tests.factories import OnSale, on_sale, orders_in
from tests.shop.conftest import Buyer, assert_problem, order_body

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

PASSWORD = "the right one"


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5})


@pytest.fixture
def user(db: None, redis: Redis) -> User:
    return User.objects.create_user("ada", password=PASSWORD)


def claims(user: User, **more: Any) -> dict[str, Any]:
    return {**AccessToken.for_user(user).payload, **more}


def signed(payload: dict[str, Any], key: str | None = settings.SECRET_KEY, algorithm: str = "HS256") -> str:
    return jwt.encode(payload, key, algorithm=algorithm)


def without(user: User, claim: str) -> str:
    payload = claims(user)
    del payload[claim]
    return signed(payload)


NO_TIMES = [10**18, 10**400, -1, 1.5, float("inf"), float("nan"), "2000000000", True, None, [], [1], {}, ""]
ODD_CLAIMS: dict[str, list[Any]] = {
    "exp": NO_TIMES,
    "iat": NO_TIMES,
    "nbf": [*NO_TIMES, 4_000_000_000],
    "user_id": [int("9" * 30), "9" * 30, 2**31, 0, "0", "01", "\u0661", " 1", "1\n", 1.0, "a", *NO_TIMES],
    "jti": [1, None, [], "", "x" * 300],
    "token_type": ["refresh", 1, None, ["access"], "ACCESS"],
    "session": [1, None, [], ""],
    "is_staff": ["no", 1, None],
}
BAD: dict[str, Callable[[User], str]] = {
    "none": lambda user: "",
    "another scheme": lambda user: "Basic YWRhOnRoZSByaWdodCBvbmU=",
    "no token": lambda user: "Bearer",
    "two tokens": lambda user: f"Bearer {AccessToken.for_user(user)} {AccessToken.for_user(user)}",
    "garbage": lambda user: "Bearer garbage",
    "three parts of garbage": lambda user: "Bearer a.b.c",
    "not ASCII": lambda user: "Bearer schlüssel",
    "NUL": lambda user: "Bearer \x00",
    "enormous": lambda user: f"Bearer {'a' * 100_000}",
    "expired": lambda user: f"Bearer {signed(claims(user, exp=int(aware_utcnow().timestamp()) - 1))}",
    "signed with another key": lambda user: f"Bearer {signed(claims(user), 'x' * 50)}",
    "not signed": lambda user: f"Bearer {signed(claims(user), None, 'none')}",
    "another algorithm": lambda user: f"Bearer {signed(claims(user), algorithm='HS512')}",
    "signature cut off": lambda user: f"Bearer {str(AccessToken.for_user(user)).rpartition('.')[0]}.",
    "changed": lambda user: f"Bearer {changed(user)}",
    "a refresh token": lambda user: f"Bearer {RefreshToken.for_user(user)}",
    "without a type": lambda user: f"Bearer {without(user, 'token_type')}",
    "without a user": lambda user: f"Bearer {without(user, 'user_id')}",
    "without an end": lambda user: f"Bearer {without(user, 'exp')}",
    "a header of nested lists": lambda user: f"Bearer {urlsafe_b64encode(b'[' * 30_000).decode()}.e30.x",
    **{
        f"{claim} {value!r:.40}": lambda user, more={claim: value}: f"Bearer {signed(claims(user, **more))}"
        for claim, values in ODD_CLAIMS.items()
        for value in values
    },
}


def changed(user: User) -> str:
    head, _, signature = signed(claims(user)).split(".")
    payload = signed({**claims(user), "user_id": str(user.pk + 1)}).split(".")[1]
    return f"{head}.{payload}.{signature}"


def test_a_bad_token_is_401(user: User, offer: OnSale, subtests: pytest.Subtests) -> None:
    client, order = APIClient(raise_request_exception=False), f"/api/orders/{uuid4()}/"
    paths = {"/api/orders/": "get", order: "get", f"{order}pay/": "post", f"{order}cancel/": "post"}
    for number, (bad, token) in enumerate(BAD.items()):
        with subtests.test(bad):
            headers = {"Authorization": token(user), "Idempotency-Key": "mine"}
            answers = [client.post("/api/orders/", order_body(offer, a=1), format="json", headers=headers)]
            # All endpoints check tokens in the same way, so try each token on one other endpoint only.
            path, method = list(paths.items())[number % len(paths)]
            answers.append(getattr(client, method)(path, headers=headers))
            for answer in answers:
                assert_problem(answer, 401, "unauthenticated")
                assert answer.headers["WWW-Authenticate"] == 'Bearer realm="api"'
    assert orders_in() == 0


@pytest.mark.parametrize(
    ("addresses", "status"),
    [
        pytest.param({}, 200, id="made by an operator"),
        pytest.param({"ada@example.com": False}, 403, id="signed up"),
        pytest.param({"ada@example.com": True}, 200, id="confirmed"),
        pytest.param({"ada@example.com": True, "new@example.com": False}, 200, id="changes the address"),
    ],
)
def test_a_sign_up_gets_tokens_once_its_address_is_confirmed(
    visitor: APIClient, user: User, addresses: dict[str, bool], status: int
) -> None:
    for email, confirmed in addresses.items():
        EmailAddress.objects.create(user=user, email=email, verified=confirmed)
    answer = ask(visitor, username="ada", password=PASSWORD)
    assert answer.status_code == status
    if status == 403:
        assert_problem(answer, 403, "not-confirmed")


@pytest.mark.parametrize("since", ["open", "deactivated"])
def test_a_closed_account_sees_and_changes_nothing_and_gets_no_tokens(
    visitor: APIClient, user: User, offer: OnSale, since: str
) -> None:
    buyer = Buyer(user.pk)
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    User.objects.update(is_active=since == "open")
    answers = [buyer.get("/api/orders/"), buyer.get(location), buyer.post(f"{location}pay/")]
    answers.append(buyer.post(f"{location}cancel/"))  # A paid order is not cancelled.
    answers += [buyer.order(order_body(offer, a=1)), ask(visitor, username="ada", password=PASSWORD)]
    assert [each.status_code for each in answers] == ([200, 200, 200, 409, 201, 200] if since == "open" else [401] * 6)
    assert (orders_in("paid"), orders_in()) == ((1, 2) if since == "open" else (0, 1))
    if since == "deactivated":
        for answer, slug in zip(answers[-2:], ("unauthenticated", "wrong-credentials"), strict=True):
            assert_problem(answer, 401, slug)


def changed_password(user: User) -> None:
    user.set_password("a new one")
    user.save()


def signed_out(user: User) -> None:
    access = tokens.issue(user)["access"]
    client = APIClient(HTTP_AUTHORIZATION=f"Bearer {access}", raise_request_exception=False)
    assert client.post("/api/token/sign-out/").status_code == 204


ENDINGS: dict[str, Callable[[User], Any]] = {
    "nothing": lambda user: None,
    "a new password": changed_password,
    "a sign-out": signed_out,
    "two sign-outs": lambda user: [signed_out(user) for _ in range(2)],
    "a closed account": lambda user: User.objects.update(is_active=False),
    "a deleted account": lambda user: user.delete(),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_ends_a_session_ends_its_tokens(visitor: APIClient, user: User, ending: str) -> None:
    """What ends a session also ends its tokens. Negative control: an open session keeps them."""
    issued = ask(visitor, username="ada", password=PASSWORD).json()
    refreshed = visitor.post("/api/token/refresh/", {"refresh": issued["refresh"]}, format="json").json()
    assert (set(issued), set(refreshed)) == ({"access", "refresh"}, {"access"})
    ENDINGS[ending](user)
    refresh = visitor.post("/api/token/refresh/", {"refresh": issued["refresh"]}, format="json")
    lists = [
        visitor.get("/api/orders/", headers={"Authorization": f"Bearer {access}"})
        for access in (issued["access"], refreshed["access"])
    ]
    if ending == "nothing":
        assert [answer.status_code for answer in (refresh, *lists)] == [200] * 3
        return
    said = "is closed" if "account" in ending else "Log in again"
    for answer in (refresh, *lists):
        assert said in assert_problem(answer, 401, "unauthenticated")["detail"]


def test_a_sign_out_ends_the_sessions_of_that_user_in_the_admin(user: User) -> None:
    other = User.objects.create_user("bob", is_staff=True)
    User.objects.filter(pk=user.pk).update(is_staff=True)
    clients = {each.pk: Client() for each in (user, other)}
    for each in (user, other):
        clients[each.pk].force_login(each)
    signed_out(user)
    assert [clients[each.pk].get("/admin/").status_code for each in (user, other)] == [302, 200]


def test_signing_out_needs_a_session_that_has_not_ended(visitor: APIClient, user: User) -> None:
    access = tokens.issue(user)["access"]
    signed_out(user)
    answer = visitor.post("/api/token/sign-out/", headers={"Authorization": f"Bearer {access}"})
    assert_problem(answer, 401, "unauthenticated")
    assert SignOut.objects.get().times == 1
    # After a sign-out, the user logs in again at once.
    access = ask(visitor, username="ada", password=PASSWORD).json()["access"]
    assert visitor.get("/api/orders/", headers={"Authorization": f"Bearer {access}"}).status_code == 200


def test_a_token_that_was_accepted_before_ends_with_its_lifetime(
    user: User, offer: OnSale, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that a process has verified and cached still expires. Negative control: before that, it works."""
    caller = APIClient(headers={"Authorization": f"Bearer {AccessToken.for_user(user)}"})

    def order() -> Any:
        return caller.post("/api/orders/", order_body(offer, a=1), format="json", headers={"Idempotency-Key": "one"})

    assert [order().status_code for _ in range(2)] == [201, 201]
    later = aware_utcnow() + timedelta(seconds=settings.ACCESS_TOKEN_TTL)
    monkeypatch.setattr("rest_framework_simplejwt.tokens.aware_utcnow", lambda: later)
    monkeypatch.setattr("shop.api.authentication.time", SimpleNamespace(time=later.timestamp))
    assert_problem(order(), 401, "unauthenticated")


def test_an_access_token_of_an_ended_session_orders_until_it_expires(user: User, offer: OnSale) -> None:
    """Checking the account would cost one query per order, so the lifetime of an access token is short instead."""
    pair = tokens.issue(user)
    issued = AccessToken(pair["access"])
    signed_out(user)
    headers = {"Authorization": f"Bearer {issued}", "Idempotency-Key": "mine"}
    body = order_body(offer, a=1)
    assert APIClient().post("/api/orders/", body, format="json", headers=headers).status_code == 201
    # The lifetime counts from the refresh token's moment. The access token's own `iat` may be a second later.
    assert issued["exp"] - RefreshToken(pair["refresh"])["iat"] == settings.ACCESS_TOKEN_TTL == 900


def ask(client: APIClient, **body: Any) -> Any:
    return client.post("/api/token/", body, format="json")


@pytest.mark.parametrize("wrong", [{"password": "wrong"}, {"username": "nobody"}, {"username": "a" * 10_000}])
def test_a_wrong_name_or_password_is_401(visitor: APIClient, user: User, wrong: dict[str, str]) -> None:
    answer = ask(visitor, **{"username": "ada", "password": PASSWORD, **wrong})
    assert_problem(answer, 401, "wrong-credentials")


INVALID_REQUESTS: list[tuple[str, Any, str]] = [
    ("", {}, "username password"),
    ("", {"username": "ada"}, "password"),
    ("", {"username": None, "password": {}}, "username password"),
    ("", {"username": True, "password": ["x"]}, "username password"),
    ("", {"username": "", "password": PASSWORD}, "username"),
    ("", {"username": "a\x00da", "password": "\x00"}, "username password"),
    *[("refresh/", {"refresh": refresh}, "refresh") for refresh in (None, "\x00", [], "")],
    ("refresh/", {}, "refresh"),
    *[(path, body, "") for path in ("", "refresh/") for body in ([], "text")],
]


def test_an_invalid_token_request_is_400(visitor: APIClient, subtests: pytest.Subtests) -> None:
    for path, body, pointers in INVALID_REQUESTS:
        with subtests.test(path=path, body=repr(body)):
            answer = visitor.post(f"/api/token/{path}", body, format="json")
            assert_problem(answer, 400, "invalid", pointers=[f"#/{name}" for name in pointers.split()] or ["#"])


REFRESHES: dict[str, Callable[[User], str]] = {
    "garbage": lambda user: "garbage",
    "an access token": lambda user: str(AccessToken.for_user(user)),
    "signed with another key": lambda user: signed(dict(RefreshToken.for_user(user).payload), "x" * 50),
    "not signed": lambda user: signed(dict(RefreshToken.for_user(user).payload), None, "none"),
    "no session, as in earlier versions": lambda user: str(RefreshToken.for_user(user)),
    "another session": lambda user: signed({**RefreshToken.for_user(user).payload, "session": "another"}),
}


def test_a_bad_refresh_token_is_401(visitor: APIClient, user: User, subtests: pytest.Subtests) -> None:
    for bad, token in REFRESHES.items():
        with subtests.test(bad):
            answer = visitor.post("/api/token/refresh/", {"refresh": token(user)}, format="json")
            assert_problem(answer, 401, "unauthenticated")


def test_public_urls_ignore_a_bad_token(visitor: APIClient, offer: OnSale) -> None:
    for path in ("/api/sales/", f"/api/sales/{offer.sale}/", "/api/problems/invalid/", "/api/schema/", "/health/"):
        assert visitor.get(path, headers={"Authorization": "Bearer garbage"}).status_code == 200
