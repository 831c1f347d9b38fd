"""A real nginx runs nginx.conf in front of test servers on this machine."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from django.utils.http import MAX_URL_REDIRECT_LENGTH

from loadtest.local_proxy import LocalProxy, compose_configuration, find_nginx, replaced
from shop import limits
from shop.api.problems import PROBLEMS
from shop.runtime import door
from tests.shop.web_server import connect, received
from tests.waiting import wait_for

CONFIGURATION = compose_configuration()

needs_nginx = pytest.mark.skipif(
    find_nginx() is None and not os.environ.get("CI"),
    reason="nginx is not installed; on Debian: apt-get install nginx-light",
)
pytestmark = [pytest.mark.slow, needs_nginx]


@contextmanager
def proxy(folder: Path, upstream: int, configuration: str = CONFIGURATION) -> Iterator[int]:
    """Run nginx in front of a server on this machine, and yield nginx's port."""
    with LocalProxy(folder, upstream, configuration=configuration) as running:
        yield running.port


def answer_to(port: int, request: bytes) -> bytes:
    """Send a request, and return all that comes back until the connection is closed."""
    with connect(port, request) as client:
        return received(client)


class Upstream:
    """A server that records what it receives on each connection, and answers every request with 200."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.requests: list[bytes] = []
        self.more = b""
        """Further header lines of each answer."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.requests.append(b"")
            threading.Thread(target=self._serve, args=(connection, len(self.requests) - 1), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection:
            while not self._whole(number):
                if not (data := connection.recv(65536)):
                    return
                self.requests[number] += data
            head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n" + self.more
            connection.sendall(head + b"\r\nok")

    def _whole(self, number: int) -> bool:
        head, end, body = self.requests[number].partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        return bool(end) and len(body) >= (int(length[1]) if length else 0)

    def close(self) -> None:
        self.listener.close()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with closing(Upstream()) as server:
        yield server


def test_it_may_open_the_files_of_all_its_connections(upstream: Upstream, tmp_path: Path) -> None:
    """nginx may open enough files. Control: without the directive, it logs that it may open too few."""
    without = re.sub(r"worker_rlimit_nofile .*;", "", CONFIGURATION)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for configuration, enough in ((CONFIGURATION, True), (without, False)):
        # As in a container since Docker 29, nginx may open 1,024 files until it asks for more.
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        try:
            with proxy(tmp_path, upstream.port, configuration):
                pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        log = (tmp_path / "nginx.log").read_text()
        assert ("8192 worker_connections exceed open file resource limit: 1024" not in log) is enough


GET = b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
HEAD = b"POST /api/token/ HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 500\r\n\r\n"


def test_the_web_server_sees_no_request_before_it_is_whole(upstream: Upstream, tmp_path: Path) -> None:
    """nginx keeps an incomplete request. Negative control: without buffering, the web server sees its beginning."""
    with proxy(tmp_path, upstream.port) as port, ExitStack() as clients:
        for _ in range(200):
            clients.enter_context(connect(port, HEAD + b"{"))
        assert answer_to(port, GET).startswith(b"HTTP/1.1 200 ")
        assert len(upstream.requests) == 1
    unbuffered = CONFIGURATION.replace("proxy_request_buffering on", "proxy_request_buffering off")
    with proxy(tmp_path, upstream.port, unbuffered) as port, connect(port, HEAD + b"{"):
        wait_for(lambda: len(upstream.requests) > 1, "the web server to see the beginning of a request")


def test_a_client_that_stops_sending_is_cut_off(upstream: Upstream, tmp_path: Path) -> None:
    """This test shortens the limits to two seconds."""
    sooner = CONFIGURATION
    for name, seconds in {"client_header_timeout": limits.HEAD, "client_body_timeout": limits.BODY}.items():
        sooner = replaced(sooner, f"{name} {seconds}s", f"{name} 2s")
    with proxy(tmp_path, upstream.port, sooner) as port, ExitStack() as clients:
        beginnings = (b"", b"GET / HTTP/1.1\r\nHost: shop", HEAD + b"{")
        silent = [clients.enter_context(connect(port, sent)) for sent in beginnings for _ in range(50)]
        for client in silent:
            received(client)
        assert upstream.requests == []


def test_a_long_body_is_refused_and_not_written_to_the_disk(upstream: Upstream, tmp_path: Path) -> None:
    head = b"POST /admin/login/ HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\nContent-Length: "
    with proxy(tmp_path, upstream.port) as port:
        answer, _, problem = answer_to(port, head + b"%d\r\n\r\n" % (300 * 1024 * 1024)).partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert json.loads(problem)["type"] == "/api/problems/too-large/"
        longest = b"%d\r\n\r\n%b" % (limits.BODY_BYTES, b"x" * limits.BODY_BYTES)
        assert answer_to(port, head + longest).startswith(b"HTTP/1.1 200 ")
        assert [path for path in (tmp_path / "client_body").rglob("*") if path.is_file()] == []


def test_the_web_server_learns_who_asked_and_how(upstream: Upstream, tmp_path: Path) -> None:
    request = b"GET / HTTP/1.1\r\nHost: shop.example:8000\r\nX-Forwarded-For: 192.0.2.7\r\nConnection: close\r\n"
    with proxy(tmp_path, upstream.port) as port:
        for claimed, told in {b"": b"http", b"X-Forwarded-Proto: https\r\n": b"https"}.items():
            answer_to(port, request + claimed + b"\r\n")
            seen = upstream.requests[-1]
            assert b"\r\nHost: shop.example:8000\r\n" in seen
            assert b"\r\nX-Forwarded-For: 192.0.2.7, 127.0.0.1\r\n" in seen
            assert b"\r\nX-Forwarded-Proto: " + told + b"\r\n" in seen


def test_nobody_reads_the_metrics_through_it(upstream: Upstream, tmp_path: Path) -> None:
    """nginx hides /metrics in every spelling. Negative control: without the rule, requests reach the web server."""
    open_to_all = re.sub(r"        location = /metrics \{.*?\}\n", "", CONFIGURATION, flags=re.DOTALL)
    for configuration, status in ((CONFIGURATION, b"404"), (open_to_all, b"200")):
        with proxy(tmp_path, upstream.port, configuration) as port:
            for path in (b"/metrics", b"/%6detrics", b"//metrics", b"/metrics?all", b"/sales/../metrics"):
                assert answer_to(port, GET.replace(b"/", path, 1)).startswith(b"HTTP/1.1 " + status)
    assert len(upstream.requests) == 5


@pytest.mark.parametrize("fits", [True, False], ids=["fits", "control"])
def test_a_client_takes_no_web_server_out_by_a_long_redirect(tmp_path: Path, fits: bool) -> None:
    """A long redirect does not count as a failure of a web server.

    A redirect to the log-in page is long if the URL of the request is long. Negative control: with nginx's default
    buffer size, nginx sends no requests to either web server for ten seconds after two such redirects.
    """
    configuration = CONFIGURATION if fits else re.sub(r" +proxy_(busy_)?buffers?_size .*;\n", "", CONFIGURATION)
    server = "server web:8000 resolve;"
    with closing(Upstream()) as one, closing(Upstream()) as two:
        both = replaced(configuration, server, f"{server} server 127.0.0.1:{two.port};")
        with proxy(tmp_path, one.port, both) as port:
            for redirects in (True, True, False, False, False, False):
                location = b"Location: /" + b"x" * MAX_URL_REDIRECT_LENGTH
                one.more = two.more = b"%b\r\nSet-Cookie: %b\r\n" % (location, b"x" * 4096) if redirects else b""
                assert answer_to(port, GET).startswith(b"HTTP/1.1 200 ") is fits


def test_its_limits_and_problem_documents_are_those_of_the_web_server() -> None:
    def given(name: str) -> str:
        found = re.search(rf"^ *{name} (.*);$", CONFIGURATION, re.MULTILINE)
        assert found
        return found[1]

    assert given("client_header_timeout") == f"{limits.HEAD}s"
    assert given("client_body_timeout") == f"{limits.BODY}s"
    assert given("client_max_body_size") == given("client_body_buffer_size") == f"{limits.BODY_BYTES // 1024}k"
    assert int(given("proxy_read_timeout").rstrip("s")) > limits.REQUEST
    idle = re.search(r"keepalive 64;.*?keepalive_timeout (\d+)s", CONFIGURATION, re.DOTALL)
    assert idle
    assert int(idle[1]) < limits.ANNOUNCED_IDLE
    # Where the kernel has no IPv6, nginx ends at `listen [::]:8080`.
    assert re.findall(r"^ *listen (.*);", CONFIGURATION, re.MULTILINE) == ["8080"]
    documents = [json.loads(text) for text in re.findall(r"return \d+ '(.*)';", CONFIGURATION)]
    assert [document["status"] for document in documents] == [400, 404, 413, 503]
    for document in documents:
        problem = PROBLEMS[document["type"].split("/")[-2]]
        assert (document["title"], document["status"]) == (problem.title, problem.status)
    assert f"{limits.BODY_BYTES} bytes" in documents[2]["detail"]


BROWSER = b"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nAccept-Language: zh-CN\r\n"
ENDS = b"Host: shop.example\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("path", "headers", "page"),
    [
        pytest.param(b"/sales/tonight/buy/", BROWSER, True, id="browser"),
        pytest.param(b"/sales/tonight/", BROWSER, True, id="browser at a kept page"),
        pytest.param(b"/?next=/api/now.json", BROWSER, True, id="browser with a query"),
        pytest.param(b"/sales/tonight/", b"Accept: */*\r\n", False, id="curl"),
        pytest.param(b"/sales/tonight/", b"", False, id="no Accept"),
        pytest.param(b"/api/orders/", BROWSER, False, id="API"),
        pytest.param(b"/api", BROWSER, False, id="API without a slash"),
        pytest.param(b"/sales/tonight/now.json?a=.html", BROWSER, False, id="JSON"),
    ],
)
def test_browsers_get_the_pages_of_the_door(tmp_path: Path, path: bytes, headers: bytes, page: bool) -> None:
    size = limits.BODY_BYTES + 1
    long = b"Content-Length: %d\r\n\r\n%b" % (size, b"x" * size)
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # Reserve the port without listening, so that connections are refused.
        with proxy(tmp_path, refusing.getsockname()[1]) as port:
            for method, status, more in ((b"GET", 503, b"\r\n"), (b"HEAD", 503, b"\r\n"), (b"POST", 413, long)):
                request = method + b" " + path + b" HTTP/1.1\r\n" + ENDS + headers + more
                head, _, body = answer_to(port, request).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 %d " % status)
                assert (b"\r\nRetry-After: 2" in head) is (status == 503)
                for of_a_file in (b"ETag", b"Last-Modified", b"Accept-Ranges"):
                    assert of_a_file not in head
                policy = f"\r\nContent-Security-Policy: {door.REFUSALS_CSP}".encode()
                assert (policy in head) is page
                assert (b"\r\nContent-Type: text/html; charset=utf-8" in head) is page
                assert (b"\r\nContent-Type: application/problem+json" in head) is not page
                if page:
                    assert body == (b"" if method == b"HEAD" else door.REFUSALS[status])


@pytest.mark.parametrize("browser", [True, False], ids=["browser", "program"])
@pytest.mark.parametrize(
    ("request_line", "more", "status"),
    [
        pytest.param(b"GET / HTTP/1.1", b"", 400, id="no host"),
        pytest.param(b"GET / HTTP/1.1", ENDS + b"Cookie: %b\r\n" % (b"x" * 40_000), 400, id="cookies"),
        pytest.param(b"GET /" + b"x" * 40_000 + b" HTTP/1.1", ENDS, 400, id="long address"),
        pytest.param(b"GET /metrics HTTP/1.1", ENDS, 404, id="not for customers"),
        pytest.param(b"GET /503.html HTTP/1.1", ENDS, 404, id="no page of its own"),
    ],
)
def test_what_it_refuses_itself_is_a_page_or_a_problem_document(
    upstream: Upstream, tmp_path: Path, request_line: bytes, more: bytes, status: int, browser: bool
) -> None:
    sent = request_line + b"\r\n" + (BROWSER if browser else b"") + more + b"\r\n"
    with proxy(tmp_path, upstream.port) as port:
        head, _, body = answer_to(port, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    if browser and len(request_line) < 40_000:  # nginx refuses a long address before it reads the headers.
        assert body == door.REFUSALS[status]
    else:
        assert b"application/problem+json" in head
        assert json.loads(body)["detail"]
