"""What the door answers when it refuses: a page to a browser, and a problem document to a program."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesHeaderParser

import pytest

from shop import limits
from shop.api import problems
from tests.shop.web_server import CHECKOUT, connect, received, web_server

pytestmark = pytest.mark.slow

PAGES = {int(file.stem): file for file in sorted((CHECKOUT / "shop/runtime/refusals").glob("*.html"))}
"""The pages by status."""
CHROMIUM_ACCEPTS = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
BROWSER = {"Accept": CHROMIUM_ACCEPTS, "Accept-Language": "zh-CN,zh;q=0.9"}
CURL = {"Accept": "*/*"}
PROGRAM = {"Accept": "application/json"}

Answer = tuple[int, Message, str]
"""Status, headers and body of a response."""


@pytest.fixture(scope="module")
def idle(django_db_setup: None) -> Iterator[int]:
    """Run a web server with one thread, and yield its port."""
    with web_server(application="tests.shop.overloaded_shop:application", WEB_THREADS="1") as (port, _):
        yield port


@pytest.fixture(scope="module")
def answers_while_idle(idle: int) -> dict[str, Answer]:
    """Return responses of a server whose thread is free, by problem type. The last request keeps the thread."""
    slow = {"Content-Length": "500"}
    return {
        problems.INTERNAL.slug: answer(idle, "GET", "/broken/", BROWSER),
        problems.TOO_SLOW.slug: answer(idle, "POST", "/sales/tonight/buy/", {**BROWSER, **slow}),
        problems.UNAVAILABLE.slug: answer(idle, "GET", "/sales/", BROWSER),
    }


@pytest.fixture(scope="module")
def port(idle: int, answers_while_idle: dict[str, Answer]) -> int:
    """Return the port of a web server whose only thread is held."""
    assert len(answers_while_idle) == 3
    return idle


def answer(port: int, method: str, path: str, headers: dict[str, str]) -> Answer:
    """Return the response to the head of a request. The request's body is not sent."""
    head = {"Host": "localhost", **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    with connect(port, "\r\n".join([*lines, "Connection: close", "", ""]).encode()) as client:
        status_line, _, rest = received(client).partition(b"\r\n")
    found, _, body = rest.partition(b"\r\n\r\n")
    return int(status_line.split()[1]), BytesHeaderParser().parsebytes(found), body.decode()


TOO_LONG = {"Content-Length": str(limits.BODY_BYTES + 1), "Expect": "100-continue"}
CHUNKED = {"Transfer-Encoding": "chunked", "Expect": "100-continue"}
REFUSED = [
    pytest.param("GET", {}, problems.BUSY, id="overload"),
    pytest.param("POST", TOO_LONG, problems.TOO_LARGE, id="long form"),
    pytest.param("POST", CHUNKED, problems.LENGTH_REQUIRED, id="form without a length"),
]
"""A method, headers, and the problem that the door answers with."""


@pytest.mark.parametrize(("method", "headers", "problem"), REFUSED)
def test_a_browser_gets_a_page(port: int, method: str, headers: dict[str, str], problem: problems.Problem) -> None:
    status, found, body = answer(port, method, "/sales/tonight/buy/", {**BROWSER, **headers})
    assert status == problem.status
    assert found["Content-Type"] == "text/html; charset=utf-8"
    assert found["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline'; ")
    assert body == PAGES[status].read_text()
    _, of_program, _ = answer(port, method, "/sales/tonight/buy/", {**PROGRAM, **headers})
    for name in ("Retry-After", "Cache-Control", "Connection"):
        assert found[name] == of_program[name], name


def test_a_browser_gets_a_page_for_what_fails_in_a_thread(answers_while_idle: dict[str, Answer]) -> None:
    for slug, (status, found, body) in answers_while_idle.items():
        problem = problems.PROBLEMS[slug]
        retry = None if problem.retry_after is None else str(problem.retry_after)
        assert (status, found["Retry-After"], body) == (problem.status, retry, PAGES[status].read_text())


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        pytest.param("/sales/tonight/", CURL, id="curl"),
        pytest.param("/sales/tonight/", {}, id="no Accept"),
        pytest.param("/sales/tonight/", PROGRAM, id="program"),
        pytest.param("/api/orders/", BROWSER, id="API"),
        pytest.param("/api", BROWSER, id="API without a slash"),
        pytest.param("/sales/tonight/now.json", BROWSER, id="JSON"),
        pytest.param("/sales/tonight/now.json?a=.html", BROWSER, id="JSON with a query"),
    ],
)
@pytest.mark.parametrize(("method", "headers", "problem"), REFUSED)
def test_everybody_else_gets_a_problem_document(
    port: int, method: str, headers: dict[str, str], problem: problems.Problem, path: str, asked: dict[str, str]
) -> None:
    status, found, body = answer(port, method, path, {**asked, **headers})
    assert (status, found["Content-Type"]) == (problem.status, problems.CONTENT_TYPE)
    assert json.loads(body)["type"] == problem.type
    retry = None if problem.retry_after is None else str(problem.retry_after)
    assert (found["Retry-After"], found["Content-Security-Policy"]) == (retry, None)


# The pages


def test_each_page_is_small_and_whole() -> None:
    """A page loads nothing, runs nothing, and says the same in both languages."""
    assert set(PAGES) == {400, 404, 408, 411, 413, 500, 503}
    heads = set()
    for status, file in PAGES.items():
        html = file.read_text()
        assert len(html.encode()) < 3000, status
        assert html.startswith('<!doctype html>\n<html lang="en">'), status
        assert not re.search(r"<script|<link|<img|src=|url\(|\bon\w+=", html), status
        assert len(re.findall("<h1>", html)) == 1, status
        assert len(re.findall(r'<(?:p|span) lang="zh-Hans">[^<]', html)) == 2, status
        heads.add(re.sub("<title>.*</title>", "", html.partition("<h1>")[0]))
    assert len(heads) == 1, "all pages look alike"
    assert PAGES[413].read_text().count(f"{limits.BODY_BYTES // 1024} KiB") == 2, "it names the limit of a form"
