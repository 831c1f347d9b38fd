"""A patient buyer: asks again with the same key, follows a queued order to its end, and takes no for an answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.faults.buyers import Burst, Wish

ORDER = "0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e"
QUEUED = (202, {"id": ORDER, "state": "queued"})
PENDING = {"id": ORDER, "state": "pending"}
HANG_UP = (0, {})

Answers = list[tuple[int, dict[str, Any]]]
Say = Callable[[Answers], tuple[int, list[tuple[str, str, str | None]]]]


def problem(status: int, name: str) -> tuple[int, dict[str, Any]]:
    return status, {"type": f"/api/problems/{name}/"}


@pytest.fixture
def say() -> Iterator[Say]:
    """Serve these answers, one a request; returns the port, and what was asked: method, path and key."""
    servers: list[ThreadingHTTPServer] = []

    def serve(answers: Answers) -> tuple[int, list[tuple[str, str, str | None]]]:
        asked: list[tuple[str, str, str | None]] = []
        coming = iter(answers)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                asked.append((self.command, self.path, self.headers["Idempotency-Key"]))
                status, said = next(coming)
                if (status, said) == HANG_UP:
                    self.close_connection = True
                    return
                body = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Location", f"/api/orders/{ORDER}/")
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_address[1], asked

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def buy(port: int, **options: float) -> Wish:
    wish = Wish(1, "mine", 1, [(1, 1)])
    with Burst(port, [wish], **options):
        pass
    return wish


def test_he_asks_with_the_same_key_until_he_has_an_order(say: Say) -> None:
    port, asked = say([problem(503, "busy"), HANG_UP, problem(409, "still-running"), (201, PENDING)])
    wish = buy(port)

    assert (wish.orders, wish.requests, wish.answered, wish.gave_up) == ({ORDER}, 4, True, False)
    assert asked == [("POST", "/api/orders/", "mine")] * 4


def test_a_shop_that_is_busy_for_too_long_puts_him_off_which_is_no_answer(say: Say) -> None:
    port, asked = say([problem(503, "unavailable"), problem(503, "busy"), (201, PENDING)])
    wish = buy(port, busy=0)

    assert (wish.put_off, wish.answered, wish.gave_up, len(asked)) == (True, False, False, 2)


@pytest.mark.parametrize("name", ["sold-out", "over-limit"])
def test_a_refusal_is_an_answer(say: Say, name: str) -> None:
    port, asked = say([problem(409, name)])
    wish = buy(port)

    assert (wish.orders, wish.refusals, wish.answered, len(asked)) == (set(), {name}, True, 1)


def test_an_internal_error_is_no_answer_that_he_puts_up_with(say: Say) -> None:
    port, asked = say([(500, {})])
    wish = buy(port)

    assert (wish.refusals, wish.answered, len(asked)) == ({"500"}, True, 1)


def test_he_looks_after_a_queued_order_until_it_has_an_outcome(say: Say) -> None:
    port, asked = say([QUEUED, (200, QUEUED[1]), problem(503, "unavailable"), HANG_UP, (200, PENDING)])
    wish = buy(port)

    assert (wish.orders, wish.queued, wish.answered) == ({ORDER}, True, True)
    assert [(method, path) for method, path, _ in asked] == [
        ("POST", "/api/orders/"),
        *[("GET", f"/api/orders/{ORDER}/")] * 4,
    ]


def test_an_order_that_stays_queued_is_no_answer(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.buyers.PATIENCE", 0.2)
    port, _ = say([QUEUED, *[(200, QUEUED[1])] * 1000])
    wish = buy(port)

    assert (wish.orders, wish.queued, wish.answered, wish.gave_up) == (set(), True, False, True)
