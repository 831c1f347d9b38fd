"""The home page, the header of all pages, error pages, pages of problem types, and choosing a language."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test import Client
from django.utils import translation
from redis import Redis

from shop.api.problems import PROBLEMS
from shop.models import Product, Sale
from shop.pages import home
from shop.runtime.csp import HEADER
from shop.sales import lifecycle
from tests.factories import on_sale, slow
from tests.shop.conftest import assert_problem, raising

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]

CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9"}
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture
def visitor() -> Client:
    return Client(raise_request_exception=False)


def text(response: Any) -> str:
    return unescape(response.content.decode())


def heading(response: Any) -> str:
    found = re.search("<h1>(.*?)</h1>", text(response))
    assert found
    return found[1]


# The home page


def test_the_first_page_has_a_door_for_each_reader(visitor: Client) -> None:
    page = visitor.get("/")
    doors = text(page).partition('class="doors"')[2]
    assert re.findall('href="([^"]+)"', doors) == ["/sales/", "/admin/", "/lab/", "/api/docs/"]
    assert "featured" not in text(page), "there is no sale"
    assert page.cookies == {}
    icon = visitor.get("/favicon.ico")
    assert (icon.status_code, icon.headers["Location"]) == (302, "/static/shop/icon.svg")
    assert (visitor.get("/language/fr/").status_code, visitor.cookies) == (404, {}), "an unknown language"


@pytest.mark.usefixtures("lab_disabled")
@pytest.mark.parametrize("repository", ["", "https://git.example/shop"])
def test_without_the_lab_no_page_leads_there(visitor: Client, settings: Any, repository: str) -> None:
    settings.REPOSITORY_URL = repository
    page = text(visitor.get("/"))
    lessons = [f"{repository}/blob/main/docs/teaching.md"] if repository else []
    doors = page.partition('class="doors"')[2]
    assert re.findall('href="([^"]+)"', doors) == ["/sales/", "/admin/", *lessons, "/api/docs/"]
    assert "/lab/" not in page + text(visitor.get("/sales/"))
    off = visitor.get("/lab/", headers={"Accept": BROWSER})
    assert (off.status_code, "LAB_ENABLED=1" in text(off)) == (404, True)


@pytest.mark.parametrize("path", ["/", "/sales/", *slow("/lab/"), "/nothing/", "/api/problems/sold-out/"])
def test_every_page_leads_to_shop_lab_api_and_admin(visitor: Client, path: str) -> None:
    head = text(visitor.get(path, headers={"Accept": BROWSER})).partition('<header class="top">')[2]
    links = re.findall('href="([^"]+)"', head.partition("</header>")[0])
    assert [link for link in ("/", "/sales/", "/orders/", "/lab/", "/api/docs/", "/admin/") if link not in links] == []
    assert [link.partition("?")[0] for link in links if "?next=" in link] == ["/language/en/", "/language/zh-hans/"]


@pytest.mark.parametrize("address", ["", "https://git.example/shop"])
@pytest.mark.parametrize("path", ["/", "/nothing/"])
def test_the_head_leads_to_the_repository_of_the_setting(
    visitor: Client, settings: Any, path: str, address: str
) -> None:
    settings.REPOSITORY_URL = address
    page = text(visitor.get(path, headers={"Accept": BROWSER}))
    assert (f'<a href="{address}">Source code</a>' in page) is bool(address)
    assert ("Source code" in page) is bool(address)


def test_the_first_page_shows_the_open_sale_and_then_the_next_one(visitor: Client) -> None:
    coming = on_sale({"a": 1}, opens=timedelta(hours=1), closes=timedelta(hours=2))
    assert "Opens <time" in text(visitor.get("/"))
    open_now = on_sale({"b": 1, "c": 1})
    Product.objects.filter(sku="c").update(picture="/static/shop/products/lamp.svg")
    page = text(visitor.get("/"))
    assert "Open now" in page
    assert f'href="/sales/{Sale.objects.get(pk=open_now.sale).slug}/"' in page
    assert 'src="/static/shop/products/lamp.svg"' in page, "the product with a picture is shown"
    Sale.objects.filter(pk=open_now.sale).update(
        closes_at=Sale.objects.get(pk=open_now.sale).opens_at + timedelta(1e-6)
    )
    assert f'href="/sales/{Sale.objects.get(pk=coming.sale).slug}/"' in text(visitor.get("/"))


@pytest.mark.parametrize(
    ("units", "paused", "words"), [(1, False, "Open now"), (0, False, "Sold out"), (1, True, "Paused")]
)
def test_the_first_page_says_whether_the_sale_sells(visitor: Client, units: int, paused: bool, words: str) -> None:
    offer = on_sale({"a": units})
    if paused:
        lifecycle.pause(offer.sale)
    shown = {language: text(visitor.get("/", headers={"Accept-Language": language})) for language in ("en", "zh-hans")}
    with translation.override("zh-hans"):
        expected = {"en": words, "zh-hans": translation.gettext(words)}
    for language, page in shown.items():
        assert re.search('<p class="state">(.*?)</p>', page)[1] == expected[language]  # type: ignore[index]


def test_pictures_may_come_from_the_origins_of_the_setting(visitor: Client, settings: Any) -> None:
    settings.PICTURE_ORIGINS = ["https://pictures.example", "https://more.example:8443"]
    policy = visitor.get("/").headers[HEADER].split("; ")
    assert "img-src 'self' https://pictures.example https://more.example:8443 data:" in policy
    assert "script-src 'self'" in policy


# Languages


@pytest.mark.parametrize(
    ("back", "leads_to"),
    [
        ("/sales/?a=1&b=2", "/sales/?a=1&b=2"),
        ("", "/"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("javascript:alert(1)", "/"),
    ],
)
def test_a_language_is_remembered_and_leads_back_to_the_page(visitor: Client, back: str, leads_to: str) -> None:
    chosen = visitor.get("/language/zh-hans/", {"next": back})
    assert (chosen.status_code, chosen.headers["Location"]) == (302, leads_to)
    assert visitor.get("/").headers["Content-Language"] == "zh-hans"
    assert visitor.get("/", headers={"Accept-Language": "en"}).headers["Content-Language"] == "zh-hans"


# Errors


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "title", "said"),
    [
        ("get", "/nothing/", {}, 404, "找不到", "/nothing/ 处没有内容。"),
        ("get", "/sales", {}, 404, "找不到", "末尾加一个斜杠：/sales/"),
        ("get", "/lab/x/", {"Accept": BROWSER}, 404, "找不到", "/lab/x/"),
        ("get", "/", {"Host": "evil.example"}, 400, "未知的主机名", "evil.example"),
        ("post", "/admin/login/", {}, 403, "没有权限", "表单已过期"),
    ],
)
def test_an_error_is_a_page_in_the_readers_language(
    method: str, path: str, headers: dict[str, str], status: int, title: str, said: str
) -> None:
    visitor = Client(enforce_csrf_checks=True, raise_request_exception=False)
    response = getattr(visitor, method)(path, headers={**CHINESE, **headers})
    assert (response.status_code, heading(response)) == (status, title)
    assert said in text(response)
    assert response.headers["Content-Language"] == "zh-hans"
    assert "shop/base.css" in text(response)


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        *[("/nothing/", f"application/{kind}") for kind in ("json", "problem+json", "json, text/plain, */*")],
        *[("/api/nothing/", BROWSER), ("/lab/nothing/", "*/*")],
    ],
)
def test_a_program_and_any_reader_of_an_api_get_a_document(visitor: Client, path: str, accept: str) -> None:
    found = visitor.get(path, headers={**CHINESE, "Accept": accept})
    assert assert_problem(found, 404, "not-found")["detail"] == f"There is nothing at {path}."


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_a_bug_is_a_page_that_needs_no_database(
    visitor: Client, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setattr(home, "render", raising(RuntimeError("a bug")))
    on_sale({"a": 1})
    visitor.force_login(User.objects.create_user("someone"))
    asked: list[str] = []
    with connection.execute_wrapper(lambda execute, sql, *rest: (asked.append(sql), execute(sql, *rest))[1]):
        failed = visitor.get("/", headers={"Accept-Language": language})
    assert (failed.status_code, heading(failed)) == (500, "Internal error" if language == "en" else "内部错误")
    assert [sql for sql in asked if not re.search(r"FROM .(shop|inventory)_", sql)] == [], (
        "only the first page has asked"
    )
    document = visitor.get("/", headers={"Accept": "application/json"})
    assert assert_problem(document, 500, "internal")["detail"] == PROBLEMS["internal"].advice


def test_without_the_database_a_page_says_so(visitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "Now", raising(OperationalError("connection refused")))
    away = visitor.get("/", headers=CHINESE)
    assert (away.status_code, away.headers["Retry-After"], heading(away)) == (503, "2", "暂时不可用")


# Types of problems


def test_a_browser_is_shown_what_a_problem_means(visitor: Client, subtests: pytest.Subtests) -> None:
    for slug, problem in PROBLEMS.items():
        with subtests.test(slug):
            page = visitor.get(problem.type, headers={"Accept": BROWSER})
            assert (page.status_code, heading(page)) == (200, problem.title)
            assert problem.advice.split("`")[0] in text(page)
            assert "`" not in text(page)
            chinese = visitor.get(problem.type, headers={"Accept": BROWSER, **CHINESE})
            assert re.search("[\u4e00-\u9fff]", heading(chinese))


@pytest.mark.parametrize("accept", ["*/*", "application/json"])
def test_a_program_reads_it_as_json(visitor: Client, accept: str) -> None:
    found = visitor.get("/api/problems/sold-out/", headers={"Accept": accept, **CHINESE})
    assert json.loads(found.content)["title"] == "Sold out"
    assert "Accept" in found.headers["Vary"]
    assert "Content-Language" not in found.headers


def test_an_unknown_type_and_another_method_are_refused(visitor: Client, redis: Redis) -> None:
    for accept in ("*/*", BROWSER):
        assert_problem(visitor.get("/api/problems/none/", headers={"Accept": accept}), 404, "not-found")
        assert_problem(visitor.post("/api/problems/sold-out/", headers={"Accept": accept}), 405, "method-not-allowed")
