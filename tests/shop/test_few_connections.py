"""Threads share few connections. A thread must hold none while it waits for another thread that needs one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.db import connection, connections
from rest_framework.test import APIClient

from inventory.errors import SoldOut, StockConflict, StockReserved
from inventory.strategies import registry
from shop.orders.place import make_request, place_order, place_request
from shop.orders.receipts import Placed
from shop.sales import offers
from tests.factories import count_by_kind, elsewhere, fast_and_slow, new_customer, on_sale
from tests.waiting import WAIT_TIMEOUT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]
BUYERS, UNITS = 12, 8


@pytest.fixture
def one_connection(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make all threads except this one share one connection."""
    mine = connections.settings["default"]
    options = {**mine["OPTIONS"], "pool": {"min_size": 1, "max_size": 1, "timeout": WAIT_TIMEOUT}}
    monkeypatch.setitem(connections.settings, "default", {**mine, "OPTIONS": options})
    yield
    elsewhere(lambda: connections["default"].close_pool())


@pytest.mark.parametrize("name", fast_and_slow(registry.NAMES))
def test_threads_that_share_a_connection_sell_everything(one_connection: None, settings: Any, name: str) -> None:
    settings.OFFER_TTL = 0
    sale = on_sale({"a": UNITS}, strategy=name)
    customers = [new_customer() for _ in range(BUYERS)]
    offer = offers.read(sale.sale)
    assert offer is not None
    start = threading.Barrier(BUYERS)
    cart = {"quantities": sale.cart(a=1), "expected_prices": sale.prices}

    def buy(turn: int) -> Placed:
        """Place an order. If `turn` is odd, the thread reads the offer first, so it already holds the connection."""
        if turn % 2:
            return place_order(sale=sale.sale, customer=customers[turn], key=str(uuid4()), **cart)
        request = make_request(offer, customer=customers[turn], key=str(uuid4()), **cart)
        return place_request(request, offer, registry.get(name))

    def request(turn: int) -> Placed | Exception:
        start.wait(WAIT_TIMEOUT)
        while True:
            try:
                return buy(turn)
            except (StockConflict, StockReserved):
                continue
            except Exception as error:
                return error
            finally:
                connections.close_all()

    with ThreadPoolExecutor(BUYERS) as threads:
        answers = list(threads.map(request, range(BUYERS)))
    assert count_by_kind(["placed" if isinstance(answer, Placed) else answer for answer in answers]) == {
        "placed": UNITS,
        SoldOut.__name__: BUYERS - UNITS,
    }


@pytest.mark.parametrize("name", ["known", "unknown"])
@pytest.mark.parametrize(
    ("hasher", "kept"),
    [("shop.accounts.hashers.PasswordHasher", False), ("django.contrib.auth.hashers.PBKDF2PasswordHasher", True)],
    ids=["ours", "Django's"],
)
def test_hashing_a_password_holds_no_connection(
    visitor: APIClient, monkeypatch: pytest.MonkeyPatch, settings: Any, hasher: str, kept: bool, name: str
) -> None:
    settings.PASSWORD_HASHERS = [hasher]
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 1)
    User.objects.create_user("known", password="aPassword")
    encode, seen = PBKDF2PasswordHasher.encode, []

    def look(*args: Any) -> str:
        seen.append(connection.connection is not None)
        return encode(*args)

    monkeypatch.setattr(PBKDF2PasswordHasher, "encode", look)
    answer = visitor.post("/api/token/", {"username": name, "password": "aPassword"}, format="json")
    assert answer.status_code == (200 if name == "known" else 401)
    assert seen == [kept]
