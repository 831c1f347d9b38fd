"""The export of 100,000 orders over HTTP: nothing is lost, and the web process needs no more memory than for 1,000."""

from __future__ import annotations

import csv
import http.client
import io
import socket
import subprocess
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

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process uses")

MANY = 100_000
FEW = 1_000
LEAST = 2_000_000
"""Bytes. A few orders are assumed to need this much memory, even if less is measured."""
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


def export(port: int, session: str) -> tuple[int, list[str]]:
    """Return the length of the export in bytes, and the ids in it. The client reads as fast as it can."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    client.request("GET", f"{ORDERS}export/", headers={"Cookie": f"{settings.SESSION_COOKIE_NAME}={session}"})
    response = client.getresponse()
    assert (response.status, response.headers["Connection"]) == (200, "close")
    body = response.read()
    client.close()
    return len(body), [row["id"] for row in csv.DictReader(io.StringIO(body.decode()))]


def memory(process: psutil.Process, name: str) -> int:
    """Return the bytes of memory that a process uses now (`VmRSS`), or the most that it has used (`VmHWM`)."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(value) * 1024


@contextmanager
def measured(process: psutil.Process) -> Iterator[list[int]]:
    """Yield a list. At the end of the block, it contains the maximum number of bytes by which the process grew."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # Reset `VmHWM`.
    before, growth = memory(process, "VmRSS"), list[int]()
    yield growth
    growth.append(memory(process, "VmHWM") - before)


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


@pytest.fixture
def session() -> str:
    """The session of an operator."""
    return session_of(User.objects.create_superuser("operator").pk)


def worker_of(server: subprocess.Popen[bytes]) -> psutil.Process:
    (worker,) = psutil.Process(server.pid).children()
    return worker


@on_linux
def test_a_slow_reader_of_an_export_costs_no_memory_and_no_thread(redis: Redis, session: str) -> None:
    """During a slow export, a server with one thread and one connection to Postgres answers other requests.

    Negative control: a web server that puts all pieces into granian's stream needs more memory.
    """
    offer, customer = on_sale({"a": 1}), new_customer()
    insert(FEW, sale=offer.sale, customer=customer)
    with (
        web_server(WEB_THREADS="1", WEB_DATABASE_CONNECTIONS="1") as (port, server),
        web_server(application="tests.shop.unlimited_stream:application") as (port_of_control, control),
    ):
        web, web_of_control = worker_of(server), worker_of(control)
        for each in (port, port_of_control):
            export(each, session)  # The process loads and caches what each export needs.
        open_files = web.num_fds()
        insert(MANY - FEW, sale=offer.sale, customer=customer)
        before, before_of_control = memory(web, "VmRSS"), memory(web_of_control, "VmRSS")
        bound = 4 * LEAST
        with measured(web) as grown, slow_export(port, session) as rest, slow_export(port_of_control, session):
            wait_for(
                lambda: memory(web_of_control, "VmRSS") - before_of_control > bound, "the control to grow", timeout=120
            )
            assert memory(web, "VmRSS") - before < bound / 2
            assert ask(port, "GET", "/health/")[0] == 200
            ids = rest()
        assert ids == [str(pk) for pk in Order.objects.order_by("-pk").values_list("pk", flat=True)], "none is lost"
        assert grown[0] < bound
        with slow_export(port, session):
            pass  # This client leaves early.
        wait_for(lambda: web.num_fds() <= open_files, "the pipes to be closed")


@on_linux
def test_an_export_of_100000_orders_needs_as_much_memory_as_one_of_1000(redis: Redis, session: str) -> None:
    """Negative control: a web process that builds a list of all lines before it sends them needs more."""
    offer, customer = on_sale({"a": 1}), new_customer()
    insert(FEW, sale=offer.sale, customer=customer)
    with (
        web_server() as (port, server),
        web_server(application="tests.shop.list_building:application") as (port_of_list, server_of_list),
    ):
        web, web_of_list = worker_of(server), worker_of(server_of_list)
        for each in (port, port_of_list):
            export(each, session)  # The process loads and caches what each export needs.
        with measured(web) as few:
            assert len(export(port, session)[1]) == FEW
        insert(MANY - FEW, sale=offer.sale, customer=customer)
        with measured(web) as many:
            size, ids = export(port, session)
        with measured(web_of_list) as many_of_list:
            assert export(port_of_list, session) == (size, ids)
    assert ids == [str(pk) for pk in Order.objects.order_by("-pk").values_list("pk", flat=True)], "none is lost"
    assert len(ids) == MANY
    # Allow four times as much, because garbage is collected only now and then.
    bound = 4 * max(few[0], LEAST)
    assert many[0] < bound < size / 2
    assert many_of_list[0] > bound, "the control is found"
