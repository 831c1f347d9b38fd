"""The export of 100,000 orders over HTTP: nothing is lost, and a slow reader costs the web process no memory."""

from __future__ import annotations

import csv
import http.client
import io
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from redis import Redis

from shop.models import Order
from tests.factories import new_customer, on_sale
from tests.shop.payment_support import session_of
from tests.shop.test_admin import ORDERS
from tests.shop.web_server import ask, web_server
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

MANY = 100_000
FEW = 1_000
BOUND = 8_000_000
"""Bytes by which the web process may grow. All lines of an export together need more than twice as much."""
INSERT = """
    WITH placed AS (
        INSERT INTO shop_order (id, customer_id, sale_id, currency, state, reason, key, body_hash, created_at,
                                payable_from)
        SELECT uuidv7(), %(customer)s, %(sale)s, 'EUR', 'paid', '', 'key-' || gen_random_uuid(), '', now(), now()
          FROM generate_series(1, %(count)s)
        RETURNING id
    )
    INSERT INTO shop_orderitem (order_id, sku, quantity, price, name) SELECT id, 'a', 1, 9.90, 'A' FROM placed
"""


def insert(count: int, *, sale: int, customer: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT, {"count": count, "sale": sale, "customer": customer})


def memory(process: psutil.Process, name: str) -> int:
    """Return the bytes of memory that a process uses now (`VmRSS`), or the most that it has used (`VmHWM`)."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(value) * 1024


@contextmanager
def slow_export(port: int, session: str) -> Iterator[Callable[[], list[str]]]:
    """Read an export at 100 kB/s in a thread. Yield a function that reads the rest fast and returns the ids."""
    client, hurry, body = socket.socket(), threading.Event(), bytearray()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.settimeout(60)
    client.connect(("127.0.0.1", port))
    cookie = f"{settings.SESSION_COOKIE_NAME}={session}"
    client.sendall(f"GET {ORDERS}export/ HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
    response = http.client.HTTPResponse(client)
    response.begin()
    assert (response.status, response.headers["Connection"]) == (200, "close")

    def read() -> None:
        with suppress(OSError, http.client.HTTPException):  # At the end of the block, the socket is shut down.
            while part := response.read(20_000):
                body.extend(part)
                hurry.wait(0.2)

    def rest() -> list[str]:
        hurry.set()
        thread.join()
        return [row["id"] for row in csv.DictReader(io.StringIO(body.decode()))]

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield rest
    finally:
        hurry.set()
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        thread.join()
        response.close()
        client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process uses")
def test_a_slow_reader_of_an_export_costs_no_memory_and_no_thread(redis: Redis) -> None:
    """During a slow export, a server with one thread and one connection to Postgres answers other requests.

    Negative control: a web server that puts all pieces into granian's stream needs more memory.
    """
    offer, customer = on_sale({"a": 1}), new_customer()
    session = session_of(User.objects.create_superuser("operator").pk)
    insert(FEW, sale=offer.sale, customer=customer)
    with (
        web_server(WEB_THREADS="1", WEB_DATABASE_CONNECTIONS="1") as (port, server),
        web_server(application="tests.shop.unlimited_stream:application") as (port_of_control, control),
    ):
        (web,), (web_of_control,) = (psutil.Process(each.pid).children() for each in (server, control))
        for each in (port, port_of_control):
            with slow_export(each, session) as rest:
                rest()  # The process loads and caches what each export needs.
        open_files = web.num_fds()
        insert(MANY - FEW, sale=offer.sale, customer=customer)
        before, before_of_control = memory(web, "VmRSS"), memory(web_of_control, "VmRSS")
        Path(f"/proc/{web.pid}/clear_refs").write_text("5")  # Reset `VmHWM`.
        with slow_export(port, session) as rest, slow_export(port_of_control, session):
            wait_for(
                lambda: memory(web_of_control, "VmRSS") - before_of_control > BOUND, "the control to grow", timeout=120
            )
            assert memory(web, "VmRSS") - before < BOUND / 2
            assert ask(port, "GET", "/health/")[0] == 200
            ids = rest()
        assert ids == [str(pk) for pk in Order.objects.order_by("-pk").values_list("pk", flat=True)], "none is lost"
        assert memory(web, "VmHWM") - before < BOUND
        with slow_export(port, session):
            pass  # This client leaves early.
        wait_for(lambda: web.num_fds() <= open_files, "the pipes to be closed")
