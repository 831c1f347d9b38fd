"""Every address of the admin, with every method and role: no error, no change without permission, and a title."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import unescape
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from redis import Redis

from inventory.models import StockItem
from shop.models import Product, Sale
from shop.overview.health import PROBE
from tests.factories import new_customer, on_sale
from tests.shop.busy_shop import METHODS, BusyShop
from tests.shop.conftest import buy, logged_in, raising
from tests.shop.test_admin import ORDERS, PAYMENTS, REFUNDS, SALES, STOCK, get, text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

FORM = {"post": "yes", "name": "forged", "units": "1000", "kind": "delivered", "why": "x", "sku": "forged",
        "state": "paid", "username": "forged", "password1": "forged-2026", "password2": "forged-2026",
        "usable_password": "true", "is_superuser": "on", "is_active": "on", "is_staff": "on"}  # fmt: skip
LOG_IN = "/admin/login/?next"
OWN = {"login", "logout", "jsi18n", "password_change", "password_change_done"}
"""Addresses that need no permission: they concern only the caller's own account."""


@pytest.fixture
def world(redis: Redis) -> BusyShop:
    return BusyShop()


@pytest.fixture
def posts_unrendered(methods: Sequence[str], request: pytest.FixtureRequest) -> None:
    if "GET" not in methods:
        request.getfixturevalue("unrendered")


def anonymous() -> Client:
    return Client(raise_request_exception=False)


def log_in(user: int) -> Client:
    return logged_in(user, raise_request_exception=False)


def operator(*kinds: str) -> Client:
    """Return a client of a staff account with all permissions of these kinds, for example `view`."""
    user = User.objects.create_user(f"staff {uuid4()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__regex=f"^({'|'.join(kinds)})_") if kinds else [])
    return log_in(user.pk)


def superuser() -> Client:
    return log_in(User.objects.create_superuser(f"super {uuid4()}").pk)


def contents() -> dict[str, Any]:
    """Return the rows of all tables that the admin can change, without sessions and last log-ins."""
    rows: dict[str, Any] = {}
    for model in apps.get_models(include_auto_created=True):
        if not issubclass(model, AbstractBaseSession):
            fields = [field.attname for field in model._meta.concrete_fields if field.name != "last_login"]
            rows[model._meta.label] = sorted(map(repr, model._default_manager.values_list(*fields)))
    return rows


def redis_contents(redis: Redis) -> dict[bytes, Any]:
    # The overview writes one key to learn whether Redis takes writes.
    return {key: redis.dump(key) for key in redis.scan_iter() if key != PROBE.encode()}


def ask(client: Client, method: str, path: str) -> Any:
    data: Any = FORM if method == "POST" else b""
    return client.post(path, data) if method == "POST" else client.generic(method, path, data)


NOBODY: dict[str, Callable[[], Client]] = {"anonymous": anonymous, "customer": lambda: log_in(new_customer())}
READERS: dict[str, Callable[[], Client]] = {"without permissions": operator, "may view": lambda: operator("view")}
WRITERS: dict[str, Callable[[], Client]] = {
    "may change": lambda: operator("view", "change"),
    "may change unseen": lambda: operator("change"),
    "may delete": lambda: operator("view", "delete"),
    "may add": lambda: operator("add"),
    "may everything": superuser,
}


with_methods = pytest.mark.parametrize(
    "methods",
    [pytest.param(("POST",), id="POST"), pytest.param(METHODS, id="all", marks=pytest.mark.slow)],
)


@with_methods
@pytest.mark.usefixtures("posts_unrendered")
def test_a_stranger_is_sent_to_the_login(world: BusyShop, redis: Redis, methods: Sequence[str]) -> None:
    clients = {role: log_in() for role, log_in in NOBODY.items()}
    before = contents(), redis_contents(redis)
    let_in = []
    for role, client in clients.items():
        for name, method, path in world.requests(methods):
            answer = ask(client, method, path) if name not in OWN else None
            if answer and (answer.status_code, answer.headers.get("Location", "").partition("=")[0]) != (302, LOG_IN):
                let_in.append((role, method, path, answer.status_code))
    assert let_in == []
    assert (contents(), redis_contents(redis)) == before


@with_methods
@pytest.mark.usefixtures("posts_unrendered")
def test_a_role_that_may_not_change_anything_changes_nothing(
    world: BusyShop, redis: Redis, methods: Sequence[str]
) -> None:
    clients = {role: log_in() for role, log_in in READERS.items()}
    before = contents(), redis_contents(redis)
    for role, client in clients.items():
        asked = [each for each in world.requests(methods) if each[0] not in OWN]
        answers = [(ask(client, method, path).status_code, name, method, path) for name, method, path in asked]
        assert [answer for answer in answers if answer[0] >= 500] == []
        shown = {name for status, name, method, _ in answers if status == 200 and method in ("GET", "POST")}
        assert (shown == {"index"}) is (role == "without permissions"), shown
    assert (contents(), redis_contents(redis)) == before


@pytest.mark.slow
@pytest.mark.parametrize("role", WRITERS)
def test_no_address_of_the_admin_fails(world: BusyShop, role: str) -> None:
    client, failed = WRITERS[role](), []
    for name, method, path in world.requests():
        if name not in OWN and ask(client, method, path).status_code >= 500:
            failed.append((method, path))
    assert failed == []
    assert client.get("/admin/").status_code == 200, "a form has changed the account of the caller"


ACTIONS = {
    "order": {"cancel", "refund_orders"},
    "refund": {"refund"},
    "unmatchedreport": {"settle"},
    "sale": {"preheat", "close", "pause", "resume"},
    "user": {"sign_out"},
}


def actions() -> Iterator[tuple[str, str, str]]:
    """Yield each action of the admin: the address of its list, its model, and its name."""
    for model, its_admin in admin.site._registry.items():
        names = {action if isinstance(action, str) else action.__name__ for action in its_admin.actions}
        assert names == ACTIONS.get(str(model._meta.model_name), set()), model
        for name in sorted({*names, *dict(admin.site.actions)}):
            yield f"/admin/{model._meta.app_label}/{model._meta.model_name}/", str(model._meta.model_name), name


@pytest.mark.usefixtures("unrendered")
def test_an_action_without_its_permission_does_nothing(world: BusyShop, redis: Redis) -> None:
    clients = [log_in() for log_in in (*NOBODY.values(), *READERS.values())]
    Sale.objects.update(preheated_at=None)
    before = contents(), redis_contents(redis)
    for client in clients:
        for path, model, name in actions():
            form = {**FORM, "action": name, "_selected_action": world.ids[model], "index": "0", "select_across": "0"}
            assert client.post(path, form).status_code in (200, 302, 403), (path, name)
    assert (contents(), redis_contents(redis)) == before


DONE = [
    ("order", "cancel", "change_order", "Order"),
    ("refund", "refund", "change_refund", "Refund"),
    ("unmatchedreport", "settle", "change_unmatchedreport", "UnmatchedReport"),
    ("sale", "pause", "pause_sale", "Sale"),
    ("sale", "close", "change_sale", "Sale"),
    ("product", "delete_selected", "delete_product", "Product"),
]


@pytest.mark.usefixtures("unrendered")
def test_the_same_action_with_its_permission_does_it(world: BusyShop) -> None:
    """Negative control: with the permission, the same form changes its table, so the form is complete."""
    world.ids["product"] = str(Product.objects.create(sku="b", name="B").pk)
    for model, name, permission, table in DONE:
        user = User.objects.create_user(name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=[f"view_{model}", permission]))
        client, before = log_in(user.pk), contents()
        form = {"post": "yes", "action": name, "_selected_action": world.ids[model], "index": "0", "why": "x"}
        assert client.post(f"/admin/shop/{model}/", {**form, "select_across": "0"}).status_code == 302
        after = contents()
        assert {table for table in after if after[table] != before[table]} >= {f"shop.{table}"}, name


def test_an_action_on_a_malformed_id_is_refused_with_a_reason(world: BusyShop, redis: Redis) -> None:
    client, failed = superuser(), []
    before = contents()
    for path, model, name in actions():
        # Objects of all other models are never deleted.
        if name == "delete_selected" and model not in {"product", "sale", "user", "group"}:
            continue
        for wrong in ("", "1" if model == "order" else UNKNOWN_ORDER):
            for more in ({"index": "0"}, {"post": "yes"}):
                selected = [world.ids[model], wrong]
                answer = client.post(path, {"action": name, "_selected_action": selected, **more})
                if answer.status_code != 400 or "is not an id of" not in answer.text:
                    failed.append((path, name, wrong, answer.status_code))
    assert failed == []
    assert contents() == before


UNKNOWN_ORDER = "0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e"
LISTS = [f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in admin.site._registry]
SUGGEST = "/admin/autocomplete/?app_label=shop&model_name=saleitem&field_name=product"


def test_nul_is_refused_wherever_it_is_sent(db: None) -> None:
    client, nul = superuser(), "a%00b"
    asked = [f"/admin/shop/order/?state={nul}", f"/admin/shop/payment/?outcome={nul}", f"/admin/?{nul}=1"]
    asked += [f"/admin/inventory/stockmovement/?{name}={nul}" for name in ("item", "kind", "q", "p", "_to_field")]
    asked += [f"{STOCK}{nul}/{page}/" for page in ("change", "delete", "history")]
    asked += [f"{SUGGEST}&term={nul}", f"/admin/r/{ContentType.objects.get_for_model(StockItem).pk}/{nul}/"]
    for path in asked:
        answer = client.get(path)
        assert (answer.status_code, "NUL" in answer.text) == (400, True), path
        assert client.post(path).status_code == 400, path
    # The same address without NUL works.
    assert client.get("/admin/shop/order/?state=paid").status_code == 200


def test_nul_in_a_form_or_a_quoted_cookie_is_refused(db: None) -> None:
    client = superuser()
    for name in ("_selected_action", "action", "sku", "a\0b"):
        answer = client.post("/admin/shop/product/", {"action": "delete_selected", "index": "0", name: "\0"})
        assert (answer.status_code, "NUL" in answer.text) == (400, True), name
    for cookie, status in (('sessionid="abcdefgh\\000"', 400), ('sessionid="abcdefgh"', 302)):
        assert anonymous().get("/admin/", headers={"cookie": cookie}).status_code == status


@pytest.mark.usefixtures("unrendered")
def test_an_empty_field_to_look_in_is_the_id(world: BusyShop) -> None:
    client, failed = superuser(), []
    for path in LISTS:
        mine = world.ids[path.split("/")[3]]
        for pk, status in (("x", 302), ("0", 302), ("9" * 30, 302), (mine, 200)):
            answer = client.get(f"{path}{pk}/change/?_to_field=")
            if answer.status_code != status:
                failed.append((path, pk, answer.status_code))
    assert failed == []


def test_a_lookup_that_no_page_uses_is_refused(db: None) -> None:
    client = superuser()
    queries = {"_to_field=x": "x cannot be referenced", "id__regex=(": "id__regex not allowed"}
    queries |= {f"{name}=x": f"{name} not allowed" for name in ("pk__range", "id__in", "id__year", "id__nonsense")}
    for path in LISTS:
        for query, said in queries.items():
            answer = client.get(f"{path}?{query}")
            assert (answer.status_code, said in answer.text) == (400, True), (path, query)


@pytest.mark.usefixtures("unrendered")
def test_suggestions_for_any_field_are_no_error(world: BusyShop) -> None:
    client, answers = superuser(), {}
    for model in admin.site._registry:
        for field in model._meta.get_fields():
            names = f"app_label={model._meta.app_label}&model_name={model._meta.model_name}&field_name={field.name}"
            answers[str(field)] = client.get(f"/admin/autocomplete/?{names}&page=x").status_code
    assert set(answers.values()) == {403, 404}
    assert client.get(SUGGEST).status_code == 200


def test_a_fault_of_our_own_is_not_hidden(world: BusyShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shop.admin.orders.cancel_batch", raising(ValueError("ours")))
    form = {"action": "cancel", "_selected_action": world.ids["order"], "index": "0", "why": "x"}
    assert superuser().post("/admin/shop/order/", form).status_code == 500


def test_the_search_that_no_page_offers_is_off() -> None:
    """unfold's search is off. No page offers it, and it fails for a malformed page number or without Redis."""
    assert superuser().get("/admin/search/?s=sale&page=x").status_code == 404


def test_a_sale_is_locked_by_the_form_that_changes_it_alone(world: BusyShop) -> None:
    page = f"/admin/shop/sale/{world.ids['sale']}"

    def locks() -> list[str]:
        return [each["sql"] for each in queries if re.search(r'FROM "shop_sale".* FOR NO KEY UPDATE', each["sql"])]

    with CaptureQueriesContext(connection) as queries:
        assert superuser().get(f"{page}/change/").status_code == 200
        assert superuser().post(f"{page}/history/").status_code == 200
        assert operator("view").post(f"{page}/change/", {}).status_code == 403
        assert not locks()
        assert operator("view", "change").post(f"{page}/change/", {}).status_code == 200
        assert locks()


# Every page: it opens, its title names it, its dates have one format, and an empty list says so

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


def test_every_page_has_a_title_and_dates_of_its_own_and_loads_nothing_foreign(world: BusyShop) -> None:
    wrong: list[tuple[str, str]] = []
    titles, names, dated = {}, set(), 0
    for name, path, page in world.pages():
        names.add(name)
        titles[path] = title_of(page)
        if complaint := wrong_with(titles[path]):
            wrong.append((path, complaint))
        model = next((each for each in world.ids if f"/{each}/" in path), "")
        if model and (its_name := known_by(world, model, name)) not in titles[path]:
            wrong.append((path, f"“{titles[path]}” does not name {its_name}"))
        wrong += [(path, found) for found in FOREIGN.findall(seen(page))]
        loaded = LOADED.findall(page)
        assert loaded, path
        wrong += [(path, address) for address in loaded if not address.startswith(("/", "data:"))]
        dated += bool(OURS.search(seen(page)))
    assert wrong == []
    same = [title for title in titles.values() if [*titles.values()].count(title) > 1]
    assert set(same) <= {title_of(get(world.client, "/admin/password_change/"))}, "two pages have the same title"
    assert dated >= 15
    missing = {name for name, _, _ in world.requests(("GET",))} - names - ANSWERS.keys() - {None}
    assert {str(name).partition("_")[2] for name in missing} == NO_PAGE


def known_by(world: BusyShop, model: str, name: str) -> str:
    """Return what has to be in the title of a page: the name of the list, of the form, or of the row."""
    opts = next(each._meta for each in admin.site._registry if each._meta.model_name == model)
    if name.endswith("_changelist"):
        return str(opts.verbose_name_plural).capitalize()
    if name.endswith("_add"):
        return f"Add {opts.verbose_name}"
    if name == "shop_dead_letters":
        return "Dead letters"
    return str(opts.model._default_manager.get(pk=world.ids[model]))


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


def test_a_page_is_the_same_in_every_language(world: BusyShop) -> None:
    """The admin is in English only. The language of the browser changes nothing, so no page is half translated."""
    token = re.compile(r'name="csrfmiddlewaretoken" value="[^"]*"')
    for path in (ORDERS, f"{SALES}{world.ids['sale']}/change/", f"{SALES}{world.ids['sale']}/pause/"):
        pages = [world.client.get(path, headers={"accept-language": language}).text for language in ("en", "zh-hans")]
        assert token.sub("", pages[0]).splitlines() == token.sub("", pages[1]).splitlines()
        assert '<html lang="en"' in pages[0]


def test_an_empty_history_says_what_would_be_in_it(world: BusyShop) -> None:
    for path in (f"{PAYMENTS}{world.ids['payment']}/", f"/admin/auth/group/{world.ids['group']}/"):
        page = get(world.client, f"{path}history/")
        assert "No operator has changed it yet." in text(page)
        assert "probably" not in page
    assert "No operator has changed it yet." not in get(world.client, f"{SALES}{world.ids['sale']}/history/")


def test_errors_have_pages_of_the_shop(
    world: BusyShop, staff: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def assert_own(response: Any, status: int, said: str) -> None:
        assert (response.status_code, said in text(response.text)) == (status, True), text(response.text)
        assert "· Last Unit</title>" in response.text
        assert 'href="/admin/"' in response.text, "it leads back to the overview"

    for path in ("/admin/nothing/", "/admin/shop/nothing/"):
        assert_own(world.client.get(path), 404, f"There is nothing at {path}.")
    assert_own(staff("view_sale").get(ORDERS), 403, "Use an account that has this permission.")
    assert_own(world.client.get(f"{ORDERS}?_to_field=x"), 400, "x cannot be referenced")
    monkeypatch.setattr("shop.admin.orders.OrderAdmin.get_queryset", raising(ValueError("ours")))
    world.client.raise_request_exception = False
    assert_own(world.client.get(ORDERS), 500, "The shop has failed at this page")


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
