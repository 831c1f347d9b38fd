"""Every address of the admin, with every method and role: no error, and no change without permission."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, get_resolver
from redis import Redis

from inventory.models import StockItem, StockMovement
from shop.models import Order, Payment, Product, Refund, Sale, UnmatchedReport
from shop.orders import payments, unmatched
from shop.overview.health import PROBE
from tests.factories import new_customer, on_sale
from tests.shop.conftest import buy, raising

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "NONSENSE")
READ_AND_WRITE = {"GET", "POST"}
"""The HTTP methods for which the admin's pages behave differently."""
MODELS = {str(model._meta.model_name) for model in admin.site._registry}
FORM = {"post": "yes", "name": "forged", "units": "1000", "kind": "delivered", "why": "x", "sku": "forged",
        "state": "paid", "username": "forged", "password1": "forged-2026", "password2": "forged-2026",
        "usable_password": "true", "is_superuser": "on", "is_active": "on", "is_staff": "on"}  # fmt: skip
LOG_IN = "/admin/login/?next"
OWN = {"login", "logout", "jsi18n", "password_change", "password_change_done"}
"""Addresses that need no permission: they concern only the caller's own account."""


def every(patterns: Any, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Yield all addresses of the project with their names. Parameters are in angle brackets."""
    for pattern in patterns:
        address = prefix + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            yield address, pattern.name
        else:
            yield from every(pattern.url_patterns, address)


ADDRESSES = [(address, name) for address, name in every(get_resolver().url_patterns) if address.startswith("admin/")]


class World:
    """One object of each model, and one staff account per role."""

    def __init__(self) -> None:
        offer = on_sale({"a": 10}, strategy="lua")
        order = Order.objects.get(pk=buy(offer, a=1).order.pk)
        for reference in ("first", "second"):
            payments.receive_payment(reference, order=order.pk, amount=order.total)
        buy(offer, a=1)
        unmatched.record("{}", "no such order")
        group = Group.objects.create(name="a group")
        objects: list[Model] = [StockItem.objects.get(), StockMovement.objects.get(), Order.objects.latest("id")]
        objects += [Payment.objects.latest("pk"), Refund.objects.latest("pk"), UnmatchedReport.objects.get()]
        objects += [Product.objects.get(), Sale.objects.get(), group, User.objects.get(pk=new_customer())]
        self.ids = {each._meta.model_name: str(each.pk) for each in objects}
        assert set(self.ids) == MODELS
        assert len(ADDRESSES) > 50
        self.content_type = str(ContentType.objects.get_for_model(Sale).pk)

    def requests(self, methods: Sequence[str] = METHODS) -> Iterator[tuple[str | None, str, str]]:
        """Yield the name of an address, a method and a path.

        Each method is tried on an existing object. If `methods` has all methods, GET and POST are tried on missing
        objects, too.
        """
        # Delete last, because every other form needs its object.
        for address, name in sorted(ADDRESSES, key=lambda each: "/delete/" in each[0]):
            found = re.search("|".join(sorted(MODELS, key=len, reverse=True)), address)
            known = self.ids[found[0]] if found else self.ids["sale"]
            for method in methods:
                others = ("0", "x") if method in READ_AND_WRITE < set(methods) and "object_id" in address else ()
                for pk in (known, *others):
                    given = {"content_type_id": self.content_type, "url": "nothing/", "object_id": pk, "id": pk}
                    yield name, method, "/" + fill(address, given)


def fill(address: str, given: Mapping[str, str]) -> str:
    if "app_label" in address:
        return "admin/shop/"
    address = address.replace("(?P<url>.*)$", "<path:url>")
    if address == "admin/autocomplete/":
        address += "?app_label=shop&model_name=saleitem&field_name=product"
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: given[match[1]], address)


@pytest.fixture
def world(redis: Redis) -> World:
    return World()


@pytest.fixture
def posts_unrendered(methods: Sequence[str], request: pytest.FixtureRequest) -> None:
    if "GET" not in methods:
        request.getfixturevalue("unrendered")


def anonymous() -> Client:
    return Client(raise_request_exception=False)


def log_in(user: User) -> Client:
    client = anonymous()
    client.force_login(user)
    return client


def customer() -> Client:
    return log_in(User.objects.get(pk=new_customer()))


def staff(*kinds: str) -> Client:
    """Return a client of a staff account with all permissions of these kinds, for example `view`."""
    user = User.objects.create_user(f"staff {uuid4()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__regex=f"^({'|'.join(kinds)})_") if kinds else [])
    return log_in(user)


def superuser() -> Client:
    return log_in(User.objects.create_superuser(f"super {uuid4()}"))


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


NOBODY: dict[str, Callable[[], Client]] = {"anonymous": anonymous, "customer": customer}
READERS: dict[str, Callable[[], Client]] = {"without permissions": staff, "may view": lambda: staff("view")}
WRITERS: dict[str, Callable[[], Client]] = {
    "may change": lambda: staff("view", "change"),
    "may change unseen": lambda: staff("change"),
    "may delete": lambda: staff("view", "delete"),
    "may add": lambda: staff("add"),
    "may everything": superuser,
}


with_methods = pytest.mark.parametrize(
    "methods",
    [pytest.param(("POST",), id="POST"), pytest.param(METHODS, id="all", marks=pytest.mark.slow)],
)


@with_methods
@pytest.mark.usefixtures("posts_unrendered")
def test_a_stranger_is_sent_to_the_login(world: World, redis: Redis, methods: Sequence[str]) -> None:
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
    world: World, redis: Redis, methods: Sequence[str]
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
def test_no_address_of_the_admin_fails(world: World, role: str) -> None:
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
def test_an_action_without_its_permission_does_nothing(world: World, redis: Redis) -> None:
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
def test_the_same_action_with_its_permission_does_it(world: World) -> None:
    """Negative control: with the permission, the same form changes its table, so the form is complete."""
    world.ids["product"] = str(Product.objects.create(sku="b", name="B").pk)
    for model, name, permission, table in DONE:
        user = User.objects.create_user(name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=[f"view_{model}", permission]))
        client, before = log_in(user), contents()
        form = {"post": "yes", "action": name, "_selected_action": world.ids[model], "index": "0", "why": "x"}
        assert client.post(f"/admin/shop/{model}/", {**form, "select_across": "0"}).status_code == 302
        after = contents()
        assert {table for table in after if after[table] != before[table]} >= {f"shop.{table}"}, name


def test_an_action_on_a_malformed_id_is_refused_with_a_reason(world: World, redis: Redis) -> None:
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
STOCK = "/admin/inventory/stockitem/"
LISTS = [f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in admin.site._registry]
SUGGEST = "/admin/autocomplete/?app_label=shop&model_name=saleitem&field_name=product"


def test_nul_is_refused_wherever_it_is_sent(db: None) -> None:
    client, text = superuser(), "a%00b"
    asked = [f"/admin/shop/order/?state={text}", f"/admin/shop/payment/?outcome={text}", f"/admin/?{text}=1"]
    asked += [f"/admin/inventory/stockmovement/?{name}={text}" for name in ("item", "kind", "q", "p", "_to_field")]
    asked += [f"{STOCK}{text}/{page}/" for page in ("change", "delete", "history")]
    asked += [f"{SUGGEST}&term={text}", f"/admin/r/{ContentType.objects.get_for_model(StockItem).pk}/{text}/"]
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
def test_an_empty_field_to_look_in_is_the_id(world: World) -> None:
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
def test_suggestions_for_any_field_are_no_error(world: World) -> None:
    client, answers = superuser(), {}
    for model in admin.site._registry:
        for field in model._meta.get_fields():
            names = f"app_label={model._meta.app_label}&model_name={model._meta.model_name}&field_name={field.name}"
            answers[str(field)] = client.get(f"/admin/autocomplete/?{names}&page=x").status_code
    assert set(answers.values()) == {403, 404}
    assert client.get(SUGGEST).status_code == 200


def test_a_fault_of_our_own_is_not_hidden(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shop.admin.orders.cancel_batch", raising(ValueError("ours")))
    form = {"action": "cancel", "_selected_action": world.ids["order"], "index": "0", "why": "x"}
    assert superuser().post("/admin/shop/order/", form).status_code == 500


def test_the_search_that_no_page_offers_is_off() -> None:
    """unfold's search is off. No page offers it, and it fails for a malformed page number or without Redis."""
    assert superuser().get("/admin/search/?s=sale&page=x").status_code == 404


def test_a_sale_is_locked_by_the_form_that_changes_it_alone(world: World) -> None:
    page = f"/admin/shop/sale/{world.ids['sale']}"

    def locks() -> list[str]:
        return [each["sql"] for each in queries if re.search(r'FROM "shop_sale".* FOR NO KEY UPDATE', each["sql"])]

    with CaptureQueriesContext(connection) as queries:
        assert superuser().get(f"{page}/change/").status_code == 200
        assert superuser().post(f"{page}/history/").status_code == 200
        assert staff("view").post(f"{page}/change/", {}).status_code == 403
        assert not locks()
        assert staff("view", "change").post(f"{page}/change/", {}).status_code == 200
        assert locks()
