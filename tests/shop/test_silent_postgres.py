"""A Postgres that accepts requests and does not respond, as when it is stopped or the network fails."""

from __future__ import annotations

import json
import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from loadtest.tokens import access_token
from shop import limits
from shop.postgres import BoundedConnection
from tests.factories import new_customer, on_sale
from tests.locking.proxy import Proxy
from tests.shop.conftest import order_body
from tests.shop.web_server import ask, connect, received, web_server
from tests.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture
def proxy(django_db_setup: None) -> Iterator[Proxy]:
    """A proxy to Postgres, which can refuse or hang."""
    database = settings.DATABASES["default"]
    proxy = Proxy(f"{database['HOST']}/.s.PGSQL.{database['PORT']}")
    yield proxy
    proxy.close()


def url(proxy: Proxy) -> str:
    database = settings.DATABASES["default"]
    return f"postgres://{database['USER']}@{proxy.host}:{proxy.port}/{database['NAME']}?sslmode=disable"


@pytest.mark.slow
def test_requests_end_while_postgres_is_silent_and_succeed_after_it(proxy: Proxy) -> None:
    """Requests end while Postgres is silent, and succeed afterwards, although there are three per thread.

    The process is alive while all its threads wait.
    """
    request = b"GET /api/sales/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with web_server(DATABASE_URL=url(proxy)) as (port, _), ExitStack() as clients:
        assert ask(port, "GET", "/api/sales/")[0] == 200, "now the pool has its connections"
        proxy.hang()
        amount = 3 * settings.WEB_THREADS
        waiting = [clients.enter_context(connect(port, request)) for _ in range(amount)]
        assert ask(port, "GET", "/health/live/") == (200, "text/plain", "")
        assert select.select(waiting, [], [], 0)[0] == [], "no thread was free"
        assert {received(client)[:12] for client in waiting} == {b"HTTP/1.1 503"}
        proxy.restore()
        wait_for(lambda: ask(port, "GET", "/api/sales/")[0] == 200, "the shop to answer again")


def test_a_connection_of_the_pool_ends_its_wait(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    with BoundedConnection.connect(url(proxy), autocommit=True) as bounded:
        proxy.hang()
        monkeypatch.setattr(limits, "POSTGRES_SILENCE", 0.2)
        with pytest.raises(psycopg.OperationalError, match="no answer"):
            bounded.execute("SELECT 1")
        assert bounded.closed


def test_another_connection_waits_on(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a plain psycopg connection waits without limit."""
    monkeypatch.setattr(limits, "POSTGRES_SILENCE", 0.2)
    with psycopg.connect(url(proxy), autocommit=True) as unbounded:
        proxy.hang()
        asking = threading.Thread(target=unbounded.execute, args=("SELECT 1",))
        asking.start()
        asking.join(2)
        assert asking.is_alive()
        proxy.restore()
        asking.join()


def test_every_connection_notices_a_server_that_is_gone() -> None:
    wanted = connection.get_connection_params()
    assert wanted["connect_timeout"] == limits.POSTGRES_CONNECT
    assert wanted["tcp_user_timeout"] == limits.POSTGRES_SILENCE * 1000
    assert wanted["keepalives"] == 1


@pytest.mark.slow
def test_queued_orders_go_on_while_postgres_is_silent(proxy: Proxy) -> None:
    """The first orders wait until their connection gives up. Then one caller at a time queries Postgres."""
    offer = on_sale({"a": 100}, strategy="lua-queue")
    body = json.dumps(order_body(offer, a=1))
    headers = {"Content_Type": "application/json", "Idempotency_Key": "one"}
    tokens = [f"Bearer {access_token(new_customer())}" for _ in range(61)]

    def place(token: str) -> int:
        return ask(port, "POST", "/api/orders/", body, Authorization=token, **headers)[0]

    with web_server(DATABASE_URL=url(proxy), OFFER_TTL="0") as (port, _), ThreadPoolExecutor(20) as customers:
        assert place(tokens[0]) == 202
        proxy.hang()
        assert set(customers.map(place, tokens[1:])) == {202}
        proxy.restore()
