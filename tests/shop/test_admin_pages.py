"""Every page of the admin: it opens, its title names it, its dates have one format, and an empty list says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.utils import formats
from redis import Redis

from tests.factories import on_sale
from tests.shop.busy_shop import BusyShop
from tests.shop.conftest import buy, raising
from tests.shop.test_admin import ORDERS, PAYMENTS, REFUNDS, SALES, get, text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

SITE = "Last Unit"
MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
FOREIGN = re.compile(
    rf"\b{MONTH} \d{{1,2}}\b|\b\d{{1,2}} {MONTH} \d{{4}}|\b\d{{1,2}}(?::\d\d)* [ap]\.?m\b|, (?:noon|midnight)\b"
    r"|\b\d{1,2}/\d{1,2}/\d{2,4}\b|\b\d{1,2}\.\d{1,2}\.\d{4}\b|\d{4}-\d\d-\d\dT\d\d:\d\d"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d(?!:\d\d)"
)
"""Dates and times in other formats than 2026-11-27 20:30:00."""
LOADED = re.compile(r'<(?:script|link|img)[^>]* (?:src|href)="([^"]+)"')
OURS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
ANSWERS = {
    "admin_live": "JSON",
    "autocomplete": "JSON",
    "jsi18n": "a script",
    "shop_order_export": "a file",
    "login": "redirects users with a session",
    "logout": "only a form logs out",
    "search": "off",
    "view_on_site": "no model has a page on the site",
}
"""Addresses that are no pages, and why."""
READ_ONLY = {"stockmovement", "refund", "order", "payment", "unmatchedreport"}
NEVER_DELETED = {*READ_ONLY, "stockitem", "sale"}
"""Models whose rows cannot be added, and models whose rows cannot be deleted. A preheated sale cannot be deleted."""
NO_PAGE = {f"{name}_add" for name in READ_ONLY} | {f"{name}_delete" for name in NEVER_DELETED}


@pytest.fixture
def shop(redis: Redis) -> BusyShop:
    return BusyShop()


def title_of(page: str) -> str:
    (found,) = re.findall(r"<title>(.*?)</title>", page, re.DOTALL)
    return unescape(" ".join(found.split()))


def seen(page: str) -> str:
    """Return the text of a page that people see, without the values of inputs, which browsers format."""
    return text(re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL))


def wrong_with(title: str) -> str:
    """Return what is wrong with the title of a page of the admin; empty if nothing is."""
    *parts, site = title.split(" | ")
    if site != SITE or not parts or not all(part.strip() for part in parts):
        return f"“{title}” does not name the page and the site"
    if len({part.lower() for part in (*parts, site)}) <= len(parts):
        return f"“{title}” says something twice"
    if any(re.fullmatch(r"(Select|Delete|Change|View|Add|Change history:?|None|object)", part) for part in parts):
        return f"“{title}” does not say of what"
    return ""


def test_every_page_has_a_title_and_dates_of_its_own_and_loads_nothing_foreign(shop: BusyShop) -> None:
    wrong: list[tuple[str, str]] = []
    titles, names, dated = {}, set(), 0
    for name, path, page in shop.pages():
        names.add(name)
        titles[path] = title_of(page)
        if complaint := wrong_with(titles[path]):
            wrong.append((path, complaint))
        model = next((each for each in shop.ids if f"/{each}/" in path), "")
        if model and (its_name := known_by(shop, model, name)) not in titles[path]:
            wrong.append((path, f"“{titles[path]}” does not name {its_name}"))
        wrong += [(path, found) for found in FOREIGN.findall(seen(page))]
        loaded = LOADED.findall(page)
        assert loaded, path
        wrong += [(path, address) for address in loaded if not address.startswith(("/", "data:"))]
        dated += bool(OURS.search(seen(page)))
    assert wrong == []
    same = [title for title in titles.values() if [*titles.values()].count(title) > 1]
    assert set(same) <= {title_of(get(shop.client, "/admin/password_change/"))}, "two pages have the same title"
    assert dated >= 15
    missing = {name for name, _, _ in shop.requests(("GET",))} - names - ANSWERS.keys() - {None}
    assert {str(name).partition("_")[2] for name in missing} == NO_PAGE


def known_by(shop: BusyShop, model: str, name: str) -> str:
    """Return what has to be in the title of a page: the name of the list, of the form, or of the row."""
    opts = next(each._meta for each in admin.site._registry if each._meta.model_name == model)
    if name.endswith("_changelist"):
        return str(opts.verbose_name_plural).capitalize()
    if name.endswith("_add"):
        return f"Add {opts.verbose_name}"
    if name == "shop_dead_letters":
        return "Dead letters"
    return str(opts.model._default_manager.get(pk=shop.ids[model]))


TITLES = {
    "": ("Orders | Last Unit", "A | Change product | Last Unit"),
    "does not name": ("Last Unit", " | Last Unit", "Orders"),
    "twice": ("Orders | Orders | Last Unit", "Last Unit | Last Unit"),
    "of what": ("Delete | Last Unit",),
}
DATES = (
    ["Nov. 27, 2026, 8 p.m.", "Nov. 27, 2026", "27 November 2026", "8:30 p.m.", "today, noon", "11/27/2026",
     "27.11.2026", "2026-11-27T20:30:00", "2026-11-27 20:30"]
)  # fmt: skip


def test_a_wrong_title_and_a_foreign_date_are_found() -> None:
    """Negative control."""
    for complaint, titles in TITLES.items():
        for found in map(wrong_with, titles):
            assert (complaint in found, bool(found)) == (True, bool(complaint)), found
    assert [date for date in DATES if not FOREIGN.search(f"since {date}, by")] == []
    assert not FOREIGN.search("since 2026-11-27 20:30:00, may be 5 amounts")


def test_with_the_formats_of_django_the_history_has_a_foreign_date(
    shop: BusyShop, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the walk: without the formats of the shop, a page has a foreign date."""
    settings.FORMAT_MODULE_PATH = None
    formats.reset_format_cache()
    monkeypatch.setattr(formats, "_format_modules_cache", {})
    try:
        assert FOREIGN.search(seen(get(shop.client, f"{SALES}{shop.ids['sale']}/history/")))
    finally:
        settings.FORMAT_MODULE_PATH = ["shop.formats"]
        formats.reset_format_cache()


def test_a_page_is_the_same_in_every_language(shop: BusyShop) -> None:
    """The admin is in English only. The language of the browser changes nothing, so no page is half translated."""
    token = re.compile(r'name="csrfmiddlewaretoken" value="[^"]*"')
    for path in (ORDERS, f"{SALES}{shop.ids['sale']}/change/", f"{SALES}{shop.ids['sale']}/pause/"):
        pages = [shop.client.get(path, headers={"accept-language": language}).text for language in ("en", "zh-hans")]
        assert token.sub("", pages[0]).splitlines() == token.sub("", pages[1]).splitlines()
        assert '<html lang="en"' in pages[0]


def test_an_empty_history_says_what_would_be_in_it(shop: BusyShop) -> None:
    for path in (f"{PAYMENTS}{shop.ids['payment']}/", f"/admin/auth/group/{shop.ids['group']}/"):
        page = get(shop.client, f"{path}history/")
        assert "No operator has changed it yet." in text(page)
        assert "probably" not in page
    assert "No operator has changed it yet." not in get(shop.client, f"{SALES}{shop.ids['sale']}/history/")


def test_errors_have_pages_of_the_shop(
    shop: BusyShop, staff: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def assert_own(response: Any, status: int, said: str) -> None:
        assert (response.status_code, said in text(response.text)) == (status, True), text(response.text)
        assert "· Last Unit</title>" in response.text
        assert 'href="/admin/"' in response.text, "it leads back to the overview"

    for path in ("/admin/nothing/", "/admin/shop/nothing/"):
        assert_own(shop.client.get(path), 404, f"There is nothing at {path}.")
    assert_own(staff("view_sale").get(ORDERS), 403, "Use an account that has this permission.")
    assert_own(shop.client.get(f"{ORDERS}?_to_field=x"), 400, "x cannot be referenced")
    monkeypatch.setattr("shop.admin.orders.OrderAdmin.get_queryset", raising(ValueError("ours")))
    shop.client.raise_request_exception = False
    assert_own(shop.client.get(ORDERS), 500, "The shop has failed at this page")


# Lists without rows


def test_each_list_says_what_leads_to_its_first_row(admin_client: Client) -> None:
    for model, its_admin in admin.site._registry.items():
        page = get(admin_client, f"/admin/{model._meta.app_label}/{model._meta.model_name}/")
        if model is not User:  # The list of users contains the user who views it.
            assert its_admin.none_yet in text(page), model  # type: ignore[attr-defined]
        assert ("yielded" in page, "Show all" in page) == (False, False), model


def test_only_who_may_add_a_row_is_led_to_it(admin_client: Client, staff: Callable[..., Client]) -> None:
    add = 'href="/admin/shop/product/add/">Add product'
    assert add in get(admin_client, "/admin/shop/product/")
    assert add not in get(staff("view_product"), "/admin/shop/product/")
    assert "/admin/shop/refund/add" not in get(admin_client, REFUNDS)


@pytest.mark.parametrize("query", [{"q": "nobody"}, {"state": "refunded"}])
def test_a_list_without_a_match_leads_to_all_rows(admin_client: Client, query: dict[str, str]) -> None:
    buy(on_sale({"a": 3}), a=1)
    page = get(admin_client, ORDERS, **query)
    assert "No orders match the search and the filters. Show all 1" in text(page)
    assert "No orders" not in get(admin_client, ORDERS)
