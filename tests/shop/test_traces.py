"""Traces: an order is one trace, from the request to the save in the worker, and nobody waits for the collector."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError
from django.db.backends.signals import connection_created
from django.urls import reverse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis import Redis

from loadtest.tokens import access_token
from shop.runtime import environment
from shop.traces import tracer, tracing
from tests.factories import OnSale, new_customer, on_sale
from tests.shop.conftest import order_body, raising
from tests.shop.test_full_broker import celery
from tests.shop.test_settings import read
from tests.shop.web_server import CHECKOUT, ask, web_server
from tests.waiting import WAIT_TIMEOUT, wait_for

CLIENT = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
"""Trace id and span id that a client sends."""


@dataclass(frozen=True)
class Got:
    """A span that the collector got. Ids are hexadecimal digits."""

    trace: str
    id: str
    parent: str
    name: str
    role: str
    about: dict[str, Any]
    begun: int
    ended: int
    links: list[str]


class Collector(ThreadingHTTPServer):
    """Receives spans by OTLP over HTTP, as a collector does."""

    def __init__(self) -> None:
        self.spans: list[Got] = []
        super().__init__(("127.0.0.1", 0), Receive)

    def trace(self, number: str) -> list[Got]:
        return [span for span in self.spans if span.trace == number]


class Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in sent.resource_spans:
            of_process = values(resource.resource)
            assert of_process["service.name"] == "last-unit"
            self.server.spans += [
                Got(
                    *(part.hex() for part in (span.trace_id, span.span_id, span.parent_span_id)),
                    span.name,
                    of_process["shop.role"],
                    values(span),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    [link.span_id.hex() for link in span.links],
                )
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        self.send_response(200 if self.path == "/v1/traces" else 404)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Suppress the log."""


def values(described: Any) -> dict[str, Any]:
    """Return the attributes of a span or resource."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in described.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def traced(port: int, **more: str) -> dict[str, str]:
    """Return the environment variables with which a process sends spans at once to the collector at a port."""
    address = f"http://127.0.0.1:{port}"
    return {"TRACES": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "50", **more}


def send(port: int, offer: OnSale, **headers: str) -> tuple[int, Any]:
    """Order one unit over HTTP, and return the status and the answer."""
    headers |= {"Authorization": f"Bearer {access_token(new_customer())}", "Idempotency_Key": str(uuid4())}
    body = json.dumps(order_body(offer, **dict.fromkeys(offer.products, 1)))
    status, _, answer = ask(port, "POST", "/api/orders/", body, Content_Type="application/json", **headers)
    return status, answer


def parents(spans: list[Got]) -> set[tuple[str, str, str]]:
    """Return role, name and parent's name of each span. A parent that was not sent is named by its id."""
    names = {span.id: span.name for span in spans}
    return {(span.role, span.name, names.get(span.parent, span.parent)) for span in spans}


def one(spans: list[Got], name: str) -> Got:
    (found,) = (span for span in spans if span.name == name)
    return found


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_an_order_is_one_trace_from_the_request_to_the_save(redis: Redis, collector: Collector, tmp_path: Path) -> None:
    """An order is one trace, with a lock as well as with the queue and a worker. The log names a refusal's trace."""
    locked, queued = on_sale({"a": 5}, strategy="redis-lock"), on_sale({"b": 5}, strategy="lua-queue")
    unloaded = on_sale({"c": 5}, strategy="lua", preheat=False)
    in_steps = on_sale({"d": 5}, strategy="segmented-lock")
    variables = traced(collector.server_port, LOG_FORMAT="json", LOG_LEVEL="INFO", METRICS="0")
    log = tmp_path / "web.log"
    with web_server(log=log, **variables) as (port, _):
        status, placed = send(port, locked, traceparent="-".join(["00", *CLIENT, "01"]))
        assert status == 201
        wait_for(lambda: "POST /api/orders/" in names(collector.trace(CLIENT[0])), "the request to be sent")
        spans = collector.trace(CLIENT[0])
        assert parents(spans) == {
            ("web", "POST /api/orders/", CLIENT[1]),
            ("web", "place order", "POST /api/orders/"),
            ("web", "SELECT", "place order"),  # the offer, which this process has not cached yet
            ("web", "wait for lock", "place order"),
            ("web", "hold lock", "place order"),
            ("web", "WITH", "hold lock"),  # This statement takes the stock, saves the order and commits.
        }
        about = {"shop.sale": str(locked.sale), "shop.strategy": "redis-lock", "shop.order": placed["id"]}
        assert one(spans, "place order").about == about
        request, hold, save = (one(spans, name) for name in ("POST /api/orders/", "hold lock", "WITH"))
        assert request.about["http.response.status_code"] == 201
        assert request.begun <= one(spans, "wait for lock").begun <= hold.begun <= save.begun
        assert save.ended <= hold.ended <= request.ended

        status, placed = send(port, in_steps)
        assert status == 201
        several = wait_for(lambda: placing(collector, in_steps.sale), "the order of several statements to be sent")
        wait_for(lambda: "POST /api/orders/" in names(collector.trace(several.trace)), "its request to be sent")
        assert parents(collector.trace(several.trace)) >= {
            ("web", "UPDATE", "hold lock"),
            ("web", "WITH", "hold lock"),
            ("web", "COMMIT", "hold lock"),
        }

        (status, first), (second_status, second) = send(port, queued), send(port, queued)
        assert (status, second_status) == (202, 202)
        with celery(tmp_path, "worker", "--pool", "threads", **variables):
            wait_for(lambda: saving(collector, second["id"]), "a worker to save both", timeout=3 * WAIT_TIMEOUT)
        saved, other = saving(collector, first["id"]), saving(collector, second["id"])
        assert parents(collector.trace(saved.trace)) == {
            ("web", "POST /api/orders/", ""),
            ("web", "place order", "POST /api/orders/"),
            ("web", "SELECT", "place order"),
            ("web", "queue order", "place order"),
            ("worker", "save order", "queue order"),
            ("worker", "SELECT", "save order"),
            ("worker", "WITH", "save order"),
        }
        assert {each for each in parents(collector.trace(other.trace)) if each[0] == "worker"} == {
            ("worker", "save order", "queue order")
        }
        assert (saved.links, other.links) == ([], [saved.id]), "the statements of the batch are in one trace"
        assert one(collector.trace(other.trace), "place order").about["shop.order"] == second["id"]

        assert send(port, unloaded)[0] == 503
        refused = wait_for(lambda: placing(collector, unloaded.sale), "the refusal to be sent")
        assert refused.about["error.type"] == "not-loaded"
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        assert {line["trace"] for line in lines if line["message"].startswith("not-loaded")} == {refused.trace}
    assert len({span.trace for span in collector.spans if span.name == "place order"}) == 5
    assert {span.name for span in collector.spans if not span.parent} == {"POST /api/orders/"}, "nothing else is traced"


def names(spans: list[Got]) -> set[str]:
    return {span.name for span in spans}


def saving(collector: Collector, order: str) -> Got | None:
    """Return the span in which a worker saves an order."""
    return next((span for span in collector.spans if span.name == "save order" and order in span.about.values()), None)


def placing(collector: Collector, sale: int) -> Got | None:
    """Return the span of an order for a sale."""
    return next((span for span in collector.spans if span.about.get("shop.sale") == str(sale)), None)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_no_order_waits_for_a_collector_that_does_not_answer(redis: Redis, tmp_path: Path) -> None:
    """The collector accepts connections and never answers. More spans are made than the queue can hold."""
    offer, log = on_sale({"a": 100}, strategy="group-commit"), tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # The exporter would wait for an hour. A client of the shop gives up after 30 s.
        limits = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3600", "OTEL_BSP_MAX_QUEUE_SIZE": "8"}
        limits |= {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
        with web_server(log=log, **traced(silent.getsockname()[1], **limits)) as (port, _):
            assert send(port, offer)[0] == 201
            connection, _ = silent.accept()
            with connection:
                assert [send(port, offer)[0] for _ in range(20)] == [201] * 20
                assert "Queue full, dropping Span." in log.read_text(), "the collector has taken none of them"


ENDS = """
import django
django.setup()
from shop.traces import tracing
tracing.start("web", str)
with tracing._tracer._tracer.start_as_current_span("one"):
    print("started", flush=True)
"""


@pytest.mark.slow
def test_no_process_waits_long_at_its_end_for_a_collector_that_does_not_answer() -> None:
    """An ending process waits only briefly for a silent collector. `TracerProvider.shutdown` would wait for 30 s."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        variables = traced(silent.getsockname()[1], OTEL_EXPORTER_OTLP_TIMEOUT="3600")
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", **variables}
        command = [sys.executable, "-c", ENDS]
        with subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "started\n"
            silent.accept()
            assert process.wait(timeout=20) == 0


IMPORTED = """
import sys, django
django.setup()
import shop.runtime.tasks, shop.runtime.wsgi
from shop.runtime import measuring
measuring.start(sys.argv[1])
parts = ("sdk.trace", "exporter.otlp.proto.http.trace_exporter")
print([name for name in parts if f"opentelemetry.{name}" in sys.modules])
"""


def imported(role: str, **variables: str) -> str:
    """Return the parts of OpenTelemetry that a process with this role imports when it starts."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", "METRICS": "0", **variables}
    command = [sys.executable, "-c", IMPORTED, role]
    return subprocess.check_output(command, cwd=CHECKOUT, env=environment, text=True, timeout=60).strip()


@pytest.mark.slow
def test_without_traces_the_shop_imports_nothing_of_opentelemetry() -> None:
    """Without TRACES, the shop imports neither the tracer nor the exporter. redis-py may import other parts."""
    assert imported("web", TRACES="0") == "[]"
    assert imported("beat", TRACES="1") == "[]", "beat takes no part in an order"
    assert imported("web", TRACES="1") == "['sdk.trace', 'exporter.otlp.proto.http.trace_exporter']", "the control"


def test_without_its_packages_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module or its parent package is missing. Control: a start without traces looks for neither."""
    for find in (lambda _: None, raising(ModuleNotFoundError("opentelemetry"))):
        monkeypatch.setattr(environment, "find_spec", find)
        with pytest.raises(ImproperlyConfigured, match=r"^TRACES needs packages .* requirements-trace\.txt`, or"):
            read(monkeypatch, TRACES="1")
        assert read(monkeypatch, TRACES="0")["TRACES"] is False
    assert (CHECKOUT / "requirements-trace.txt").is_file()


def test_the_requests_that_place_an_order_are_traced_and_measured_and_no_other() -> None:
    def places_order(path: str, method: str = "POST") -> bool:
        return tracing.places_order(SimpleNamespace(method=method, path=path))

    paths = [reverse("api-orders"), reverse("buy", args=["night-sale"])]
    assert all(places_order(path) for path in paths)
    assert not any(places_order(path, "GET") for path in paths)
    others = [reverse("account_login"), reverse("sale", args=["night-sale"]), reverse("order-pay", args=[uuid4()])]
    others += [reverse("orders"), reverse("api-order", args=[uuid4()])]
    assert not any(places_order(path) for path in others)


def test_a_span_holds_no_value_of_a_row_and_no_long_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A span has no value of a row, although Postgres quotes refused rows, and no long path, which anybody can send."""
    got = InMemorySpanExporter()
    monkeypatch.setattr(tracer, "OTLPSpanExporter", lambda: got)
    traces = tracer.Tracer("web", lambda error: "bug")
    connection_created.disconnect(traces._trace_statements)

    def refuse(*statement: Any) -> None:
        raise IntegrityError("DETAIL: Failing row contains (1, a secret)")

    scope = SimpleNamespace(path=f"/sales/{'x' * 30_000}/buy/", method="POST", headers={})
    answered: Any = SimpleNamespace(scope=scope, at=time.monotonic(), status=409)
    with traces.answering(answered), pytest.raises(IntegrityError):
        traces._trace_statement(refuse, "INSERT INTO shop_order VALUES (%s)", None, False, {})
    wait_for(lambda: len(got.get_finished_spans()) == 2)
    statement, request = got.get_finished_spans()
    assert (statement.attributes or {})["error.type"] == "IntegrityError"
    assert all("secret" not in span.to_json() and len(span.to_json()) < 3000 for span in (statement, request))
