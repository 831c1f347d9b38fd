"""Fixtures and helpers of the shop's tests: customers, orders, and servers that do not respond."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import connections, transaction
from django.test import Client, override_settings
from django.utils import timezone
from django.utils.safestring import mark_safe
from redis import Redis
from rest_framework.test import APIClient
from rest_framework_simplejwt.tokens import AccessToken

from inventory import stock
from inventory.models import StockItem
from inventory.strategies import registry
from shop import conservation
from shop.api import throttles
from shop.models import Allowance, Order
from shop.orders.place import place_order
from shop.orders.receipts import Placed
from shop.orders.saving import Saver
from shop.payments import signatures
from tests.factories import OnSale, begin, interleaved, new_customer
from tests.waiting import WAIT_TIMEOUT


class Buyer(APIClient):
    """An API client with the token of a customer."""

    def __init__(self, customer: int) -> None:
        self.customer = customer
        self.token = AccessToken()
        self.token["user_id"] = str(customer)
        super().__init__(HTTP_AUTHORIZATION=f"Bearer {self.token}", raise_request_exception=False)

    def order(self, body: Any, key: str | None = None, **options: Any) -> Any:
        """POST an order, with a new key unless one is given."""
        headers = {"Idempotency-Key": str(uuid4()) if key is None else key, **options.pop("headers", {})}
        return self.post("/api/orders/", body, format="json", headers=headers, **options)


class Provider(APIClient):
    """An API client that signs its messages."""

    def __init__(self) -> None:
        super().__init__(raise_request_exception=False)

    def reports(self, body: Any, signature: str | None = None, path: str = "/api/payments/", **options: Any) -> Any:
        """POST a body with the right signature for it, or with the given signature."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Payment-Signature": signatures.sign(sent) if signature is None else signature}
        return self.generic("POST", path, sent, **{"content_type": "application/json", **options}, headers=headers)


@pytest.fixture
def visitor(db: None, redis: Redis) -> APIClient:
    return APIClient(raise_request_exception=False)


@pytest.fixture
def buyer(db: None, redis: Redis) -> Buyer:
    return Buyer(new_customer())


@pytest.fixture
def other_buyer(db: None, redis: Redis) -> Buyer:
    return Buyer(new_customer())


@pytest.fixture
def provider(redis: Redis) -> Provider:
    return Provider()


@pytest.fixture
def customer(db: None) -> int:
    return new_customer()


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Return a function that logs in a staff account with some permissions."""

    def log_in(*permissions: str) -> Client:
        user = User.objects.create_user(f"staff {uuid4()}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        return logged_in(user.pk)

    return log_in


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render no template, for tests that look at statuses, contexts and tables: rendering takes most of a page's time.

    `test_no_address_of_the_admin_fails` and the tests of the pages find a template that fails.
    """
    monkeypatch.setattr("django.template.backends.django.Template.render", lambda *_: mark_safe(""))


def logged_in(customer: int, **options: Any) -> Client:
    """Return a browser in which a customer is logged in."""
    client = Client(**options)
    client.force_login(User.objects.get(pk=customer))
    return client


Config = Callable[[str, str], None]


@pytest.fixture
def config(redis: Redis) -> Iterator[Config]:
    """Change settings of Redis until the test ends."""
    before: dict[str, str] = {}

    def change(name: str, value: str) -> None:
        before.setdefault(name, str(redis.config_get(name)[name]))  # type: ignore[index]
        redis.config_set(name, value)

    yield change
    for name, value in before.items():
        redis.config_set(name, value)


Gone = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def redis_gone(redis: Redis, tmp_path: Path) -> Gone:
    """A context manager during which Redis does not respond."""

    @contextmanager
    def gone() -> Iterator[None]:
        caches = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": f"unix://{tmp_path}/none"}}
        with override_settings(CACHES=caches):
            yield

    return gone


@pytest.fixture
def postgres_gone(tmp_path: Path) -> Gone:
    """A context manager during which Postgres does not respond to this thread."""

    @contextmanager
    def gone() -> Iterator[None]:
        there = connections["default"]
        connections["default"] = type(there)({**there.settings_dict, "HOST": str(tmp_path)}, "default")
        try:
            yield
        finally:
            connections["default"].close()
            connections["default"] = there

    return gone


ADVISES_TO_WAIT = {
    *("still-queued", "still-running", "busy", "not-loaded", "unavailable", "too-fast", "unknown-order"),
    *("sale-paused", "unknown-payment", "too-many-guesses", "login-busy"),
}


def assert_problem(response: Any, status: int, slug: str, *, pointers: Sequence[str] | None = None) -> dict[str, Any]:
    """Check a response: a complete problem document, explained at its type's URL, with `errors` at `pointers`."""
    assert (response.status_code, response.headers["Content-Type"]) == (status, "application/problem+json")
    document: dict[str, Any] = json.loads(response.content)
    assert (document["type"], document["status"]) == (f"/api/problems/{slug}/", status)
    for name in ("title", "detail"):
        assert isinstance(document[name], str)
        assert document[name]
    assert ("`errors`" in document["detail"]) is ("errors" in document), "it names what it does not list"
    assert ("Retry-After" in response.headers) is (slug in ADVISES_TO_WAIT)
    if "Retry-After" in response.headers:
        assert int(response.headers["Retry-After"]) >= 1
    assert ("WWW-Authenticate" in response.headers) is (status == 401)
    assert explained_title(document["type"]) == document["title"]
    if pointers is not None:
        assert [error["pointer"] for error in document["errors"]] == list(pointers)
        assert all(error["detail"] for error in document["errors"])
    return document


@cache
def explained_title(problem: str) -> str:
    """Return the title on the page that explains a problem."""
    explained = APIClient().get(problem)
    assert explained.status_code == 200
    return str(explained.json()["title"])


def order_body(offer: OnSale, **units: int) -> dict[str, Any]:
    """Return the JSON body of an order request."""
    cart = offer.cart(**units)
    items = [{"product": product, "quantity": cart[product], "price": offer.price} for product in cart]
    return {"sale": offer.sale, "items": items}


def payment(order: UUID, reference: str = "pay_1", amount: Any = "19.80") -> dict[str, Any]:
    return {"reference": reference, "order": str(order), "amount": amount, "currency": "EUR"}


def buy(offer: OnSale, customer: int | None = None, key: str = "", **units: int) -> Placed:
    """Place an order of a customer under a key. A missing customer or key is created."""
    customer = new_customer() if customer is None else customer
    return place_order(
        customer=customer,
        sale=offer.sale,
        quantities=offer.cart(**units),
        key=key or str(uuid4()),
        expected_prices=offer.prices,
    )


def make_due(*orders: UUID) -> None:
    """End the time to pay of the given orders; without arguments, of all orders."""
    due = timezone.now() - timedelta(seconds=settings.ORDER_TTL)
    Order.objects.filter(**({"pk__in": orders} if orders else {})).update(payable_from=due)


@pytest.fixture
def in_one_second(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let all requests come in the same second, in a process that has counted none: limits are per second.

    A test may change `now` of the clock that this returns. Redis keeps each count for ten minutes, because its own
    clock runs on: on a busy machine, two requests may be more than the usual two seconds apart.
    """
    clock = SimpleNamespace(now=1_000_000.25, time=lambda: clock.now)
    monkeypatch.setattr(throttles, "time", clock)
    kept_longer = throttles.COUNT.replace("KEYS[1], 2", "KEYS[1], 600")
    assert kept_longer != throttles.COUNT
    monkeypatch.setattr(throttles, "COUNT", kept_longer)
    for counted in ("seen", "looks"):
        monkeypatch.setattr(throttles, counted, throttles.Seen())
    return clock


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let strategies take stock and save the order in a transaction of several statements, not in one statement."""
    monkeypatch.setattr(Saver, "at_once", lambda *arguments: False)


def state(order: UUID) -> str:
    return Order.objects.get(pk=order).state


def on_hand(sku: str = "a") -> tuple[int, int | None]:
    """Return the units of a sku in Postgres and in Redis."""
    return stock.on_hand(sku), registry.counters().left([sku])[sku]


def taken() -> dict[str, int]:
    """Return the units bought, by sku, in a test with one customer and one sale."""
    return dict(Allowance.objects.values_list("sku", "taken"))


def assert_conserved() -> None:
    assert all(row.conserved for row in conservation.figures())


def messages_of(response: Any) -> list[str]:
    """Return the messages that a request of the test client has left for the next page, without rendering that page."""
    return [str(message) for message in response.wsgi_request._messages._queued_messages]


def stock_is_free(sku: str = "a") -> bool:
    """Return whether no other transaction locks the stock row of a sku."""
    with transaction.atomic():
        return StockItem.objects.select_for_update(skip_locked=True).filter(sku=sku).exists()


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Return a function that raises the error."""

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise error

    return fail


def race(first: Callable[[], Any], second: Callable[[], Any], **at: str) -> tuple[Any, Any]:
    """Run `second` in another thread when `first` is at a statement; see `interleaved`. Return both results.

    `first` continues when `second` is done or waits for a lock in Postgres.
    """
    started: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as pool:
        with interleaved(lambda: started.append(begin(pool, second)), **at):
            answer = first()
        return answer, started[0].result(WAIT_TIMEOUT)
