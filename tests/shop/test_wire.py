"""Behaviour that only a real web server shows: chunked bodies, hosts, missing slashes, long waits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings

from loadtest.tokens import access_token
from tests.factories import new_customer, on_sale
from tests.shop.conftest import order_body
from tests.shop.web_server import CHECKOUT, ask, web_server
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the web server's log and metrics."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def port(django_db_setup: None, folder: Path) -> Iterator[int]:
    """Run the shop's web server on the test database, without metrics and with a JSON log."""
    variables = {"METRICS": "0", "METRICS_FOLDER": str(folder / "metrics"), "LOG_FORMAT": "json", "LOG_LEVEL": "INFO"}
    with web_server(log=folder / "log", **variables) as (port, _):
        yield port


def customer_headers(**more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {access_token(new_customer())}", "Content_Type": "application/json", **more}


def test_the_log_has_the_trace_and_the_order_of_a_refused_request(port: int, folder: Path) -> None:
    offer, trace = on_sale({"a": 1}, strategy="lua", preheat=False), "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = customer_headers(Idempotency_Key="mine", traceparent=f"00-{trace}-00f067aa0ba902b7-01")

    def logged() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (folder / "log").read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["message"].startswith("not-loaded: ")]

    assert ask(port, "POST", "/api/orders/", json.dumps(order_body(offer, a=1)), **headers)[0] == 503
    (line,) = wait_for(logged, "the refusal to be logged")
    assert line["trace"] == trace
    assert len(line["order"]) == 36


def test_without_metrics_there_is_nothing(port: int, folder: Path) -> None:
    assert ask(port, "GET", "/metrics")[0] == 404
    assert not (folder / "metrics").exists()


def test_a_row_locked_for_long_is_503(port: int) -> None:
    offer = on_sale({"a": 1})
    database = settings.DATABASES["default"]
    with psycopg.connect(host=database["HOST"], user=database["USER"], dbname=database["NAME"]) as holder:
        holder.execute("SELECT FROM inventory_stockitem WHERE sku = 'a' FOR UPDATE")
        order = json.dumps(order_body(offer, a=1))
        headers = customer_headers(Idempotency_Key="one")
        status, kind, problem = ask(port, "POST", "/api/orders/", order, **headers)
    assert (status, kind, problem["type"]) == (503, "application/problem+json", "/api/problems/unavailable/")


def test_loaded_objects_are_not_collected() -> None:
    """Garbage collection skips objects that are loaded at the start: to collect all objects would stall requests."""
    count = "import gc, shop.runtime.wsgi; before = gc.get_freeze_count(); gc.collect(); "
    count += "print(before, len(gc.get_objects()))"
    done = subprocess.run([sys.executable, "-c", count], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    frozen, others = map(int, done.stdout.split())
    assert frozen > 100 * others


@pytest.mark.parametrize("authorized", [True, False], ids=["with a token", "without a token"])
def test_a_client_that_sends_a_large_body_first_gets_an_answer(port: int, authorized: bool) -> None:
    headers = customer_headers() if authorized else {"Content_Type": "application/json"}
    body = b'{"sale": "' + b"a" * 10 * 1024 * 1024 + b'"}'
    for _ in range(3):
        answer = ask(port, "POST", "/api/orders/", body, Idempotency_Key="k", **headers)
        assert answer[:2] == (413, "application/problem+json")
