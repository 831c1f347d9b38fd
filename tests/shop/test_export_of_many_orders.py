"""The export of 100,000 orders over HTTP: nothing is lost, and the web process needs no more memory than for 1,000."""

from __future__ import annotations

import csv
import http.client
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from redis import Redis

from shop.models import Order
from tests.factories import new_customer, on_sale
from tests.shop.test_admin import ORDERS
from tests.shop.web_server import web_server

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

MANY = 100_000
FEW = 1_000
LEAST = 2_000_000
"""Bytes: the minimum growth for a few orders that is assumed, even if the measured growth is less."""
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
    assert response.status == 200
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
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # `VmHWM` begins anew.
    before, growth = memory(process, "VmRSS"), list[int]()
    yield growth
    growth.append(memory(process, "VmHWM") - before)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process has used at most")
def test_an_export_of_100000_orders_needs_as_much_memory_as_one_of_1000(redis: Redis) -> None:
    """Negative control: a web process that builds a list of all lines, though it sends them one by one, needs more."""
    offer, customer = on_sale({"a": 1}), new_customer()
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    insert(FEW, sale=offer.sale, customer=customer)
    with (
        web_server() as (port, server),
        web_server(application="tests.shop.list_building:application") as (port_of_list, server_of_list),
    ):
        (web,), (web_of_list,) = (psutil.Process(each.pid).children() for each in (server, server_of_list))
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
    # Four times, because garbage is collected now and then, and granian keeps what the client has not read yet.
    bound = 4 * max(few[0], LEAST)
    assert many[0] < bound < size / 2
    assert many_of_list[0] > bound, "the control is found"
