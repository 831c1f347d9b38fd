"""Odd requests at every address, by every kind of caller, to a real web server: none causes an internal error.

A seed repeats the same requests. For more requests: FUZZ_REQUESTS=20000 make test-slow ARGS=tests/shop/test_fuzz.py
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import string
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver
from redis import Redis

from inventory.models import StockItem
from loadtest.tokens import access_token
from shop.models import Order, Sale
from tests.factories import new_customer, on_sale
from tests.shop.busy_shop import every
from tests.shop.conftest import assert_conserved, buy
from tests.shop.web_server import ask, web_server

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]

CSRF = "a" * 32
SEEDS = (20261127, 271828, 8675309)
REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "3000")) // len(SEEDS)
METHODS = ("GET", "GET", "POST", "POST", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
ADDRESSES = sorted({address for address, _ in every(get_resolver().url_patterns)})
quoted = partial(quote, safe="%")
ODD_TEXTS = ("", "0", "-1", "1.5", "1e308", "\x00", "é", "漢字", "🎟", "' OR 1=1 --", "../../etc/passwd", "null", "true",
             "9" * 30, "x" * 300, "%00", "%ff%fe", "<script>", "{{ 7 }}", "%s%n", "\r\nX: y", "[]", "{}")  # fmt: skip
ODD_HEADERS = ("Accept", "Accept-Language", "Host", "X-Forwarded-For", "Cookie", "If-None-Match", "Range", "Referer",
               "Origin", "X-CSRFToken", "Authorization", "Waiting-Ticket")  # fmt: skip
BODIES = ("application/json", "text/plain", "multipart/form-data; boundary=x", "", "application/json; charset=odd")
ODD_VALUES: tuple[Any, ...] = (None, True, 0, -1, 1.5, 2**63, 10**30, "", "1", [], {}, [[]], {"a": {"b": []}}, "\x00")


Request = tuple[str, str, bytes, dict[str, str]]
"""Method, path, body and headers of a request."""


def odd_requests(seed: int, valid: dict[str, list[str]], callers: dict[str, dict[str, str]]) -> Iterator[Request]:
    """Yield requests without end.

    Args:
        valid: existing values, which parameters of addresses and fields of bodies sometimes use.
        callers: headers that identify the caller, by kind of caller.
    """
    some = random.Random(seed)  # noqa: S311 - chosen to repeat itself
    item: dict[str, Any] = {"product": int(valid["product"][0]), "quantity": 1, "price": "9.90"}
    order: dict[str, Any] = {"sale": int(valid["sale"][0]), "items": [item]}

    def text() -> str:
        if some.random() < 0.5:
            return some.choice(ODD_TEXTS)
        return "".join(some.choices(string.printable, k=some.randrange(12)))

    def parameter(name: re.Match[str]) -> str:
        known = valid.get(name[1], [])
        return quoted(some.choice(known) if known and some.random() < 0.7 else text())

    def pairs(name: str, count: int) -> str:
        return "&".join(f"{some.choice(valid[name])}={quoted(text())}" for _ in range(count))

    def value(depth: int = 0) -> Any:
        match some.randrange(6 if depth < 3 else 4):
            case 0:
                return some.choice(ODD_VALUES)
            case 1:
                return text()
            case 2 | 3:
                return some.choice([value for values in valid.values() for value in values])
            case 4:
                return [value(depth + 1) for _ in range(some.randrange(4))]
        return {some.choice(valid["field"]): value(depth + 1) for _ in range(some.randrange(5))}

    def body() -> tuple[str, bytes]:
        """Return a content type and a body: an order that may be valid, odd JSON, a form, or bytes."""
        match some.randrange(5):
            case 0 | 1:
                wrong = [{some.choice(valid["field"]): value()} if some.random() < 0.4 else {} for _ in range(2)]
                return "application/json", json.dumps({**order, "items": [{**item, **wrong[0]}], **wrong[1]}).encode()
            case 2:
                return "application/json", json.dumps(value()).encode()
            case 3:
                return "application/x-www-form-urlencoded", pairs("field", 5).encode()
        return some.choice(BODIES), some.randbytes(some.randrange(200))

    while True:
        method, headers = some.choice(METHODS), dict(some.choice(list(callers.values())))
        # Choose orders often, because they are the most important endpoint.
        address = "api/orders/" if some.random() < 0.3 else some.choice(ADDRESSES)
        if "app_label" in address or "(?P" in address:
            address = "admin/shop/order/"
        address = re.sub(r"<(?:\w+:)?(\w+)>", parameter, address)
        query = pairs("query", some.choice((0, 0, 0, 1, 2)))
        kind, sent = body() if method in ("POST", "PUT", "PATCH") or some.random() < 0.05 else ("", b"")
        if kind:
            headers["Content-Type"] = kind
        if some.random() < 0.6:
            headers["Idempotency-Key"] = some.choice([*valid["key"], f"key-{some.randrange(10**9)}"])
        if some.random() < 0.2:
            odd = text().encode("latin-1", "ignore").decode("latin-1").translate({10: None, 13: None})
            headers[some.choice(ODD_HEADERS)] = odd
        yield method, f"/{address}{'?' if query else ''}{query}", sent, headers


@pytest.fixture
def fuzzed(redis: Redis) -> dict[str, Any]:
    """Return existing objects of the shop, and headers of every kind of caller."""
    offer = on_sale({"a": 100_000}, strategy="guarded-update")
    placed = buy(offer, a=1)
    customer = Order.objects.get(pk=placed.order.pk).customer_id
    staff, root = User.objects.create_user("staff", is_staff=True), User.objects.create_superuser("root")
    callers = {
        "nobody": {},
        "customer": {"Authorization": f"Bearer {access_token(customer)}"},
        "stranger": {"Authorization": f"Bearer {access_token(new_customer())}"},
        "forger": {"Authorization": f"Bearer {access_token(customer)[:-4]}AAAA"},
    }
    for name, user in {"browser": User.objects.get(pk=customer), "staff": staff, "root": root}.items():
        client = Client()
        client.force_login(user)
        cookies = [f"{key}={each.value}" for key, each in client.cookies.items()]
        callers[name] = {"Cookie": "; ".join([*cookies, f"csrftoken={CSRF}"]), "X-CSRFToken": CSRF}
    order, sale, product = str(placed.order.pk), str(offer.sale), str(offer.products["a"])
    valid = {
        "order": [order, "00000000-0000-7000-8000-000000000000"],
        "sale": [sale, "999"],
        "product": [product],
        "object_id": [sale, order, str(StockItem.objects.get().pk), str(customer)],
        "slug": ["sold-out", "no-lock", "redlock", *Sale.objects.values_list("slug", flat=True)],
        "key": ["one-key", "another", '"quoted"', "", "x" * 200, "\x7f"],
        "query": ["page", "q", "o", "p", "next", "cursor", "_to_field", "_popup", "e", "all", "format", "lang",
                  "version", "script"],
        "field": ["sale", "items", "product", "quantity", "price", "reference", "order", "amount", "currency", "key",
                  "username", "password", "refresh", "action", "_selected_action", "csrfmiddlewaretoken", "next"],
    }  # fmt: skip
    return {"valid": valid, "callers": callers}


@pytest.mark.parametrize("seed", SEEDS)
def test_no_request_finds_an_error_of_the_shop(seed: int, fuzzed: dict[str, Any]) -> None:
    answers: Counter[int] = Counter()
    errors = []
    with web_server(LAB_ENABLED="1", ORDER_RATE="1000", GUESSES_PER_ADDRESS="1000000") as (port, _):
        for method, path, body, headers in islice(odd_requests(seed, **fuzzed), REQUESTS):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in {**headers, **({"Content-Length": str(len(body))} if body else {})}.items():
                connection.putheader(name, value.encode("latin-1"))
            connection.endheaders(body or None)
            response = connection.getresponse()
            text = response.read()
            connection.close()
            answers[response.status] += 1
            if response.status >= 500 and not (response.status == 503 and response.headers["Retry-After"]):
                errors.append((method, path, headers, body[:200], response.status, text[:200]))
        item = {"product": int(fuzzed["valid"]["product"][0]), "quantity": 1, "price": "9.90"}
        order = {"sale": int(fuzzed["valid"]["sale"][0]), "items": [item]}
        sent = {"Idempotency_Key": "the-last-one", "Content_Type": "application/json", **fuzzed["callers"]["customer"]}
        last, *_ = ask(port, "POST", "/api/orders/", json.dumps(order), **sent)
    assert errors == [], f"{len(errors)} of {REQUESTS} requests; all answers: {answers}"
    # Check that some requests pass the first checks, and that each common refusal occurs.
    assert {200, 400, 401, 404} <= set(answers)
    assert last == 201, "the shop still takes orders"
    assert_conserved()
