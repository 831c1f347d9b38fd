"""The storefront benchmark: a short run gives plausible figures, and its parts count correctly."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import MagicMock

import pytest

from loadtest import local_proxy
from loadtest.bench import storefront, storefront_measurements
from loadtest.bench.storefront_clients import is_complete
from loadtest.bench.storefront_page import CHROMIUM
from servers import ServerError
from shop.pages.sales import MODULES
from tests.http_server import serving
from tests.loadtest.conftest import bench, report_of
from tests.test_nginx import needs_nginx

STATIC = "/static/shop/"


class Answer(BaseHTTPRequestHandler):
    """Answers 304 to clients that already have the document. It closes each connection after three requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    answered = 0

    def do_GET(self) -> None:
        self.answered += 1
        known = self.headers.get("If-None-Match") == '"one"'
        self.server.seen["304" if known else "200"] += 1
        self.server.languages.add(self.headers["Accept-Language"])
        self.send_response(304 if known else 200)
        self.send_header("ETag", '"one"')
        if not known:
            self.send_header("Content-Length", "2")
        if self.answered == 3:
            self.send_header("Connection", "close")
        self.end_headers()
        if not known:
            self.wfile.write(b"{}")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.seen: Counter[str] = Counter()
        self.languages: set[str] = set()


def send(running: Server, **plan: Any) -> dict[str, Any]:
    heads = [f"GET / HTTP/1.1\r\nHost: shop.example\r\nAccept-Language: {language}\r\n" for language in ("en", "zh")]
    plan = {"requests": [(head, "") for head in heads], "connections": 2, "conditional": True, **plan}
    with serving(running) as port:
        return storefront_measurements.finish(storefront_measurements.start({"port": port, **plan}))


def test_clients_keep_to_their_rate() -> None:
    running = Server()
    load = send(running, rate=100, seconds=1)
    # A busy machine may not send the requests that are due just before the end.
    assert 1 <= sum(load["answers"].values()) <= 100
    assert load["answers"]["200"] == 2, "each connection gets the document once, and asks for changes from then on"
    assert load["answers"] == running.seen
    assert load["p99_ms"] >= load["p50_ms"] > 0


@pytest.mark.parametrize("conditional", [True, False])
def test_clients_without_a_rate_send_as_fast_as_they_are_answered(conditional: bool) -> None:
    running = Server()
    load = send(running, rate=None, seconds=0.5, conditional=conditional)
    assert load["answers"] == running.seen
    assert load["answers"]["200"] == (2 if conditional else sum(load["answers"].values()))
    assert sum(load["answers"].values()) > 2 * 3, "they connect again after a connection is closed"
    assert running.languages == {"en", "zh"}


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (b"HTTP/1.1 304 Not Modified\r\nETag: 1", False),
        (b"HTTP/1.1 304 Not Modified\r\nETag: 1\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabcd", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n", True),
    ],
)
def test_the_end_of_an_answer_is_found(answer: bytes, whole: bool) -> None:
    assert is_complete(answer) is whole


def test_without_nginx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_proxy, "find_nginx", lambda: None)
    with pytest.raises(ServerError, match="apt-get install nginx-light"):
        storefront.run(Namespace())


def test_the_goals_are_missed_by_what_misses_them() -> None:
    row = {"reached_shop_per_s": 1.0}
    report: dict[str, Any] = {
        "watching": {"cached": {"now": [row], "page": [row]}},
        "weight": {"bytes": 60_000},
        "paint": {"phone on 4G": {"with scripts": {"largest": storefront.MOST_TO_LARGEST_PAINT}}},
        "conserved": True,
    }
    assert all(storefront.goals(report).values())
    for worse in (
        {"watching": {"cached": {"now": [row, {"reached_shop_per_s": 2.1}]}}},
        {"weight": {"bytes": 60_001}},
        {"paint": {"phone on 4G": {"with scripts": {"largest": storefront.MOST_TO_LARGEST_PAINT + 1}}}},
        {"conserved": False},
    ):
        assert list(storefront.goals({**report, **worse}).values()).count(False) == 1


def test_the_lowest_and_the_highest_rate_are_compared() -> None:
    few, middle, many = (
        {"per_s": per_s, "reached_shop_per_s": reached} for per_s, reached in ((40, 0.6), (400, 9.0), (4000, 0.7))
    )
    assert storefront.compared([few, middle, many]) == (
        "With 100 times as many polls, from 40 to 4,000 a second, 0.7 instead of 0.6 requests a second reach the shop."
    )


def test_without_rates_one_and_ten_percent_of_the_highest_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def measure(shop: Any, proxy: Any, *, path: str, rate: int | None, seconds: float) -> dict[str, Any]:
        asked.append(rate)
        return {"per_s": 3000.0}

    for name in ("put_on_sale", "temporary_proxy", "log_in", "is_conserved", "look_at_page", "measure_orders"):
        monkeypatch.setattr(storefront, name, MagicMock())
    monkeypatch.setattr(storefront, "look_at_page", lambda *_: {})
    monkeypatch.setattr(storefront, "measure_watching", measure)
    storefront.measure(None, [], progress=lambda _: None, seconds=1)  # type: ignore[arg-type]
    assert asked == [None, *[None, 30, 300] * 4]
    orders = [call.kwargs["watchers"] for call in storefront.measure_orders.mock_calls if "watchers" in call.kwargs]  # type: ignore[attr-defined]
    assert orders == [None, None, 1000, 1000]


@pytest.mark.slow
@needs_nginx
def test_a_short_run(environment: dict[str, str]) -> None:
    """It includes a negative control: without nginx's cache, each poll reaches the shop."""
    done = bench(environment, "storefront", "--rates", "40", "--seconds", "1.5", "--json")
    report = report_of(done, done.returncode)
    goals = storefront.goals(report)
    in_time = goals.pop(storefront.IN_TIME, True)  # depends on what else the machine does
    assert (done.returncode, all(goals.values())) == (0 if in_time else 1, True), report
    assert report["watchers"] == {"watchers": 100_000, "interval_s": 2.0, "polls_per_s": 50_000}
    for name, documents in report["watching"].items():
        for document, rows in documents.items():
            assert [row["rate"] for row in rows] == [40, None]
            for row in rows:
                assert row["others"] == 0, (name, document, row)
                assert 0 < row["p50_ms"] <= row["p99_ms"]
                assert row["nginx_cpu_ms"] >= 0 <= row["shop_cpu_ms"]
                if name == "cached":
                    assert row["reached_shop"] <= 4, (document, row)
                else:
                    assert row["reached_shop_per_s"] == pytest.approx(row["per_s"]), (document, row)
            assert rows[1]["per_s"] > rows[0]["per_s"]
    assert [*report["orders"]] == ["without watchers", "with watchers, cached", "with watchers, not cached"]
    for name, row in report["orders"].items():
        assert row["orders"] > row["others"] == 0
        assert row["p99_ms"] >= row["p50_ms"] > 0
        assert (row["polls_per_s"] > 0) is (name != "without watchers")
    files = report["weight"]["files"]
    scripts = {f"{STATIC}sale.js", *(f"/static/{name}" for name in MODULES)}
    styles = {f"{STATIC}{name}.css" for name in ("base", "pages")}
    pictures = {f"{STATIC}icon.svg", storefront_measurements.PICTURE}
    (page, now) = sorted(address for address in files if address.startswith("/sales/"))
    assert {*files} == {page, now, *scripts, *styles, *pictures}
    assert report["weight"]["bytes"] == sum(files.values())
    if CHROMIUM:
        for row in report["paint"].values():
            for paint in (row["with_scripts"], row["without_scripts"]):
                assert 0 < paint["first"] <= paint["largest"]
        slow, fast = report["paint"]["slow phone"], report["paint"]["this machine"]
        assert slow["without_scripts"]["first"] > fast["without_scripts"]["first"]
        assert storefront.IN_TIME in storefront.goals(report)
    else:
        assert "apt-get install chromium" in report["paint"]["skipped"]
