"""The log as text and as JSON: each line names its request and its order. A client's mistake writes no line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings as django_settings
from django.test import Client

from shop import log_context
from shop.runtime import tasks
from shop.runtime.logs import JsonFormatter, TextFormatter
from tests.shop.conftest import raising

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(autouse=True)
def _no_request() -> Iterator[None]:
    log_context.begin_request("")
    yield
    log_context.begin_request("")


def record_of(message: str, *args: Any, error: bool = False, **extra: Any) -> logging.LogRecord:
    try:
        raise ValueError("a\nb")
    except ValueError:
        info = sys.exc_info() if error else None
    return logging.getLogger("shop").makeRecord("shop", logging.WARNING, "file", 1, message, args, info, extra=extra)


def line_of(message: str, *args: Any, **options: Any) -> dict[str, Any]:
    """Return the JSON line of a log record."""
    text = JsonFormatter().format(record_of(message, *args, **options))
    assert "\n" not in text
    return json.loads(text)


def test_a_line_says_when_who_and_what() -> None:
    """`test_text_names_the_order_and_the_trace_that_are_known` checks which order and which trace are named."""
    placed, said = uuid4(), {"level": "WARNING", "logger": "shop", "message": "3 units of Säule"}
    for known in ({}, {"order": str(placed), "trace": TRACE}):
        if known:
            log_context.begin_request(TRACE)
            log_context.order.set(placed)
        line = line_of("%s units of %s", 3, "Säule")
        assert datetime.fromisoformat(line.pop("time")).utcoffset() is not None
        assert isinstance(line.pop("process"), int)
        assert line == {**said, **known}


def test_an_exception_and_half_a_character_stay_in_one_line() -> None:
    line = line_of("\ud800 failed", error=True)
    assert line["message"] == "\ud800 failed"
    assert line["exception"].endswith("ValueError: a\nb")


def text_of(message: str, *args: Any, **options: Any) -> str:
    return TextFormatter().format(record_of(message, *args, **options))


def test_text_names_the_order_and_the_trace_that_are_known() -> None:
    placed, named = uuid4(), uuid4()
    assert text_of("%s units of %s", 3, "Säule") == "3 units of Säule"
    log_context.begin_request(TRACE)
    assert text_of("here") == f"here trace={TRACE}"
    first, *rest = text_of("failed", error=True).splitlines()
    assert (first, rest[0], rest[-1]) == (f"failed trace={TRACE}", "Traceback (most recent call last):", "b")
    assert text_of("elsewhere", trace="f" * 32) == f"elsewhere trace={'f' * 32}"
    log_context.order.set(placed)
    assert text_of("in progress") == f"in progress order={placed} trace={TRACE}"
    assert text_of("Order %s is lost", named) == f"Order {named} is lost trace={TRACE}", "the order is named once"
    log_context.begin_request("")
    assert text_of("the next request") == "the next request"
    assert any(isinstance(handler.formatter, TextFormatter) for handler in logging.getLogger().handlers), "the default"


@pytest.mark.parametrize("chosen", ["text", "json"])
def test_celery_writes_its_log_in_the_chosen_format(
    chosen: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LOG_FORMAT = chosen
    logger, handler = logging.getLogger("celery of a test"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
    monkeypatch.setattr(logger, "handlers", [handler])
    for _ in range(2):  # Celery calls `format_log` for each of its two loggers, which may share a handler.
        tasks.format_log(logger=logger)
    placed = uuid4()
    log_context.order.set(placed)
    text = handler.format(record_of("saved"))
    if chosen == "text":
        assert text == f"[WARNING] saved order={placed}"
    else:
        assert json.loads(text)["order"] == str(placed)


@pytest.mark.parametrize(
    "traceparent",
    [f"00-{TRACE}-00f067aa0ba902b7", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{TRACE}-00f067aa0ba902b7-01\n", ""],
)
def test_without_a_valid_trace_there_is_a_new_one(traceparent: str) -> None:
    first, second = (log_context.trace_of(traceparent) for _ in range(2))
    assert len(first) == len(second) == 32
    assert len({first, second, TRACE}) == 3
    assert log_context.trace_of(f"00-{TRACE}-00f067aa0ba902b7-01") == TRACE, "the control"


# A client's mistake logs nothing, so that nobody can fill the log


FORM = "multipart/form-data; boundary="
MISTAKES: dict[str, Callable[[Client], Any]] = {
    "too many fields": lambda client: client.post("/admin/login/", {f"field{n}": "" for n in range(1100)}),
    "too many in the query": lambda client: client.get("/admin/?" + "a=&" * 1100),
    "too large": lambda client: client.post(
        "/admin/login/", {"a": "x" * (django_settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)}
    ),
    "no multipart": lambda client: client.post("/admin/login/", b"nonsense", content_type=FORM),
    "too many headers of a part": lambda client: client.post(
        "/admin/login/", b"--x\r\n" + b"a: b\r\n" * 1100 + b"\r\n\r\n--x--", content_type=f"{FORM}x"
    ),
    "unknown host": lambda client: client.get("/admin/login/", headers={"host": "elsewhere.example"}),
    "no host": lambda client: client.get("/admin/login/", headers={"host": "a b"}),
    "wrong encoding": lambda client: client.post(
        "/admin/login/", b"a=b", content_type="application/x-www-form-urlencoded; charset=utf-16"
    ),
    "nul": lambda client: client.get("/admin/?a=%00"),
    "no token": lambda client: Client(enforce_csrf_checks=True).post("/admin/login/", {"username": "x"}),
    "no page": lambda client: client.get("/nothing/"),
}


@pytest.mark.django_db
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_mistake_of_a_client_is_not_logged(mistake: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = MISTAKES[mistake](Client(raise_request_exception=False))
    assert 400 <= answer.status_code < 500
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("query", ["_to_field=x", "username__regex=x", "password=x"])
def test_nor_is_that_of_an_operator(query: str, admin_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    assert admin_client.get(f"/admin/auth/user/?{query}").status_code == 400
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.django_db
def test_a_fault_of_our_own_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unfold.sites.UnfoldAdminSite.each_context", raising(ValueError("ours")))
    assert Client(raise_request_exception=False).get("/admin/login/").status_code == 500
    assert "ours" in caplog.text
    assert "Traceback" in caplog.text
