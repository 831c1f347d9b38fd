"""nginx.conf caches pages that are the same for everybody, and nothing that is personal."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from loadtest.local_proxy import replaced
from shop.runtime import door
from tests.http_server import serving
from tests.test_nginx import CONFIGURATION, needs_nginx, proxy
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, needs_nginx]

NOW = "/sales/tonight/now.json"
SALE = "/sales/tonight/"


class Shop(ThreadingHTTPServer):
    """A web server that counts requests, and echoes the cookie and language that it received."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: Counter[str] = Counter()
        self.counting = threading.Lock()
        self.more: dict[str, str] = {}
        self.lasting = 60
        """Seconds for which a proxy may keep a page."""
        self.pause = 0.0
        """Seconds before an answer: with a slow shop, other requests for the same page arrive meanwhile."""
        self.fault = ""
        """How requests fail: a status is sent, `away` closes the connection, and `hangs` sends nothing."""

    def count(self, path: str) -> int:
        with self.counting:
            self.asked[path] += 1
            return self.asked[path]


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Shop

    def do_GET(self) -> None:
        match self.server.fault:
            case "away":
                self.close_connection = True
                return
            case "hangs":
                threading.Event().wait()
            case status if status:
                self.send_response(int(status))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        number = self.server.count(self.path)
        time.sleep(self.server.pause)
        sent = {name: self.headers.get(name, "") for name in ("Cookie", "Authorization", "Accept-Language")}
        body = f"{number} {sent}".encode()
        kept = {NOW: "public, s-maxage=1", "/orders/": "private"}.get(
            self.path, f"public, s-maxage={self.server.lasting}"
        )
        self.send_response(200)
        for name, value in {"Cache-Control": kept, "Vary": "Accept-Language, Cookie", **self.server.more}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def cached(folder: Path, configuration: str = CONFIGURATION) -> Iterator[tuple[Shop, int]]:
    """Run a shop behind nginx, which keeps its cache in the folder. Yield the shop and the port of nginx."""
    folder.mkdir(exist_ok=True)
    server = Shop()
    with serving(server), proxy(folder, server.server_port, configuration) as port:
        yield server, port


def respond(port: int, path: str, **headers: str) -> tuple[int, str, str]:
    """Send a request. Return the status, the content type and the body of the response."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()


def ask(port: int, path: str, **headers: str) -> str:
    status, _, body = respond(port, path, **headers)
    assert status == 200
    return body


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "control"])
def test_many_who_ask_at_once_cost_the_shop_one_request(tmp_path: Path, locked: bool) -> None:
    configuration = CONFIGURATION if locked else replaced(CONFIGURATION, "proxy_cache_lock on;", "")
    with cached(tmp_path, configuration) as (server, port), ThreadPoolExecutor(20) as people:
        server.pause = 0.5
        assert len({*people.map(partial(ask, port), [SALE] * 20)}) == server.asked[SALE]
    assert (server.asked[SALE] == 1) is locked


shown = partial(respond, Accept="text/html,*/*;q=0.8", Accept_Language="zh-CN")


@pytest.mark.parametrize(
    ("fault", "stale"),
    [*((fault, True) for fault in ("away", "hangs", "502", "503", "504")), pytest.param("away", False, id="control")],
)
def test_kept_pages_are_shown_while_the_web_server_restarts(tmp_path: Path, fault: str, stale: bool) -> None:
    """nginx shows cached pages and files while the web server fails. It shows no cached figures: they are too old.

    Negative control: with `updating` alone, nginx refuses the pages, too.
    """
    configuration = replaced(CONFIGURATION, "proxy_read_timeout 25s", "proxy_read_timeout 1s")
    # Each worker of nginx keeps the time at which it woke. Of two workers, one may have woken earlier, and so still
    # consider a page fresh after the other one has refused the figures.
    configuration = replaced(configuration, "worker_processes auto", "worker_processes 1")
    if not stale:
        configuration = re.sub(r"(proxy_cache_use_stale updating) error .*;", r"\1;", configuration)
    pages = (SALE, "/sales/", "/static/shop/base.css")
    with cached(tmp_path, configuration) as (server, port):
        server.lasting = 1
        kept = {path: shown(port, path) for path in (*pages, NOW)}
        assert {status for status, _, _ in kept.values()} == {200}
        server.fault = fault
        # The figures were kept last: once they are out of date, the pages are, too.
        wait_for(lambda: shown(port, NOW)[0] != 200, "the kept figures to be out of date")
        for path in pages:
            assert (shown(port, path) == kept[path]) is stale, path
        if fault in ("away", "hangs"):
            assert shown(port, NOW)[:2] == (503, "application/problem+json")
            assert shown(port, "/sales/another/") == (503, "text/html; charset=utf-8", door.REFUSALS[503].decode())


def test_a_public_page_is_asked_for_without_its_visitor(tmp_path: Path) -> None:
    """Negative control: if nginx forwards cookies, the cache gives one visitor's page to another."""
    mine = {"Cookie": "sessionid=mine; csrftoken=mine", "Authorization": "Bearer mine"}
    with cached(tmp_path) as (server, port):
        for path in (SALE, "/sales/", "/static/shop/base.css", NOW):
            assert "mine" not in ask(port, f"{path}?made-up", **mine), path
            assert server.asked[path] == 1, "the query is not sent along"
        assert ask(port, SALE) == ask(port, SALE, Cookie="sessionid=of-another")
        assert server.asked[SALE] == 1
    with cached(tmp_path / "control", replaced(CONFIGURATION, 'proxy_set_header Cookie "";', "")) as (_, port):
        ask(port, SALE, Cookie="sessionid=mine")
        assert "mine" in ask(port, SALE, Cookie="sessionid=of-another")


def test_any_other_page_is_asked_for_each_time(tmp_path: Path) -> None:
    with cached(tmp_path) as (server, port):
        for path in ("/orders/", "/", "/sales/tonight/buy/", "/account/token/", "/api/orders/"):
            for visitor in ("first", "second", "first"):
                assert f"sessionid={visitor}" in ask(port, path, Cookie=f"sessionid={visitor}"), path
            assert server.asked[path] == 3, path


ASKED = [
    ("", "", "en"),
    ("zh-CN,zh;q=0.9,en;q=0.8", "", "zh-hans"),
    ("en-US,en;q=0.9,zh;q=0.8", "", "en"),
    ("de-DE,de;q=0.9,zh;q=0.5", "", "zh-hans"),
    ("fr", "", "en"),
    ("zh-CN", "django_language=en", "en"),
    ("en", "sessionid=mine; django_language=zh-hans", "zh-hans"),
    ("en", "django_language=xx", "en"),
]
"""Accept-Language header, cookies, and the language that the visitor must get."""


def test_a_page_is_kept_in_each_language(tmp_path: Path) -> None:
    """Negative control: without the language in the cache key, visitors get pages in the wrong language."""
    with cached(tmp_path) as (server, port):
        for other in ("en", "zh-CN"):
            ask(port, SALE, Accept_Language=other)
        for accepted, cookie, language in ASKED:
            answer = ask(port, SALE, Accept_Language=accepted, Cookie=cookie)
            assert f"'Accept-Language': '{language}'" in answer, (accepted, cookie)
        assert server.asked[SALE] == 2
    mixed = replaced(CONFIGURATION, "$host$uri $cached_language", "$host$uri")
    with cached(tmp_path / "control", mixed) as (_, port):
        ask(port, SALE, Accept_Language="en")
        assert "zh-hans" not in ask(port, SALE, Accept_Language="zh-CN")


COOKIE, CSS = {"Set-Cookie": "sessionid=new"}, "/static/shop/base.css"
HOSTS = [{"Host": host} for host in ("shop.example", "shop.example:1", "SHOP.example:2")]
LANGUAGES = [{"Accept_Language": language} for language in ("en", "zh-CN")]


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
@pytest.mark.parametrize(
    ("rule", "without", "path", "visitors", "asked", "asked_without"),
    [
        pytest.param("headers Vary;", "headers Vary Set-Cookie;", SALE, [{}] * 2, 2, 1, id="with a cookie, not kept"),
        # Otherwise, made-up ports could fill the cache or flood the web servers.
        pytest.param("://$host$uri", "://$http_host$uri", SALE, HOSTS, 1, 3, id="of each port, kept once"),
        pytest.param("t$uri $cached_language", "t$uri $page_language", CSS, LANGUAGES, 1, 2, id="no language, once"),
    ],
)
def test_what_is_kept(
    tmp_path: Path, rule: str, without: str, path: str, visitors: Any, asked: int, asked_without: int, guarded: bool
) -> None:
    with cached(tmp_path, CONFIGURATION if guarded else replaced(CONFIGURATION, rule, without)) as (server, port):
        server.more = COOKIE if rule == "headers Vary;" else {}
        for headers in visitors:
            ask(port, path, **headers)
    assert server.asked[path] == (asked if guarded else asked_without)
