"""A client's mistake logs nothing, so that nobody can fill the log. An internal error is logged in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from tests.shop.conftest import raising

pytestmark = pytest.mark.django_db
FORM = "multipart/form-data; boundary="
MISTAKES: dict[str, Callable[[Client], Any]] = {
    "too many fields": lambda client: client.post("/admin/login/", {f"field{n}": "" for n in range(1100)}),
    "too many in the query": lambda client: client.get("/admin/?" + "a=&" * 1100),
    "too large": lambda client: client.post("/admin/login/", {"a": "x" * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)}),
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


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_mistake_of_a_client_is_not_logged(mistake: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = MISTAKES[mistake](Client(raise_request_exception=False))
    assert 400 <= answer.status_code < 500
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("query", ["_to_field=x", "username__regex=x", "password=x"])
def test_nor_is_that_of_an_operator(query: str, admin_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    assert admin_client.get(f"/admin/auth/user/?{query}").status_code == 400
    assert [record.getMessage() for record in caplog.records] == []


def test_a_fault_of_our_own_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unfold.sites.UnfoldAdminSite.each_context", raising(ValueError("ours")))
    assert Client(raise_request_exception=False).get("/admin/login/").status_code == 500
    assert "ours" in caplog.text
    assert "Traceback" in caplog.text
