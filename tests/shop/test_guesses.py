"""Limits for guesses of passwords at every log-in, for sign-ups and mails; what responses of the account pages reveal.

One hash is computed at a time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
from allauth.account import forms
from allauth.account.adapter import DefaultAccountAdapter
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.core import mail
from django.db import connections
from django.test import Client, RequestFactory
from redis import Redis
from rest_framework.test import APIClient

from shop.accounts import guesses, hashers
from shop.accounts.adapter import AccountAdapter
from shop.accounts.errors import HashingBusy
from shop.accounts.forms import ChangePasswordForm
from shop.accounts.guess_counts import KNOWN_FOR, WINDOW, LocalCounts, Outcome, Try
from shop.accounts.hashers import PasswordHasher
from tests.factories import at_once, slow
from tests.shop.conftest import Gone, assert_problem, raising
from tests.shop.test_account_pages import ADA, CHINESE, NEW, PASSWORD, change_address, is_in, new_user, reset
from tests.shop.test_account_pages import log_in as log_in_on_page
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def user(db: None, redis: Redis) -> User:
    return User.objects.create_user("ada", password=PASSWORD, is_staff=True)


@pytest.fixture(autouse=True)
def _no_local_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "local", LocalCounts())


def by_token(name: str, password: str, **sent: Any) -> Any:
    client = APIClient(raise_request_exception=False)
    return client.post("/api/token/", {"username": name, "password": password}, format="json", **sent)


def by_admin(name: str, password: str, **sent: Any) -> Any:
    client = Client(raise_request_exception=False)
    return client.post("/admin/login/", {"username": name, "password": password, "next": "/admin/"}, **sent)


def by_page(name: str, password: str, **sent: Any) -> Any:
    client = Client(raise_request_exception=False)
    return client.post("/account/login/", {"login": name, "password": password}, **sent)


DOORS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "token": (by_token, 401, 200),
    "admin": (by_admin, 200, 302),
    "page": (by_page, 200, 302),
}
"""For each way to log in: a function, and the status for a wrong and for a right password."""


def assert_waits_for_the_window(refused: Any, begun: float) -> None:
    """Check that a refusal names the seconds until the window ends, which began after the moment `begun`."""
    # Log-ins of a busy machine may take longer than any fixed margin, so measure them.
    passed = time.monotonic() - begun
    assert refused.status_code == 429
    assert WINDOW - passed - 1 <= int(refused.headers["Retry-After"]) <= WINDOW


@pytest.mark.parametrize("door", DOORS)
def test_an_account_has_few_guesses(user: User, settings: Any, door: str) -> None:
    log_in, wrong, right = DOORS[door]
    settings.GUESSES_PER_ACCOUNT = 3
    begun = time.monotonic()
    assert [log_in("ada", str(guess)).status_code for guess in range(5)] == [wrong] * 3 + [429] * 2
    refused = log_in("ada", PASSWORD)
    assert_waits_for_the_window(refused, begun)
    assert "Try again in" in refused.content.decode()
    # The ways to log in count together.
    assert [other("ada", PASSWORD).status_code for other, *_ in DOORS.values()] == [429] * len(DOORS)
    # Other accounts are not affected.
    User.objects.create_user("bob", password=PASSWORD, is_staff=True)
    assert log_in("bob", PASSWORD).status_code == right


def test_the_old_password_is_guessed_no_more_often(user: User, settings: Any) -> None:
    """The page that changes a password limits guesses of the old one, for example in an abandoned browser."""
    settings.GUESSES_PER_ACCOUNT = 2
    client = Client(raise_request_exception=False)
    client.force_login(user)

    def change(old: str) -> Any:
        form = {"old_password": old, "new_password1": "a new one 2026", "new_password2": "a new one 2026"}
        return client.post("/admin/password_change/", form)

    assert [change(str(guess)).status_code for guess in range(3)] == [200, 200, 429]
    assert change(PASSWORD).status_code == 429
    settings.GUESSES_PER_ACCOUNT = 3
    assert change(PASSWORD).status_code == 302
    assert client.get("/admin/").status_code == 200


@pytest.mark.parametrize(("limit", "away"), [(3, False), (1000, False), (3, True)], ids=["", "control", "no Redis"])
def test_guesses_at_the_same_time_are_counted_before_they_are_checked(
    user: User, settings: Any, redis_gone: Gone, monkeypatch: pytest.MonkeyPatch, limit: int, away: bool
) -> None:
    """Guesses at the same time are counted before they are checked. Negative control: a higher limit lets all pass."""
    monkeypatch.setattr(guesses, "MOST_AT_ONCE", 12)
    settings.GUESSES_PER_ACCOUNT = limit
    with redis_gone() if away else nullcontext():
        statuses = Counter(answer.status_code for answer in at_once(*[lambda: by_token("ada", "wrong")] * 12))
        assert by_token("ada", PASSWORD).status_code == (429 if limit == 3 else 200)
    assert statuses[401] == min(limit, 12)
    assert statuses[429] + statuses[503] == 12 - min(limit, 12)


# Any two values of different parameters occur together (pairwise testing).
@pytest.mark.parametrize(
    ("away", "limited", "wrong"),
    [
        (False, "GUESSES_PER_ACCOUNT", 0),
        (False, "GUESSES_PER_ADDRESS", 2),
        (True, "GUESSES_PER_ACCOUNT", 2),
        (True, "GUESSES_PER_ADDRESS", 0),
    ],
)
def test_tries_under_way_are_no_wrong_guesses(
    user: User, settings: Any, redis_gone: Gone, monkeypatch: pytest.MonkeyPatch, away: bool, limited: str, wrong: int
) -> None:
    """Tries in progress are not wrong guesses: if they use up the limit, the answer is to try again in a second."""
    setattr(settings, limited, wrong + 1)
    checks, check = threading.Barrier(2, timeout=WAIT_TIMEOUT), User.check_password

    def waits(user: User, password: str) -> bool:
        if password == PASSWORD:
            checks.wait()
            checks.wait()
        return bool(check(user, password))

    with redis_gone() if away else nullcontext(), ThreadPoolExecutor(1) as pool:
        assert by_token("ada", PASSWORD).status_code == 200, "its address is known from now on"
        assert [by_token("ada", "wrong").status_code for _ in range(wrong)] == [401] * wrong
        monkeypatch.setattr(User, "check_password", waits)
        first = pool.submit(closing(lambda: by_token("ada", PASSWORD)))
        checks.wait()
        for log_in in (by_token, by_admin):
            refused = log_in("ada", PASSWORD)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert "wrong" not in refused.content.decode().lower()
        assert_problem(by_token("ada", PASSWORD), 503, "login-busy")
        checks.wait()
        assert first.result(WAIT_TIMEOUT).status_code == 200
        # Negative control: a wrong guess counts until the window ends.
        assert [by_token("ada", "wrong").status_code for _ in range(2)] == [401, 429]


def closing(log_in: Callable[[], Any]) -> Callable[[], Any]:
    """Return a log-in that another thread can run: it closes the thread's connections."""

    def run() -> Any:
        try:
            return log_in()
        finally:
            connections.close_all()

    return run


def test_an_address_has_its_own_limit(user: User, settings: Any) -> None:
    settings.GUESSES_PER_ADDRESS = 3
    for guess in range(3):
        assert by_token(f"nobody {guess}", "wrong", REMOTE_ADDR="192.0.2.1").status_code == 401
    assert by_token("ada", PASSWORD, REMOTE_ADDR="192.0.2.1").status_code == 429
    assert by_token("ada", PASSWORD, REMOTE_ADDR="192.0.2.2").status_code == 200


def test_a_right_password_is_no_guess(user: User, settings: Any, redis: Redis) -> None:
    settings.GUESSES_PER_ACCOUNT, settings.GUESSES_PER_ADDRESS = 2, 2
    assert [by_token("ada", PASSWORD).status_code for _ in range(5)] == [200] * 5
    assert by_token("ada", "wrong").status_code == 401
    # The guess counts for the IP address, and for the account at known addresses only.
    counts = {str(key, "ascii").count(":"): redis.hgetall(key) for key in redis.scan_iter("{guesses}:tries:account:*")}
    none, one = {b"tries": b"0", b"under_way": b"0"}, {b"tries": b"1", b"under_way": b"0"}
    assert counts == {3: none, 4: one}
    assert redis.hgetall("{guesses}:tries:address:127.0.0.1") == one


def test_a_window_ends_although_the_guessing_goes_on(user: User, settings: Any, redis: Redis) -> None:
    settings.GUESSES_PER_ACCOUNT = 1
    by_token("ada", "wrong")
    (key,) = redis.scan_iter("{guesses}:tries:account:*")
    redis.expire(key, 7)
    assert by_token("ada", "wrong").headers["Retry-After"] in ("6", "7")
    assert redis.ttl(key) in (6, 7)
    redis.delete(key)
    assert by_token("ada", PASSWORD).status_code == 200


def from_address(address: str) -> dict[str, str]:
    return {"REMOTE_ADDR": address}


OWN, OTHER = from_address("192.0.2.1"), from_address("198.51.100.7")


@pytest.mark.parametrize(("door", "away"), [("token", True), *((door, False) for door in DOORS)])
def test_guesses_from_elsewhere_do_not_lock_the_owner_out(
    user: User, settings: Any, redis_gone: Gone, door: str, away: bool
) -> None:
    log_in, wrong, right = DOORS[door]
    settings.GUESSES_PER_ACCOUNT = 3
    with redis_gone() if away else nullcontext():
        assert log_in("ada", PASSWORD, **OWN).status_code == right
        assert [log_in("ada", "wrong", **OTHER).status_code for _ in range(4)] == [wrong] * 3 + [429]
        assert log_in("ada", PASSWORD, **OWN).status_code == right
        # Negative control: an IP address from which the account has never logged in.
        assert log_in("ada", PASSWORD, **from_address("203.0.113.5")).status_code == 429


def test_an_address_is_known_for_its_account_and_for_a_week(user: User, settings: Any, redis: Redis) -> None:
    settings.GUESSES_PER_ACCOUNT = 1
    User.objects.create_user("bob", password=PASSWORD)
    assert by_token("ada", PASSWORD, **OWN).status_code == 200
    by_token("bob", "wrong", **OTHER)
    assert by_token("bob", PASSWORD, **OWN).status_code == 429
    (known,) = redis.scan_iter("{guesses}:known:*")
    assert redis.ttl(known) in range(KNOWN_FOR - 60, KNOWN_FOR + 1)
    redis.delete(known)
    by_token("ada", "wrong", **OTHER)
    assert by_token("ada", PASSWORD, **OWN).status_code == 429


@pytest.mark.parametrize("door", DOORS)
def test_without_redis_a_process_limits_guesses_itself(user: User, settings: Any, redis_gone: Gone, door: str) -> None:
    log_in, wrong, right = DOORS[door]
    settings.GUESSES_PER_ACCOUNT, settings.GUESSES_PER_ADDRESS = 2, 3
    with redis_gone():
        assert log_in("ada", PASSWORD, **from_address("203.0.113.5")).status_code == right
        begun = time.monotonic()
        assert [log_in("ada", "wrong", **OTHER).status_code for _ in range(3)] == [wrong, wrong, 429]
        refused = log_in("ada", PASSWORD, **OWN)
        assert_waits_for_the_window(refused, begun)
        # The IP address has one guess left for all accounts together.
        assert [log_in("bob", "wrong", **OTHER).status_code for _ in range(2)] == [wrong, 429]
    # Redis works again, and has not counted these guesses.
    assert log_in("ada", PASSWORD, **OWN).status_code == right


def guess(counts: LocalCounts, tried: Try) -> int:
    """Guess wrong if a guess is allowed. Return the seconds to wait before the next one."""
    counted = counts.count(tried)
    if not counted.wait:
        counts.finish(tried, counted, Outcome.WRONG)
    return counted.wait


def test_the_counts_of_a_process_end(settings: Any) -> None:
    settings.GUESSES_PER_ACCOUNT = 1
    clock = [100.0]
    counts, tried = LocalCounts(now=lambda: clock[0]), Try.of("ada", "192.0.2.1")
    assert guess(counts, tried) == 0
    clock[0] += WINDOW - 7
    assert guess(counts, tried) == 7
    clock[0] += 7
    assert [guess(counts, tried) for _ in range(2)] == [0, WINDOW]
    counts.remember(tried)
    assert [guess(counts, tried) for _ in range(2)] == [0, WINDOW]
    clock[0] += KNOWN_FOR
    assert counts.count(tried).keys == list(tried.limits(known=False))


def test_the_counts_of_a_process_are_bounded(settings: Any) -> None:
    settings.GUESSES_PER_ACCOUNT = 1
    counts, tries = LocalCounts(most=4), [Try.of(f"user {number}", "") for number in range(9)]
    for each in tries:
        guess(counts, each)
    assert len(counts) == 4
    # Only the oldest accounts are forgotten.
    assert [counts.count(each).wait > 0 for each in reversed(tries[4:])] == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("proxies", "sent", "address"),
    [
        (0, {"REMOTE_ADDR": "192.0.2.1", "HTTP_X_FORWARDED_FOR": "203.0.113.9"}, "192.0.2.1"),
        (1, {"REMOTE_ADDR": "192.0.2.1", "HTTP_X_FORWARDED_FOR": "198.51.100.7, 203.0.113.9"}, "203.0.113.9"),
        (0, {"REMOTE_ADDR": "2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2::/64"),
        (0, {"REMOTE_ADDR": "nonsense" * 100}, ("nonsense" * 100)[:64]),
    ],
)
def test_the_address_is_that_of_the_client(settings: Any, proxies: int, sent: dict[str, str], address: str) -> None:
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "NUM_PROXIES": proxies}
    assert guesses.address_of(RequestFactory().get("/", **sent)) == address


@pytest.fixture
def hashing(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The shop's password hasher, which blocks until the event is set or the test ends."""
    settings.PASSWORD_HASHERS = ["shop.accounts.hashers.PasswordHasher"]
    go_on = threading.Event()

    def encode(hasher: Any, password: str, salt: str, iterations: int | None = None) -> str:
        assert go_on.wait(WAIT_TIMEOUT)
        return f"pbkdf2_sha256$1${salt}$x"

    monkeypatch.setattr("django.contrib.auth.hashers.PBKDF2PasswordHasher.encode", encode)
    monkeypatch.setattr(hashers, "WAIT", 3 * WAIT_TIMEOUT)
    yield go_on
    go_on.set()


@pytest.mark.parametrize(
    ("accounts", "addresses", "checked"), [(40, 40, 4), (1, 40, 2), (40, 1, 2)], ids=["many", "account", "address"]
)
def test_of_forty_logins_at_once_most_are_refused_at_once(
    hashing: threading.Event, settings: Any, accounts: int, addresses: int, checked: int
) -> None:
    """Of forty log-ins at once, one hashes and three wait. The others free their threads at once.

    One account, or one address, takes at most two of the four places, so another client can log in meanwhile.
    """
    settings.GUESSES_PER_ACCOUNT = settings.GUESSES_PER_ADDRESS = 1000

    def log_in(number: int) -> Any:
        address = f"192.0.2.{number % addresses}"
        return closing(lambda: by_token(f"nobody {number % accounts}", "wrong", REMOTE_ADDR=address))()

    with ThreadPoolExecutor(41) as pool, ExitStack() as pool_ends:
        answers = [pool.submit(log_in, number) for number in range(40)]
        pool_ends.callback(hashing.set)  # also if the test fails
        wait_for(lambda: sum(answer.done() for answer in answers) == 40 - checked, f"{40 - checked} refusals")
        other = pool.submit(closing(lambda: by_token("ada", "wrong", REMOTE_ADDR="198.51.100.1")))
        if checked == 4:
            assert other.result(WAIT_TIMEOUT).status_code == 503
        else:
            wait_for(lambda: guesses._checked["198.51.100.1"] == 1, "the other client's turn")
        hashing.set()
        statuses = Counter(answer.result(WAIT_TIMEOUT).status_code for answer in answers)
        assert other.result(WAIT_TIMEOUT).status_code == (503 if checked == 4 else 401)
    assert statuses == {503: 40 - checked, 401: checked}
    busy = next(answer.result() for answer in answers if answer.result().status_code == 503)
    assert_problem(busy, 503, "login-busy")
    assert not guesses._checked


def test_a_turn_that_does_not_come_is_refused(hashing: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashers, "WAIT", 0.01)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(PasswordHasher().encode, "password", "salt")
        wait_for(lambda: not hashers._turn.acquire(blocking=False) or hashers._turn.release(), "the first to hash")
        with pytest.raises(HashingBusy):
            PasswordHasher().encode("password", "salt")
        hashing.set()
        assert first.result(WAIT_TIMEOUT)
    # Every place in the queue was given back.
    assert [hashers._waiting.acquire(blocking=False) for _ in range(5)] == [True] * 4 + [False]
    for _ in range(4):
        hashers._waiting.release()


@pytest.mark.usefixtures("hashing")
def test_a_refused_hash_is_no_guess_and_not_logged(settings: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused log-in is not logged, so attacks do not fill the log. Negative control: a bug is logged."""
    settings.GUESSES_PER_ACCOUNT = 1
    monkeypatch.setattr(hashers, "WAIT", 0.0)
    with hashers.turn():
        for _ in range(3):
            assert_problem(by_token("nobody", "wrong"), 503, "login-busy")
            page = by_admin("nobody", "wrong")
            assert (page.status_code, page.headers["Retry-After"]) == (503, "1")
    assert "Too many people log in at once" in page.content.decode()
    assert caplog.records == []
    monkeypatch.setattr(guesses, "_count", raising(KeyError("a bug")))
    assert_problem(by_token("nobody", "wrong"), 500, "internal")
    assert [record.name for record in caplog.records] == ["django.request"]


# The account pages

WRONG = "wrong"


def guess_on_page(name: str = "ada", password: str = WRONG, **sent: Any) -> int:
    return int(by_page(name, password, **sent).status_code)


def form_of_sign_up(number: int) -> dict[str, str]:
    return {**ADA, "username": f"user{number}", "email": f"{number}@example.com"}


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
    answers = [guess_on_page(name) for name in ("ada", "ada@example.com", "Ada@example.com", "ada", "ada@example.com")]
    assert answers == ([200] * 3 + [429] * 2 if guarded else [200] * 5)
    if guarded:
        assert [guess_on_page(name, PASSWORD) for name in ("ada", "ada@example.com")] == [429] * 2
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
    here = log_in_on_page()
    form = {"password": "wrong", "oldpassword": "wrong", "password1": NEW, "password2": NEW}
    answers = [here.post(f"/account/{path}/", form).status_code for _ in range(3)]
    assert answers == [200, 200, 200 if control else 429]


def test_a_new_password_opens_the_account_where_it_was_set(client: Client, settings: Any) -> None:
    """A new password ends the limit for the IP address that has set it. Another IP address stays limited."""
    new_user()
    settings.GUESSES_PER_ACCOUNT = 2
    assert [guess_on_page() for _ in range(3)] == [200, 200, 429]
    reset(client)
    assert guess_on_page(password=NEW, **OTHER) == 429
    assert guess_on_page(password=NEW) == 302
    # Wrong guesses from a known IP address have a count of their own. The next new password deletes this count.
    assert [guess_on_page() for _ in range(3)] == [200, 200, 429]
    reset(client, password=PASSWORD)
    assert guess_on_page(password=PASSWORD) == 302


@pytest.mark.parametrize(("sent", "says"), [({}, "Try again in 15 minutes"), (CHINESE, "请 15 分钟后重试")])
def test_too_many_guesses_are_a_page_in_the_language_of_the_reader(
    settings: Any, sent: dict[str, str], says: str
) -> None:
    settings.GUESSES_PER_ACCOUNT = 1
    guess_on_page()
    refused = log_in_on_page(**sent).answer  # type: ignore[attr-defined]
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
    here = log_in_on_page()
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
            log_in_on_page("nobody", "wrong").answer,
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
def test_sign_ups_are_limited_by_the_address_that_the_proxy_names(client: Client, settings: Any, limited: bool) -> None:
    """Negative control: without limits, all succeed."""
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "NUM_PROXIES": 1}
    if not limited:
        settings.ACCOUNT_RATE_LIMITS = False

    def sign_up(number: int, address: str = "203.0.113.1", **sent: str) -> Any:
        return client.post("/account/signup/", form_of_sign_up(number), HTTP_X_FORWARDED_FOR=address, **sent)

    assert [sign_up(number).status_code for number in range(21)] == [302] * 20 + [429 if limited else 302]
    assert sign_up(21, "203.0.113.2").status_code == 302
    if limited:
        refused = sign_up(22, **CHINESE)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
        assert "操作过于频繁" in refused.text


def test_mails_are_limited_by_recipient_and_by_ip_address(client: Client) -> None:
    def ask(email: object, host: int) -> int:
        address = {"REMOTE_ADDR": f"192.0.2.{host}"}
        return client.post("/account/password/reset/", {"email": f"{email}@example.com"}, **address).status_code

    assert [ask("ada", host) for host in range(6)] == [302] * 5 + [429]
    assert ask("bob", 6) == 302
    assert len(mail.outbox) == 6
    assert [ask(name, 7) for name in range(21)] == [302] * 20 + [429]


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
        here = log_in_on_page()
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
