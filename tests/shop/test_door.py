"""The door of the web server reads a request before a thread serves it. So slow clients hold no threads."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import ClassVar

import psutil
import psycopg
import pytest
from django.conf import settings
from django.http import HttpResponse

from loadtest.local_shop import free_port
from loadtest.tokens import access_token
from shop import limits
from shop.runtime import door, gateway
from shop.runtime.door import Door
from shop.runtime.serve import web_command
from tests.factories import new_customer, on_sale, waiting_in_postgres
from tests.shop.conftest import order_body
from tests.shop.web_server import CHECKOUT, ask, connect, received, web_server
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = pytest.mark.slow

on_postgres = pytest.mark.django_db(transaction=True)
DRIP = b"POST /api/token/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
"""The beginning of a request whose body is sent slowly."""
CHEAP = "/api/problems/sold-out/"
"""An address that needs neither Postgres nor Redis."""


@pytest.fixture(scope="module")
def server(django_db_setup: None) -> Iterator[tuple[int, psutil.Process]]:
    with web_server(ORDER_RATE="1000") as (port, process):
        yield port, psutil.Process(process.pid)


@pytest.fixture(scope="module")
def port(server: tuple[int, psutil.Process]) -> int:
    return server[0]


@on_postgres
def test_clients_that_send_their_body_slowly_hold_no_thread(port: int) -> None:
    order = json.dumps(order_body(on_sale({"a": 1}), a=1))
    headers = {"Authorization": f"Bearer {access_token(new_customer())}", "Content_Type": "application/json"}
    with ExitStack() as clients:
        slow = [clients.enter_context(connect(port, DRIP)) for _ in range(200)]
        assert len(slow) > settings.WEB_PROCESSES * settings.WEB_THREADS
        assert ask(port, "GET", "/health/")[0] == 200
        assert ask(port, "POST", "/api/orders/", order, Idempotency_Key="one", **headers)[0] == 201
        for client in slow:
            client.sendall(b" ")
            head, _, body = received(client).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ")
            assert b"connection: close" in head.lower()
            assert json.loads(body)["type"] == "/api/problems/too-slow/"


def test_a_thread_for_each_body_would_be_held(tmp_path: Path) -> None:
    """Negative control: granian's own WSGI worker, with one thread, lets a slow body hold the thread."""
    tmp_path.joinpath("reads.py").write_text(
        "def application(environ, start_response):\n"
        "    environ['wsgi.input'].read()\n"
        "    start_response('200 OK', [('Content-Length', '0')])\n"
        "    return [b'']\n"
    )
    with _granian(tmp_path, "reads:application") as (port, _), connect(port, DRIP):
        wait_for(lambda: _status(port) is None, "the thread to be held")


@contextmanager
def _granian(folder: Path, application: str) -> Iterator[tuple[int, psutil.Process]]:
    """Run granian with its own WSGI worker and one thread. Yield its port and its process."""
    port = free_port()
    command = [sys.executable, "-m", "granian", "--interface", "wsgi", "--blocking-threads", "1", "--port", str(port)]
    command += ["--log-level", "error", application]
    with subprocess.Popen(command, cwd=folder, start_new_session=True) as server:
        try:
            wait_for(lambda: _status(port) == 200, "granian to answer")
            yield port, psutil.Process(server.pid)
        finally:
            # Kill the process group, because a worker whose thread is held would outlive its parent.
            os.killpg(server.pid, signal.SIGKILL)


def _status(port: int) -> int | None:
    """Return the status of a response, or None if there is none within a second."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def test_connections_without_a_request_are_closed(port: int) -> None:
    """Connections without a complete request are closed. `received` fails if this takes longer than 30 s."""
    beginnings = {
        "nothing": b"",
        "a part of the head": b"GET / HTTP/1.1\r\nHost: local",
        "one request, then nothing": b"GET /api/problems/sold-out/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    }
    with ExitStack() as clients:
        silent = [clients.enter_context(connect(port, sent)) for sent in beginnings.values() for _ in range(50)]
        assert ask(port, "GET", CHEAP)[0] == 200
        answers = [received(client) for client in silent]
    assert [answer for answer in answers if b"HTTP/2" in answer] == []


def test_the_server_promises_idle_connections_less_than_it_keeps_them(port: int) -> None:
    with connect(port, f"GET {CHEAP} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()) as client:
        assert f"keep-alive: timeout={limits.ANNOUNCED_IDLE}\r\n".encode() in client.recv(4096).lower()
    assert limits.ANNOUNCED_IDLE < limits.HEAD


@pytest.mark.parametrize("path", ["/api/orders/", "/admin/login/", "/none"])
@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x"])
def test_a_long_body_and_one_without_a_length_are_refused_before_they_are_sent(port: int, path: str, kind: str) -> None:
    lengths = [f"Content-Length: {length}" for length in (limits.BODY_BYTES + 1, 300 * 1024 * 1024)]
    for length, status in (*((length, 413) for length in lengths), ("Transfer-Encoding: chunked", 411)):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{length}\r\n"
        with connect(port, f"{head}Expect: 100-continue\r\n\r\n".encode()) as client:
            answer = received(client)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"connection: close" in answer.lower()
        assert b"keep-alive" not in answer.lower()


@pytest.mark.parametrize("path", ["/api/orders/", "/api/sales/", "/admin/login/", "/none"])
def test_a_body_that_nobody_reads_leaves_the_connection_usable(port: int, path: str) -> None:
    """Each request is refused before its body is read: for its token, its method, its CSRF token or its path."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.connect()
    used = connection.sock
    for _ in range(10):
        connection.request("POST", path, b"x" * 60_000, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        assert response.status in {401, 403, 404, 405}
        assert connection.sock is used


def test_paths_headers_and_files_arrive_as_they_were_sent(port: int) -> None:
    status, _, problem = ask(port, "GET", "/api/gr%C3%BCn/%2F?a=%C3%A9")
    assert (status, problem["detail"]) == (404, "There is nothing at /api/grün//.")
    status, kind, page = ask(port, "GET", "/static/admin/css/base.css")
    assert (status, kind) == (200, 'text/css; charset="utf-8"')
    status, _, part = ask(port, "GET", "/static/admin/css/base.css", Range="bytes=10-19")
    assert (status, part) == (206, page[10:20])


@on_postgres
def test_a_stopping_server_loses_no_request() -> None:
    """A stopping server answers the requests that it has accepted, and announces that it closes a connection."""
    order = json.dumps(order_body(on_sale({"a": 1}), a=1)).encode()
    token = access_token(new_customer())
    head = (
        f"POST /api/orders/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Idempotency-Key: one\r\nContent-Type: application/json\r\nContent-Length: {len(order)}\r\n\r\n"
    )
    live = b"GET /health/live/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
    lost, told = [], []

    def keep_asking() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            while True:
                connection.request("GET", CHEAP)
                response = connection.getresponse()
                response.read()
                if response.headers["Connection"] == "close":
                    return told.append(connection)
        except OSError as error:
            return lost.append(error)

    database = settings.DATABASES["default"]
    with (
        web_server() as (port, server),
        psycopg.connect(host=database["HOST"], user=database["USER"], dbname=database["NAME"]) as holder,
    ):
        holder.execute("SELECT FROM inventory_stockitem WHERE sku = 'a' FOR UPDATE")
        with connect(port, head.encode() + order) as buyer, connect(port, live) as idle, connect(port, live) as slow:
            wait_for(waiting_in_postgres, "the order to wait for the row")
            for client in (idle, slow):
                answer = client.recv(4096)
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert f"timeout={limits.ANNOUNCED_IDLE}".encode() in answer
            busy = [threading.Thread(target=keep_asking) for _ in range(4)]
            for thread in busy:
                thread.start()
            server.send_signal(signal.SIGTERM)
            time.sleep(limits.ANNOUNCED_IDLE / 2)  # Wait half the announced idle time, as a correct client may.
            slow.sendall(live)
            answer = slow.recv(4096).lower()
            assert answer.startswith(b"http/1.1 200 ")
            assert (answer.count(b"connection:"), answer.count(b"keep-alive:")) == (1, 0)
            for thread in busy:
                thread.join()
            assert (lost, len(told)) == ([], 4)
            assert idle.recv(4096) == b"", "the end of the drain closes idle connections"
            holder.rollback()
            assert received(buyer).startswith(b"HTTP/1.1 201 ")
        assert server.wait() == 0


def test_a_server_that_is_told_to_stop_while_it_starts_stops() -> None:
    command = [*web_command("127.0.0.1", free_port())]
    with subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.DEVNULL) as server:
        wait_for(lambda: psutil.Process(server.pid).children(), "the worker processes to start")
        server.terminate()
        assert server.wait(timeout=limits.STOP / 2) == 0


@on_postgres
def test_slow_clients_cost_a_burst_at_most_a_tenth(server: tuple[int, psutil.Process]) -> None:
    """500 clients that send a byte a second raise the CPU time per order by at most a tenth."""
    port, process = server
    order = json.dumps(order_body(on_sale({"a": 100_000}), a=1)).encode()
    numbers = count()

    def orders(amount: int) -> None:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for _ in range(amount):
            number = next(numbers)
            headers = {"Authorization": f"Bearer {tokens[number % len(tokens)]}", "Idempotency-Key": str(number)}
            client.request("POST", "/api/orders/", order, {**headers, "Content-Type": "application/json"})
            response = client.getresponse()
            response.read()
            assert response.status == 201
        client.close()

    def burst() -> float:
        before = cpu_seconds(process)
        # Use one client: with several, the sizes of batches vary at random, and so does the cost of an order.
        orders(400)
        return cpu_seconds(process) - before

    tokens = [access_token(new_customer()) for _ in range(1000)]
    burst()
    alone, beside = [], []
    # Compare the least of each, because other load on the machine only adds CPU time: a processor that shares its core
    # with a busy one needs up to twice as much. On a busy machine, five rounds may not have one quiet burst of each.
    while len(alone) < 5 or (len(alone) < 15 and min(beside) > 1.1 * min(alone)):
        alone.append(burst())
        with slow_clients(port, 500):
            beside.append(burst())
    assert min(beside) <= 1.1 * min(alone), (alone, beside)


def cpu_seconds(process: psutil.Process) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in process.children(recursive=True))


@contextmanager
def slow_clients(port: int, amount: int) -> Iterator[None]:
    """Keep this many connections open. Each sends a byte a second, and is replaced when it closes."""
    over = threading.Event()

    def drip() -> None:
        clients = [connect(port, DRIP) for _ in range(amount)]
        while not over.wait(1):
            for number, client in enumerate(clients):
                try:
                    client.sendall(b" ")
                except OSError:
                    client.close()
                    clients[number] = connect(port, DRIP)
        for client in clients:
            client.close()

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_connections_whose_answers_are_not_read_are_closed(
    port: int, server: tuple[int, psutil.Process], tmp_path: Path
) -> None:
    """Clients that do not read their responses hold no thread, and their connections are closed.

    Negative control: granian's own worker keeps them.

    Twelve responses of 1.6 MB exceed the buffers of a connection.
    """
    tmp_path.joinpath("writes.py").write_text(
        "def application(environ, start_response):\n"
        "    start_response('200 OK', [])\n"
        "    return [bytes(1_600_000 if 'swagger' in environ['PATH_INFO'] else 0)]\n"
    )
    page = "/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js"
    asked = f"GET {page} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    assert settings.WEB_THREADS < 20, "there are more clients than threads"
    with _granian(tmp_path, "writes:application") as (other_port, other), ExitStack() as clients:
        ours, theirs = (
            [clients.enter_context(_unread(to, asked * 12)) for _ in range(20)] for to in (port, other_port)
        )
        # Each has received a byte, so the server has accepted all connections.
        assert all(client.recv(1, socket.MSG_PEEK) for client in ours)
        assert ask(port, "GET", page)[0] == 200
        wait_for(lambda: _look_again(server[1], ours) == 0, timeout=limits.UNREAD + WAIT_TIMEOUT)
        assert _connected(other, theirs) == 20


def _unread(port: int, sent: bytes) -> socket.socket:
    """Return a connection whose client has a small receive buffer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(sent)
    return client


def _look_again(server: psutil.Process, clients: list[socket.socket]) -> int:
    # Wait between the checks of `wait_for`, because each check reads all connections of the machine.
    time.sleep(0.5)
    return _connected(server, clients)


def _connected(server: psutil.Process, clients: list[socket.socket]) -> int:
    """Return how many of the clients the server is connected to."""
    peers = {client.getsockname() for client in clients}
    workers = [one for child in server.children(recursive=True) for one in child.net_connections()]
    return sum(one.raddr in peers for one in [*workers, *server.net_connections()] if one.status == "ESTABLISHED")


class Request:
    """A request without a body. It stands in for both the scope and the protocol object of granian."""

    method, path, query_string, http_version, scheme, authority = "GET", "/", "", "1.1", "http", "localhost"
    server = client = "127.0.0.1:80"
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.answers: SimpleQueue[tuple[int, bytes]] = SimpleQueue()

    def response_bytes(self, status: int, headers: object, body: bytes) -> None:
        self.answers.put((status, body))

    def problem(self) -> str:
        status, body = self.answers.get(timeout=30)
        assert status == 503
        return str(json.loads(body)["type"])


def door_of_one_thread() -> tuple[Door, SimpleQueue[str], threading.Event]:
    """Return a door with one thread, a queue of started requests' paths, and an event that ends them."""
    begun, go_on = SimpleQueue[str](), threading.Event()

    def application(environ: dict[str, str], start_response: Callable[..., object]) -> HttpResponse:
        begun.put(environ["PATH_INFO"])
        go_on.wait()
        start_response("200 OK", [])
        return HttpResponse()

    return Door(application, threads=1), begun, go_on


def test_a_request_that_waited_for_a_thread_was_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a request that still waits for a thread may be told that nothing was sold."""
    monkeypatch.setattr(limits, "REQUEST", 0.2)
    served, begun, go_on = door_of_one_thread()
    first, second = Request(), Request()
    served.admit(first, first)
    begun.get()
    served.admit(second, second)
    assert first.problem() == "/api/problems/unavailable/"
    assert second.problem() == "/api/problems/busy/"
    go_on.set()
    third = Request()
    monkeypatch.setattr(limits, "REQUEST", 20)
    served.admit(third, third)
    assert third.answers.get(timeout=30)[0] == 200
    assert begun.qsize() == 1, "the third"


def test_a_path_writes_no_line_into_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """granian decodes the path, so a client can send a line break in it."""

    def application(environ: dict[str, str], start_response: Callable[..., object]) -> HttpResponse:
        raise LookupError("a fault of the application")

    monkeypatch.setattr(limits, "REQUEST", 0.2)
    waiting, begun, go_on = door_of_one_thread()
    late, failing = Request(), Request()
    late.path = failing.path = "/\nWARNING forged"
    waiting.admit(late, late)
    begun.get()
    late.problem()
    go_on.set()
    Door(application, threads=1).admit(failing, failing)
    assert failing.answers.get(timeout=30)[0] == 500
    messages = [record.getMessage() for record in caplog.records if record.name == door.__name__]
    assert len(messages) == 2
    assert not any("\n" in message for message in messages)


class Gone(Request):
    """A request whose response cannot be sent."""

    def response_bytes(self, status: int, headers: object, body: bytes) -> None:
        super().response_bytes(status, headers, body)
        raise OSError("the client is gone")


def test_a_client_that_cannot_be_answered_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response that cannot be sent ends neither a thread that serves requests nor the one that checks deadlines."""
    go_on = threading.Event()

    def application(environ: dict[str, str], start_response: Callable[..., object]) -> HttpResponse:
        if environ["PATH_INFO"] == Request.path:
            go_on.wait()
        raise LookupError("a fault of the application")

    monkeypatch.setattr(limits, "REQUEST", 0.2)
    served = Door(application, threads=1)
    for request in (Gone(), Request()):
        served.admit(request, request)
        assert request.problem() in {"/api/problems/unavailable/", "/api/problems/busy/"}
    go_on.set()
    monkeypatch.setattr(limits, "REQUEST", 20)
    for request in (Gone(), Request()):
        served.admit(request, request)
        assert request.answers.get(timeout=30)[0] == 500


@pytest.mark.parametrize(("header", "reaches"), [("x-forwarded-for", True), ("x_forwarded_for", False)])
def test_a_header_with_an_underscore_is_dropped(header: str, reaches: bool) -> None:
    """A header with an underscore is dropped, because WSGI confuses it with the dashed one that the proxy sets."""
    scope = SimpleNamespace(
        server="127.0.0.1:8000", client="127.0.0.1:1", path="/", query_string="", method="GET", scheme="http",
        http_version="1.1", authority=None, headers={"host": "shop", header: "10.9.9.9"},
    )  # fmt: skip
    assert ("HTTP_X_FORWARDED_FOR" in gateway.environ(scope, b"")) is reaches
