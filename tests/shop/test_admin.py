"""The admin as the people of a sale see it: figures, verdicts, deliveries, sales, orders, and who may do what."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from uuid import uuid4

import pytest
import uuid_utils.compat
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis import Redis
from unfold.admin import ModelAdmin

from inventory import stock
from inventory.counters.segmented import name_of
from inventory.models import StockItem, StockMovement
from inventory.strategies import registry
from shop import conservation
from shop.admin.sales import SaleAdmin
from shop.models import Order, OrderItem, Payment, Product, Sale
from shop.orders import payments
from shop.orders.customer_changes import pay_order
from shop.orders.expiry import expire_unpaid
from shop.orders.place import place_order
from shop.orders.queued import save_queued
from shop.sales import lifecycle, offers
from tests.factories import OnSale, at_once, begin, close_now, interleaved, new_customer, new_request, on_sale
from tests.shop.conftest import Gone
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

STOCK = "/admin/inventory/stockitem/"
MOVEMENTS = "/admin/inventory/stockmovement/"
PAYMENTS = "/admin/shop/payment/"
SALES = "/admin/shop/sale/"
ORDERS = "/admin/shop/order/"


class Rows(HTMLParser):
    """The rows of the list on a page: the text of each cell by its field."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []
        self.field = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append({})
        elif tag in ("td", "th"):
            field = re.search(r"\bfield-(\w+)", dict(attrs).get("class") or "")
            self.field = field[1] if field else ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.field = ""

    def handle_data(self, data: str) -> None:
        if self.field and self.rows:
            row = self.rows[-1]
            row[self.field] = " ".join(f"{row.get(self.field, '')} {data}".split())


def rows(page: str) -> dict[str, dict[str, str]]:
    """The rows of a list, by their first cell."""
    found = [row for row in Rows(page).rows if row]
    return {next(iter(row.values())): row for row in found}


def verdict(page: str) -> str:
    """The text of the verdict on a page; empty where there is none."""
    found = re.search(r'<div id="verdict".*?</div>\s*</div>', page, re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", found[0]).split()) if found else ""


def messages(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def get(client: Client, path: str, **query: str) -> str:
    response = client.get(path, query)
    assert response.status_code == 200, (path, response.status_code)
    return response.content.decode()


def move(units: str, kind: str = "delivered", why: str = "as ordered", **more: str) -> dict[str, str]:
    """The form of a movement, as a browser sends it."""
    return {"kind": kind, "units": units, "why": why, **more}


def bought(offer: OnSale, **units: int) -> Order:
    placed = place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(**units), key=str(uuid4()))
    return Order.objects.get(pk=placed.order.pk)


def many_orders(offer: OnSale, sku: str, count: int) -> None:
    """Orders of one unit each, and the stock that they take."""
    now = timezone.now()
    same = {"customer_id": new_customer(), "sale_id": offer.sale, "created_at": now, "payable_from": now}
    orders = [Order(id=uuid_utils.compat.uuid7(), key=str(number), **same) for number in range(count)]
    Order.objects.bulk_create(orders, batch_size=1000)
    OrderItem.objects.bulk_create(OrderItem(order=order, product_id=sku, quantity=1, price=1) for order in orders)
    item = StockItem.objects.get(sku=sku)
    StockItem.objects.filter(sku=sku).update(on_hand=item.on_hand - count)


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Log in a member of the staff who has these permissions and no other."""

    def log_in(*permissions: str) -> Client:
        user = User.objects.create_user(f"staff {uuid4()}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    return log_in


# What the stock page says


def test_each_sku_shows_what_the_tables_and_redis_have_of_it(admin_client: Client, redis: Redis) -> None:
    lua = on_sale({"a": 10, "b": 5}, strategy="lua")
    on_sale({"c": 4}, strategy="redis-lock")
    bought(lua, a=3)
    paid = bought(lua, a=1)
    pay_order(paid.pk, customer=paid.customer_id)
    registry.counters().take(new_request(("b", 2)))
    found = rows(get(admin_client, STOCK))
    assert found == {
        "a": {
            "sku": "a", "all_received": "10", "all_on_hand": "6", "in_redis": "6",
            "sold": "4", "drift": "0", "verdict": "conserved",
        },
        "b": {
            "sku": "b", "all_received": "5", "all_on_hand": "5", "in_redis": "3 + 2 reserved",
            "sold": "0", "drift": "0", "verdict": "conserved",
        },
        "c": {
            "sku": "c", "all_received": "4", "all_on_hand": "4", "in_redis": "-",
            "sold": "0", "drift": "0", "verdict": "conserved",
        },
    }  # fmt: skip


def test_an_expired_order_is_not_sold(admin_client: Client, redis: Redis, settings: Any) -> None:
    bought(on_sale({"a": 10}), a=3)
    settings.ORDER_TTL = 0
    assert expire_unpaid() == 1
    row = rows(get(admin_client, STOCK))["a"]
    assert (row["all_on_hand"], row["sold"], row["drift"]) == ("10", "0", "0")


def test_the_verdict_is_conserved_while_the_law_holds(admin_client: Client, redis: Redis) -> None:
    bought(on_sale({"a": 10, "b": 5}), a=3)
    assert verdict(get(admin_client, STOCK)) == "Conserved : 2 skus, 3 units sold, each of them once."


def test_an_empty_shop_is_conserved(admin_client: Client, redis: Redis) -> None:
    assert verdict(get(admin_client, STOCK)) == "Conserved : 0 skus, 0 units sold, each of them once."


def test_the_verdict_names_what_is_broken_and_by_how_much(admin_client: Client, redis: Redis) -> None:
    bought(on_sale({"a": 10, "b": 5, "c": 1}), a=3, c=1)
    StockItem.objects.filter(sku="a").update(on_hand=5)
    StockItem.objects.filter(sku="c").update(received=0)
    StockMovement.objects.filter(item="c").delete()
    page = get(admin_client, STOCK)
    assert verdict(page) == (
        "Broken for 2 of 3 skus. "
        "a : received 10, on hand 5, sold 3: drift +2 "
        "c : received 0, on hand 0, sold 1: drift -1, 1 oversold"
    )
    assert [(row["drift"], row["verdict"]) for row in rows(page).values()] == [
        ("2", "broken"),
        ("0", "conserved"),
        ("-1", "broken"),
    ]


def test_the_verdict_covers_the_skus_that_the_page_does_not_show(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10, "b": 5})
    StockItem.objects.filter(sku="a").update(on_hand=5)
    page = get(admin_client, STOCK, q="b")
    assert list(rows(page)) == ["b"]
    assert verdict(page).startswith("Broken for 1 of 2 skus. a :")


def test_what_drifts_can_be_sorted_to_the_top(admin_client: Client, redis: Redis) -> None:
    bought(on_sale({"a": 10, "b": 5, "c": 7, "d": 9}), d=3)
    StockItem.objects.filter(sku="b").update(on_hand=4)
    StockItem.objects.filter(sku="d").update(on_hand=4)
    assert list(rows(get(admin_client, STOCK, o="-5")))[:2] == ["d", "b"]
    assert next(iter(rows(get(admin_client, STOCK, o="-4")))) == "d"


def test_the_counters_of_segments_are_added_up(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10, "b": 5, "c": 3}, strategy="segmented-redis")
    registry.counters().take(new_request((name_of("b", 1), 1)))
    assert [row["in_redis"] for row in rows(get(admin_client, STOCK)).values()] == ["10", "4 + 1 reserved", "3"]
    redis.incrby("{stock}:counter:" + name_of("a", 4), 2)
    assert "a : 12 in Redis, 10 on hand: +2" in verdict(get(admin_client, STOCK))


def test_a_counter_that_differs_from_on_hand_is_pointed_out(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10, "b": 5, "c": 3}, strategy="lua")
    redis.set("{stock}:counter:a", 9)
    redis.delete("{stock}:counter:c")
    registry.counters().take(new_request(("b", 2)))
    redis.incrby("{stock}:counter:b", 1)
    assert verdict(get(admin_client, STOCK)) == (
        "Conserved : 3 skus, 0 units sold, each of them once. "
        "Redis differs from what is on hand. While orders are on their way that passes; at rest it is drift. "
        "a : 9 in Redis, 10 on hand: -1 "
        "b : 4 in Redis + 2 reserved, 5 on hand: +1"
    )


def test_a_thousand_broken_skus_are_a_short_list(admin_client: Client, redis: Redis) -> None:
    items = StockItem.objects.bulk_create(
        StockItem(sku=f"{number:04}", received=2, on_hand=1) for number in range(1000)
    )
    StockMovement.objects.bulk_create(StockMovement(item=item, kind="delivered", units=2) for item in items)
    found = verdict(get(admin_client, STOCK))
    assert found.startswith("Broken for 1000 of 1000 skus.")
    assert found.count("drift +1") == 10


# Redis is down


def test_the_stock_page_says_so_when_redis_is_down_and_still_gives_the_verdict(
    admin_client: Client, redis_gone: Gone
) -> None:
    bought(on_sale({"a": 10}, strategy="lua"), a=1)
    with redis_gone():
        page = get(admin_client, STOCK)
    assert verdict(page).startswith("Conserved : 1 sku, 1 unit sold, each of them once. Redis did not answer")
    row = rows(page)["a"]
    assert (row["all_on_hand"], row["in_redis"], row["sold"]) == ("9", "-", "1")


@pytest.mark.parametrize(
    "path", ["", "shop/sale/", "shop/order/", "shop/payment/", "shop/product/", "auth/user/", "auth/group/"]
)
def test_every_other_page_is_there_when_redis_is_down(admin_client: Client, redis_gone: Gone, path: str) -> None:
    bought(on_sale({"a": 10}, strategy="lua"), a=1)
    with redis_gone():
        get(admin_client, f"/admin/{path}")


def test_a_delivery_counts_when_redis_is_down_and_the_next_page_says_so(admin_client: Client, redis_gone: Gone) -> None:
    on_sale({"a": 10}, strategy="lua")
    with redis_gone():
        response = admin_client.post(f"{STOCK}a/change/", move("5"), follow=True)
    assert response.status_code == 200
    assert "Redis did not answer" in verdict(response.content.decode())
    assert StockItem.objects.values_list("received", "on_hand").get() == (15, 15)


def test_a_sale_is_not_preheated_when_redis_is_down(admin_client: Client, redis_gone: Gone) -> None:
    offer = on_sale({"a": 10}, strategy="lua")
    Sale.objects.update(preheated_at=None)
    with redis_gone():
        page = act(admin_client, "preheat", offer)
    assert "Sale by lua: Redis did not answer" in page
    assert Sale.objects.get().preheated_at is None


# Deliveries


def test_a_delivery_adds_exactly_what_arrived_in_the_tables_and_in_redis(admin_client: Client, redis: Redis) -> None:
    bought(on_sale({"a": 10}, strategy="lua"), a=3)
    response = admin_client.post(f"{STOCK}a/change/", move("5", received_before="10"))
    assert response.status_code == 302
    assert StockItem.objects.values_list("received", "on_hand").get() == (15, 12)
    assert redis.get("{stock}:counter:a") == b"12"
    assert "Delivered 5." in get(admin_client, f"{STOCK}a/history/")


def test_a_delivery_makes_no_counter(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10}, strategy="redis-lock")
    admin_client.post(f"{STOCK}a/change/", move("5"))
    assert redis.exists("{stock}:counter:a") == 0


def test_what_was_sold_since_the_page_was_opened_does_not_matter(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10})
    page = get(admin_client, f"{STOCK}a/change/")
    assert '<input type="hidden" name="received_before" value="10"' in page
    bought(offer, a=4)
    assert admin_client.post(f"{STOCK}a/change/", move("5", received_before="10")).status_code == 302
    assert StockItem.objects.values_list("received", "on_hand").get() == (15, 11)


def test_a_form_that_is_sent_twice_delivers_once(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10})
    sent = move("5", received_before="10")
    assert admin_client.post(f"{STOCK}a/change/", sent).status_code == 302
    again = admin_client.post(f"{STOCK}a/change/", sent)
    assert "Something was moved since this page was opened" in messages(again.content.decode())
    assert StockItem.objects.values_list("received", "on_hand").get() == (15, 15)
    # Saved once more, as the message says, it is a second delivery.
    assert '<input type="hidden" name="received_before" value="15"' in again.content.decode()
    assert admin_client.post(f"{STOCK}a/change/", {**sent, "received_before": "15"}).status_code == 302
    assert StockItem.objects.values_list("received", "on_hand").get() == (20, 20)


def test_two_forms_that_do_not_say_what_they_saw_are_two_deliveries(admin_client: Client, redis: Redis) -> None:
    """The negative control of the one above."""
    on_sale({"a": 10})
    for _ in range(2):
        assert admin_client.post(f"{STOCK}a/change/", move("5")).status_code == 302
    assert StockItem.objects.values_list("received", "on_hand").get() == (20, 20)


def test_a_form_that_is_sent_twice_at_once_delivers_once(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10})

    def send() -> int:
        client = Client()
        client.cookies = admin_client.cookies
        return client.post(f"{STOCK}a/change/", move("5", received_before="10")).status_code

    assert sorted(at_once(*[send] * 4)) == [200, 200, 200, 302]  # type: ignore[type-var]
    assert StockItem.objects.values_list("received", "on_hand").get() == (15, 15)


@pytest.mark.parametrize("delivered", ["-1", "0", "abc", "1000001", "1.5", "9" * 40, "\x00", "1e3"])
def test_a_delivery_that_is_no_number_of_units_is_refused(admin_client: Client, redis: Redis, delivered: str) -> None:
    on_sale({"a": 10})
    assert admin_client.post(f"{STOCK}a/change/", move(delivered)).status_code == 200
    assert StockItem.objects.values_list("received", "on_hand").get() == (10, 10)


def test_the_figures_of_a_sku_cannot_be_written(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10})
    admin_client.post(f"{STOCK}a/change/", move("", why="", received="99", on_hand="99", sku="z"))
    assert StockItem.objects.values_list("sku", "received", "on_hand").get() == ("a", 10, 10)


@pytest.mark.parametrize(("delivered", "units"), [("7", 7), ("", 0)])
def test_a_new_sku_is_added_with_or_without_units(
    admin_client: Client, redis: Redis, delivered: str, units: int
) -> None:
    assert (
        admin_client.post(
            f"{STOCK}add/", move(delivered, why="as ordered" if delivered else "", sku="new/1 ü")
        ).status_code
        == 302
    )
    assert StockItem.objects.values_list("sku", "received", "on_hand").get() == ("new/1 ü", units, units)
    assert "new/1 ü" in rows(get(admin_client, STOCK))


def test_a_sku_that_is_there_is_not_added_again(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10})
    response = admin_client.post(f"{STOCK}add/", move("7", sku="a"))
    assert "already exists" in messages(response.content.decode())
    assert StockItem.objects.values_list("received", "on_hand").get() == (10, 10)


# Corrections, returns, and who said so


def test_each_movement_is_noted_with_who_and_why(staff: Callable[..., Client], redis: Redis) -> None:
    bought(on_sale({"a": 10}, strategy="lua"), a=3)
    client = staff("change_stockitem", "view_stockmovement")
    for form in (move("-2", "corrected", "counted again"), move("1", "returned", "broken box"), move("4")):
        assert client.post(f"{STOCK}a/change/", form).status_code == 302
    who = User.objects.get(is_staff=True)
    noted = StockMovement.objects.order_by("pk").values_list("kind", "units", "who", "why")
    assert list(noted) == [
        ("delivered", 10, None, ""),
        ("corrected", -2, who.pk, "counted again"),
        ("returned", 1, who.pk, "broken box"),
        ("delivered", 4, who.pk, "as ordered"),
    ]
    assert StockItem.objects.values_list("received", "on_hand").get() == (13, 10)
    assert redis.get("{stock}:counter:a") == b"10"
    assert [row.conserved for row in conservation.figures()] == [True]
    page = messages(get(client, f"{STOCK}a/change/"))
    assert f"-2 corrected by {who}" in page
    assert "counted again" in page
    assert "+10 delivered by a program" in page
    link = re.search(rf'href="({MOVEMENTS}[^"]+)"', get(client, f"{STOCK}a/change/"))
    assert link
    assert get(client, link[1]).count("field-signed") == 4
    found = rows(get(client, MOVEMENTS, kind__exact="corrected")).values()
    assert [(row["signed"], row["kind_label"], row["why"], row["by"]) for row in found] == [
        ("-2", "corrected", "counted again", str(who))
    ]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        pytest.param(move("-11", "corrected", "gone"), "Only 10 on hand can be taken away.", id="more than there is"),
        pytest.param(move("-1", "delivered"), "Only a correction takes units away", id="a delivery that takes away"),
        pytest.param(move("-1", "returned", "x"), "Only a correction takes units away", id="a return that takes away"),
        pytest.param(move("0", "corrected", "x"), "none moves nothing", id="nothing"),
        pytest.param(move("1", "corrected", ""), "Say why.", id="a correction without a reason"),
        pytest.param(move("1", "returned", "  "), "Say why.", id="a return without a reason"),
        pytest.param(move("1", "delivered", ""), "Say why.", id="a delivery without a reason"),
        pytest.param(move("", "corrected", "counted"), "Say how many units.", id="a reason without units"),
        pytest.param(move("1", "stolen", "x"), "Select a valid choice", id="a kind that is none"),
        pytest.param(move("1", "corrected", "x" * 201), "at most 200 characters", id="a long story"),
    ],
)
def test_a_movement_that_cannot_be_is_a_clear_error(
    admin_client: Client, redis: Redis, form: dict[str, str], says: str
) -> None:
    on_sale({"a": 10})
    response = admin_client.post(f"{STOCK}a/change/", form)
    assert (response.status_code, says in messages(response.content.decode())) == (200, True)
    assert StockItem.objects.values_list("received", "on_hand").get() == (10, 10)
    assert StockMovement.objects.count() == 1


def test_a_correction_takes_all_that_is_on_hand_and_not_one_more_while_the_shop_sells(
    admin_client: Client, redis: Redis
) -> None:
    offer = on_sale({"a": 10})
    bought(offer, a=4)
    form = move("-7", "corrected", "stolen", received_before="10")
    refused = admin_client.post(f"{STOCK}a/change/", form)
    assert "Only 6 on hand can be taken away." in messages(refused.content.decode())
    assert admin_client.post(f"{STOCK}a/change/", {**form, "units": "-6"}).status_code == 302
    assert StockItem.objects.values_list("received", "on_hand").get() == (4, 0)
    assert [row.conserved for row in conservation.figures()] == [True]


@pytest.mark.parametrize("strategy", ["segmented-lock", "unit-rows"])
def test_what_a_sale_has_split_up_can_be_taken_away_too(admin_client: Client, redis: Redis, strategy: str) -> None:
    on_sale({"a": 10}, strategy=strategy)
    refused = admin_client.post(f"{STOCK}a/change/", move("-11", "corrected", "stolen"))
    assert "Only 10 on hand can be taken away." in messages(refused.content.decode())
    assert admin_client.post(f"{STOCK}a/change/", move("-4", "corrected", "stolen")).status_code == 302
    assert [(row.on_hand, row.conserved) for row in conservation.figures()] == [(6, True)]


def test_a_new_sku_does_not_begin_below_nothing(admin_client: Client, redis: Redis) -> None:
    response = admin_client.post(f"{STOCK}add/", move("-1", "corrected", "x", sku="new"))
    assert "Only 0 on hand can be taken away." in messages(response.content.decode())
    assert StockItem.objects.count() == 0


def test_movements_are_to_look_at(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10})
    movement = StockMovement.objects.get()
    assert "+10" in messages(get(admin_client, f"{MOVEMENTS}{movement.pk}/change/"))
    for path in (f"{movement.pk}/change/", f"{movement.pk}/delete/", "add/"):
        assert admin_client.post(f"{MOVEMENTS}{path}", {"units": "1", "post": "yes"}).status_code == 403
    assert StockMovement.objects.values_list("units").get() == (10,)


def test_who_may_see_the_stock_alone_sees_no_movements_there(staff: Callable[..., Client], redis: Redis) -> None:
    on_sale({"a": 10})
    assert 'id="movements"' not in get(staff("view_stockitem"), f"{STOCK}a/change/")
    assert 'id="movements"' in get(staff("view_stockitem", "view_stockmovement"), f"{STOCK}a/change/")


def test_what_a_row_says_beyond_its_movements_is_broken(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10})
    StockItem.objects.update(received=12)
    page = get(admin_client, STOCK)
    assert verdict(page) == (
        "Broken for 1 of 1 sku. a : received 10, on hand 10, sold 0: drift +0, +2 received that no movement explains"
    )
    assert rows(page)["a"]["verdict"] == "broken"


# Sales


def the_form(offer: OnSale | None = None, *, opens: datetime | None, closes: datetime | None, **more: Any) -> dict:
    """The form of a sale of the first product, as a browser sends it; for a sale that exists, its one item."""
    items = list(Sale.objects.get(pk=offer.sale).items.all()) if offer else []
    form = {"name": "Another", "strategy": "lua", "items-TOTAL_FORMS": "1", "items-INITIAL_FORMS": str(len(items))}
    for name, moment in (("opens_at", opens), ("closes_at", closes)):
        form[f"{name}_0"] = f"{moment:%Y-%m-%d}" if moment else ""
        form[f"{name}_1"] = f"{moment:%H:%M:%S}" if moment else ""
    form["items-0-id"] = str(items[0].pk) if items else ""
    return {**form, "items-0-product": str(Product.objects.first().pk), "items-0-price": "5", **more}  # type: ignore[union-attr]


def in_hours(hours: float) -> datetime:
    return (timezone.now() + timedelta(hours=hours)).replace(microsecond=0)


@pytest.mark.parametrize(("sku", "warned"), [("consol", True), ("console", False)])
def test_stock_that_no_product_has_the_sku_of_is_taken_with_a_warning(
    admin_client: Client, redis: Redis, sku: str, warned: bool
) -> None:
    Product.objects.create(sku="console", name="Console")
    response = admin_client.post(f"{STOCK}add/", {"sku": sku, **move("5", "delivered")}, follow=True)
    assert StockItem.objects.get().received == 5
    said = messages(response.content.decode())
    assert (f"No product has the sku {sku}: nobody can buy of this stock before one has." in said) is warned


@pytest.mark.parametrize("stocked", [False, True])
def test_a_sale_of_what_has_no_stock_is_taken_with_a_warning(admin_client: Client, redis: Redis, stocked: bool) -> None:
    Product.objects.create(sku="console", name="Console")
    if stocked:
        stock.deliver("console", 1)
    response = admin_client.post(f"{SALES}add/", the_form(opens=in_hours(1), closes=in_hours(2)), follow=True)
    assert Sale.objects.count() == 1
    warned = "There is no stock of console: nobody can buy it before some is delivered."
    assert (warned in messages(response.content.decode())) is not stocked


def test_a_sale_of_a_sku_that_is_in_another_at_the_time_is_refused(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10})
    response = admin_client.post(f"{SALES}add/", the_form(opens=in_hours(0), closes=in_hours(2)))
    assert "A is in “Sale by guarded-update” at the same time." in messages(response.content.decode())
    assert Sale.objects.count() == 1


def test_a_sale_that_opens_when_the_other_closes_is_taken(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10}, closes=timedelta(0))
    closes = Sale.objects.get().closes_at.replace(microsecond=0) + timedelta(seconds=1)
    assert admin_client.post(f"{SALES}add/", the_form(opens=closes, closes=in_hours(2))).status_code == 302
    assert Sale.objects.get(name="Another").items.count() == 1


def test_a_sale_is_not_moved_into_another_ones_time(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10})
    later = on_sale({"a": 0}, opens=timedelta(hours=5), closes=timedelta(hours=6))
    form = the_form(later, opens=in_hours(0.5), closes=in_hours(6))
    response = admin_client.post(f"{SALES}{later.sale}/change/", form)
    assert "A is in “Sale by guarded-update” at the same time." in messages(response.content.decode())
    assert Sale.objects.get(pk=later.sale).opens_at > in_hours(4)


def test_an_item_that_is_removed_is_in_nobodys_way(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10})
    later = on_sale({"a": 0}, opens=timedelta(hours=5), closes=timedelta(hours=6))
    form = the_form(later, opens=in_hours(0.5), closes=in_hours(6), **{"items-0-DELETE": "on"})
    assert admin_client.post(f"{SALES}{later.sale}/change/", form).status_code == 302
    assert Sale.objects.get(pk=later.sale).items.count() == 0


@pytest.mark.parametrize(("opens", "closes"), [(None, None), (0, None), (None, 1), (2, 1), (1, 1)])
def test_a_sale_without_a_window_is_refused_and_nothing_breaks(
    admin_client: Client, redis: Redis, opens: float | None, closes: float | None
) -> None:
    on_sale({"a": 10})
    moments = [None if hours is None else in_hours(hours) for hours in (opens, closes)]
    response = admin_client.post(f"{SALES}add/", the_form(opens=moments[0], closes=moments[1]))
    assert response.status_code == 200
    assert Sale.objects.count() == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"opens_at_0": "yesterday"},
        {"opens_at_1": "25:61"},
        {"opens_at_0": "0000-00-00"},
        {"items-0-product": "999999"},
        {"items-0-price": "-1"},
        {"items-0-price": "NaN"},
        {"items-0-limit": "0"},
        {"strategy": "compute-and-overwrite"},
        {"items-TOTAL_FORMS": "x"},
        {"name": ""},
    ],
)
def test_a_sale_with_bad_input_is_refused_and_nothing_breaks(
    admin_client: Client, redis: Redis, wrong: dict[str, str]
) -> None:
    on_sale({"a": 10})
    form = the_form(opens=in_hours(3), closes=in_hours(4), **wrong)
    assert admin_client.post(f"{SALES}add/", form).status_code == 200
    assert Sale.objects.count() == 1


@pytest.mark.parametrize("begun", ["preheated", "ordered"])
def test_the_strategy_is_fixed_once_a_sale_has_begun(admin_client: Client, redis: Redis, begun: str) -> None:
    offer = on_sale({"a": 10}, strategy="guarded-update")
    if begun == "ordered":
        bought(offer, a=1)
        Sale.objects.update(preheated_at=None)
    form = the_form(offer, opens=in_hours(-1), closes=in_hours(1), strategy="optimistic")
    assert admin_client.post(f"{SALES}{offer.sale}/change/", form).status_code == 302
    assert Sale.objects.values_list("name", "strategy").get() == ("Another", "guarded-update")


def test_the_strategy_may_change_before(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10}, strategy="guarded-update")
    Sale.objects.update(preheated_at=None)
    form = the_form(offer, opens=in_hours(-1), closes=in_hours(1), strategy="optimistic")
    assert admin_client.post(f"{SALES}{offer.sale}/change/", form).status_code == 302
    assert Sale.objects.get().strategy == "optimistic"


@pytest.mark.parametrize("point", ['FROM "shop_sale" WHERE', "FOR NO KEY UPDATE", 'UPDATE "shop_sale"'])
def test_a_sale_is_preheated_by_the_strategy_that_it_has_also_while_its_form_is_saved(
    admin_client: Client, redis: Redis, point: str
) -> None:
    offer = on_sale({"a": 10}, strategy="unit-rows", preheat=False)
    preheat_while_the_form_is_saved(admin_client, offer, point)
    found = Sale.objects.get()
    assert found.preheated_at is not None
    assert StockItem.objects.get().split_by == {"unit-rows": "unit-rows", "optimistic": ""}[found.strategy]


def test_without_lock_and_guard_it_is_not(admin_client: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    offer = on_sale({"a": 10}, strategy="unit-rows", preheat=False)
    monkeypatch.setattr(SaleAdmin, "get_object", ModelAdmin.get_object)
    monkeypatch.setattr(Sale, "save", Model.save)
    preheat_while_the_form_is_saved(admin_client, offer, 'FROM "shop_sale" WHERE')
    assert Sale.objects.values_list("strategy", "preheated_at").get() == ("optimistic", None)
    assert StockItem.objects.get().split_by == "unit-rows"


def preheat_while_the_form_is_saved(client: Client, offer: OnSale, point: str) -> None:
    """Somebody preheats a sale just after the form's first statement of a kind, or waits until it is saved."""
    form = the_form(offer, opens=in_hours(-1), closes=in_hours(1), strategy="optimistic")
    with ThreadPoolExecutor(1) as pool:
        preheating: list[Future[None]] = []
        with interleaved(lambda: preheating.append(begin(pool, lambda: lifecycle.preheat(offer.sale))), after=point):
            assert client.post(f"{SALES}{offer.sale}/change/", form).status_code == 302
        preheating[0].result(PATIENCE)


@pytest.mark.parametrize("strategy", ["guarded-update", "lua"])
def test_a_product_that_is_moved_to_an_open_sale_is_sold_there_at_once(
    admin_client: Client, redis: Redis, strategy: str
) -> None:
    before, after = on_sale({"a": 10}, strategy="unit-rows"), on_sale({"b": 1}, strategy=strategy)
    window = {"opens": in_hours(-1), "closes": in_hours(1)}
    removal = the_form(before, **window, **{"items-0-DELETE": "on"})
    product = {"items-1-id": "", "items-1-product": str(before.products["a"]), "items-1-price": "5"}
    addition = the_form(after, **window, **{"items-TOTAL_FORMS": "2", "items-0-product": str(after.products["b"])})
    assert admin_client.post(f"{SALES}{before.sale}/change/", removal).status_code == 302
    assert admin_client.post(f"{SALES}{after.sale}/change/", {**addition, **product}).status_code == 302
    offers._remembered.clear()

    assert bought(OnSale(after.sale, before.products), a=10).state == "pending"


def act(client: Client, action: str, *offers: OnSale) -> str:
    """Run an action on sales and return what the next page says."""
    chosen = {"action": action, "_selected_action": [offer.sale for offer in offers], "index": "0"}
    return messages(client.post(SALES, chosen, follow=True).content.decode())


def test_preheating_copies_the_stock_once(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10}, strategy="lua")
    Sale.objects.update(preheated_at=None)
    redis.flushall()
    assert "Sale by lua is preheated." in act(admin_client, "preheat", offer)
    assert redis.get("{stock}:counter:a") == b"10"
    bought(offer, a=1)
    act(admin_client, "preheat", offer)
    assert redis.get("{stock}:counter:a") == b"9"
    assert Sale.objects.get().preheated_at is not None


def test_closing_ends_a_sale_and_removes_its_copies(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10}, strategy="lua")
    assert "Sale by lua is closed." in act(admin_client, "close", offer)
    assert Sale.objects.get().closes_at <= timezone.now()
    assert redis.exists("{stock}:counter:a") == 0
    assert rows(get(admin_client, SALES))["Sale by lua"]["state"] == "over"


def test_the_copies_of_the_next_sale_outlive_the_last_one(admin_client: Client, redis: Redis) -> None:
    last = on_sale({"a": 10}, strategy="lua")
    close_now(last)
    on_sale({"a": 0}, strategy="lua")
    for action, done in (("close", "closed"), ("preheat", "preheated")):
        assert f"Sale by lua is over: it was not {done}." in act(admin_client, action, last)
    assert redis.get("{stock}:counter:a") == b"10"


def test_a_sale_to_come_is_not_closed(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10}, strategy="lua", opens=timedelta(hours=1), closes=timedelta(hours=2))
    lifecycle.preheat(offer.sale)
    assert "Sale by lua is to come: it was not closed." in act(admin_client, "close", offer)
    assert redis.get("{stock}:counter:a") == b"10"


def test_a_sale_that_has_begun_is_not_deleted(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10}, strategy="lua")
    assert admin_client.post(f"{SALES}{offer.sale}/delete/", {"post": "yes"}).status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": offer.sale, "index": "0", "post": "yes"}
    admin_client.post(SALES, chosen)
    assert Sale.objects.count() == 1
    Sale.objects.update(preheated_at=None)
    assert admin_client.post(f"{SALES}{offer.sale}/delete/", {"post": "yes"}).status_code == 302
    assert Sale.objects.count() == 0


# Orders


def test_an_order_is_found_by_its_id_its_customer_or_its_key(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10, "b": 10})
    mine, other = bought(offer, a=1, b=2), bought(offer, a=1)
    for wanted in (str(mine.pk), str(mine.pk)[-12:], User.objects.get(pk=mine.customer_id).username, mine.key):
        found = rows(get(admin_client, ORDERS, q=wanted))
        assert list(found) == [str(mine.pk)], wanted
        assert found[str(mine.pk)]["ordered"] == "1 × a, 2 × b"
    assert list(rows(get(admin_client, ORDERS))) == [str(other.pk), str(mine.pk)]


def test_orders_are_filtered_by_their_state(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10})
    paid, _ = bought(offer, a=1), bought(offer, a=1)
    pay_order(paid.pk, customer=paid.customer_id)
    found = rows(get(admin_client, ORDERS, state__exact="paid"))
    assert {name: row["state_label"] for name, row in found.items()} == {str(paid.pk): "paid"}


def test_an_order_is_to_look_at(admin_client: Client, redis: Redis) -> None:
    order = bought(on_sale({"a": 10}, price="12.34"), a=2)
    page = messages(get(admin_client, f"{ORDERS}{order.pk}/change/"))
    assert all(text in page for text in (str(order.pk), "pending", order.key, "A 2 12.34"))
    for path in (f"{order.pk}/change/", f"{order.pk}/delete/", "add/"):
        assert admin_client.post(f"{ORDERS}{path}", {"state": "paid", "post": "yes"}).status_code == 403
    assert Order.objects.get().state == "pending"


def act_on_orders(client: Client, *orders: Order) -> str:
    chosen = {"action": "cancel", "_selected_action": [str(order.pk) for order in orders], "index": "0"}
    return messages(client.post(ORDERS, chosen, follow=True).content.decode())


def test_the_staff_cancels_pending_orders_and_no_others(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10}, strategy="lua", limit=3)
    pending, paid = bought(offer, a=3), bought(offer, a=2)
    pay_order(paid.pk, customer=paid.customer_id)
    said = act_on_orders(admin_client, pending, paid)
    assert f"{pending} is cancelled." in said
    assert f"{paid} was not cancelled: The order is paid." in said
    assert dict(Order.objects.values_list("pk", "state")) == {pending.pk: "cancelled", paid.pk: "paid"}
    assert StockItem.objects.get().on_hand == 8
    assert redis.get("{stock}:counter:a") == b"8"
    act_on_orders(admin_client, pending)
    logged = LogEntry.objects.values_list("object_id", "change_message", "user__username")
    assert list(logged) == [(str(pending.pk), "Cancelled.", "admin")]


def test_who_may_only_look_at_orders_cancels_none(staff: Callable[..., Client], redis: Redis) -> None:
    order = bought(on_sale({"a": 10}), a=3)
    act_on_orders(staff("view_order"), order)
    assert Order.objects.get().state == "pending"
    act_on_orders(staff("view_order", "change_order"), order)
    assert Order.objects.get().state == "cancelled"


def test_an_order_shows_why_it_was_rejected(admin_client: Client, redis: Redis) -> None:
    order = bought(on_sale({"a": 10}), a=3)
    Order.objects.update(state="rejected", reason="a: 3 wanted, 0 left")
    assert "a: 3 wanted, 0 left" in messages(get(admin_client, f"{ORDERS}{order.pk}/change/"))


# Refunds


def paid_twice(offer: OnSale) -> Order:
    """An order with money that has to go back."""
    order = bought(offer, a=1)
    for reference in (f"first-{order.pk}", f"second-{order.pk}"):
        payments.receive(reference, order=order.pk, amount=order.total)
    return order


def act_on_payments(client: Client, *found: Payment) -> str:
    chosen = {"action": "refund", "_selected_action": [payment.pk for payment in found], "index": "0"}
    return messages(client.post(PAYMENTS, chosen, follow=True).content.decode())


def test_what_has_to_be_refunded_is_found_from_every_side(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10})
    bought(offer, a=1)
    order = paid_twice(offer)
    assert "Refunds 1 due" in messages(get(admin_client, "/admin/"))
    found = rows(get(admin_client, ORDERS, refund="due"))
    assert {name: row["refund"] for name, row in found.items()} == {str(order.pk): "due"}
    assert len(rows(get(admin_client, ORDERS))) == 2
    found = rows(get(admin_client, PAYMENTS, refund="due"))
    assert [(name, row["result"], row["note"]) for name, row in found.items()] == [
        (f"second-{order.pk}", "refund due", "The order was paid already.")
    ]
    assert f"second-{order.pk}" in get(admin_client, f"{ORDERS}{order.pk}/change/")


def test_a_refund_is_worked_off_once_and_says_who_and_when(staff: Callable[..., Client], redis: Redis) -> None:
    order = paid_twice(on_sale({"a": 10}))
    paid, due = order.payments.order_by("pk")
    ada, bob = (staff("view_payment", "change_payment", "view_order") for _ in range(2))
    assert f"{due} is refunded." in act_on_payments(ada, due)
    by, at = Payment.objects.values_list("refunded_by__username", "refunded_at").get(pk=due.pk)
    said = act_on_payments(bob, due, paid)
    assert f"{due} is not due for refund." in said
    assert f"{paid} is not due for refund." in said
    assert Payment.objects.values_list("refunded_by__username", "refunded_at").get(pk=due.pk) == (by, at)
    assert [(entry.user.username, entry.object_repr) for entry in LogEntry.objects.all()] == [(by, str(due))]
    (row,) = rows(get(ada, PAYMENTS, refund="done")).values()
    assert (row["result"], row["refunded"]) == ("refunded", f"{at:%Y-%m-%d %H:%M:%S} by {by}")
    assert rows(get(ada, PAYMENTS, refund="due")) == rows(get(ada, ORDERS, refund="due")) == {}
    # The provider hears what it heard before.
    assert payments.receive(due.reference, order=order.pk, amount=order.total).payment.outcome == "refund_due"


def test_who_may_only_look_at_payments_refunds_none(staff: Callable[..., Client], redis: Redis) -> None:
    due = paid_twice(on_sale({"a": 10})).payments.get(outcome="refund_due")
    act_on_payments(staff("view_payment"), due)
    assert Payment.objects.filter(refunded_at=None).count() == 2


def test_payments_are_to_look_at(admin_client: Client, redis: Redis) -> None:
    payment = paid_twice(on_sale({"a": 10})).payments.get(outcome="paid")
    assert payment.reference in messages(get(admin_client, f"{PAYMENTS}{payment.pk}/change/"))
    for path in (f"{payment.pk}/change/", f"{payment.pk}/delete/", "add/"):
        assert admin_client.post(f"{PAYMENTS}{path}", {"outcome": "refund_due", "post": "yes"}).status_code == 403


# The first page


def test_the_overview_tells_what_is_queued_and_what_was_set_aside(
    admin_client: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = on_sale({"a": 10}, strategy="lua-queue")
    for _ in range(2):
        place_order(customer=new_customer(), sale=offer.sale, quantities=offer.cart(a=1), key="k")
    assert "Queued 2" in messages(get(admin_client, "/admin/"))

    def fail(requests: Any, **_: Any) -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr("shop.orders.queued.save", fail)
    save_queued()
    said = messages(get(admin_client, "/admin/"))
    assert "Queued 0" in said
    assert "Rejected 2" in said
    assert said.count("ValueError: no such thing") == 2


def test_the_overview_tells_how_the_night_goes(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 10}, strategy="lua")
    paid, _, _ = bought(offer, a=1), bought(offer, a=1), bought(offer, a=1)
    pay_order(paid.pk, customer=paid.customer_id)
    close_now(on_sale({"b": 10}, strategy="optimistic"))
    on_sale({"b": 0}, opens=timedelta(hours=3), closes=timedelta(hours=4))
    page = get(admin_client, "/admin/")
    assert verdict(page) == "Conserved : 2 skus, 3 units sold, each of them once."
    said = messages(page)
    assert "Pending 2 Paid 1 Cancelled 0 Expired 0 Rejected 0" in said
    assert "Sale by lua lua, open for another 59" in said
    assert "Sale by guarded-update guarded-update, opens in 2" in said
    assert "Sale by optimistic" not in said
    assert "0 held , 0 waiting" in said


def test_the_overview_says_that_redis_is_down(admin_client: Client, redis_gone: Gone) -> None:
    on_sale({"a": 10})
    with redis_gone():
        page = get(admin_client, "/admin/")
    assert verdict(page).startswith("Conserved : 1 sku, 0 units sold, each of them once. Redis did not answer")
    assert "cannot be asked for its locks" in messages(page)


# Who may do what


PAGES = {
    "Stock": ("inventory/stockitem/", "view_stockitem"),
    "Movements": ("inventory/stockmovement/", "view_stockmovement"),
    "Locks": ("locks/", "view_stockitem"),
    "Orders": ("shop/order/", "view_order"),
    "Payments": ("shop/payment/", "view_payment"),
    "Sales": ("shop/sale/", "view_sale"),
    "Products": ("shop/product/", "view_product"),
    "Users": ("auth/user/", "view_user"),
    "Groups": ("auth/group/", "view_group"),
}


def sidebar(page: str) -> list[str]:
    nav = page[page.index('id="nav-sidebar-apps"') : page.index('id="main"')]
    return re.findall(r"<span>([^<]+)</span>", nav)


def active(page: str) -> list[str]:
    return re.findall(r'<a href="([^"]+)" class="[^"]* active"', page)


@pytest.mark.parametrize("name", PAGES)
def test_a_permission_opens_its_page_and_no_other(staff: Callable[..., Client], redis: Redis, name: str) -> None:
    permission = PAGES[name][1]
    client = staff(permission)
    mine = [each for each, (_, needed) in PAGES.items() if needed == permission]
    assert sidebar(get(client, "/admin/")) == ["Overview", *mine]
    for each, (path, _) in PAGES.items():
        response = client.get(f"/admin/{path}")
        assert response.status_code == (200 if each in mine else 403), each
        if each in mine:
            assert active(response.content.decode()) == [f"/admin/{path}"]


def test_who_has_no_permission_is_told_whom_to_ask(staff: Callable[..., Client], redis: Redis) -> None:
    on_sale({"a": 10})
    cards = ("Sales, open and to come", "Pending", "Queued", " waiting")
    page = get(staff(), "/admin/")
    assert "You have no permission to see anything yet." in messages(page)
    assert verdict(page) == ""
    assert not [card for card in cards if card in messages(page)]
    page = get(staff("view_stockitem", "view_order", "view_sale"), "/admin/")
    assert "You have no permission" not in messages(page)
    assert verdict(page) != ""
    assert [card for card in cards if card not in messages(page)] == []


def test_the_verdict_is_for_who_may_see_the_stock(staff: Callable[..., Client], redis: Redis) -> None:
    on_sale({"a": 10})
    assert verdict(get(staff("view_stockitem"), "/admin/")) != ""
    assert verdict(get(staff("view_order", "view_sale"), "/admin/")) == ""


def test_a_buyer_is_sent_to_the_login(redis: Redis) -> None:
    client = Client()
    client.force_login(User.objects.get(pk=new_customer()))
    for path in ("", *(path for path, _ in PAGES.values())):
        assert client.get(f"/admin/{path}").headers["Location"] == f"/admin/login/?next=/admin/{path}"


def test_who_may_only_look_delivers_nothing(staff: Callable[..., Client], redis: Redis) -> None:
    on_sale({"a": 10})
    client = staff("view_stockitem")
    page = get(client, f"{STOCK}a/change/")
    assert "Units" not in page
    assert "received_before" not in page
    assert client.post(f"{STOCK}a/change/", move("5")).status_code == 403
    assert client.get(f"{STOCK}add/").status_code == 403
    assert StockItem.objects.values_list("received", "on_hand").get() == (10, 10)


def test_who_may_change_stock_delivers(staff: Callable[..., Client], redis: Redis) -> None:
    on_sale({"a": 10})
    assert staff("change_stockitem").post(f"{STOCK}a/change/", move("5")).status_code == 302
    assert StockItem.objects.values_list("received", "on_hand").get() == (15, 15)


@pytest.mark.parametrize("action", ["preheat", "close"])
def test_who_may_only_look_at_sales_acts_on_none(staff: Callable[..., Client], redis: Redis, action: str) -> None:
    offer = on_sale({"a": 10}, strategy="lua")
    Sale.objects.update(preheated_at=None)
    redis.flushall()
    act(staff("view_sale"), action, offer)
    assert Sale.objects.filter(preheated_at=None, closes_at__gt=timezone.now()).count() == 1
    assert redis.dbsize() == 0


def test_nobody_deletes_stock(admin_client: Client, redis: Redis) -> None:
    on_sale({"a": 10})
    assert admin_client.post(f"{STOCK}a/delete/", {"post": "yes"}).status_code == 403
    assert StockItem.objects.count() == 1


# Many, and odd


def test_a_page_asks_as_often_for_ten_thousand_orders_as_for_one(admin_client: Client, redis: Redis) -> None:
    offer = on_sale({"a": 20_000}, strategy="lua")

    def asked() -> dict[str, int]:
        often = {}
        for path in ("/admin/", STOCK, MOVEMENTS, ORDERS, PAYMENTS, SALES, "/admin/auth/user/"):
            with CaptureQueriesContext(connection) as queries:
                get(admin_client, path)
            often[path] = len(queries)
        return often

    many_orders(offer, "a", 1)
    asked()  # Django remembers its content types
    of_one = asked()
    many_orders(offer, "a", 9_999)
    for number in range(20):
        on_sale({f"sku-{number}": 1}, opens=timedelta(hours=2), closes=timedelta(hours=3))
        new_customer()
    assert asked() == of_one
    assert max(of_one.values()) <= 14


def test_an_order_of_many_skus_asks_as_often_as_one_of_a_single_sku(admin_client: Client, redis: Redis) -> None:
    skus = {f"s{number}": 10 for number in range(12)}
    offer = on_sale(skus)
    single, all_of_them = bought(offer, s0=1), bought(offer, **dict.fromkeys(skus, 1))
    get(admin_client, f"{ORDERS}{single.pk}/change/")  # Django remembers its content types
    asked = []
    for order in (single, all_of_them):
        with CaptureQueriesContext(connection) as queries:
            get(admin_client, f"{ORDERS}{order.pk}/change/")
        asked.append(len(queries))
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    "query",
    ["q=%00", "q=" + "x" * 5000, "q='\"%3B--", "o=99.-7.x", "p=x", "p=99999", "p=-1", "state__exact=none", "_popup=1",
     "sale__id__exact=x", "refund=x", "nothing=1", "e=1", "all="],
)  # fmt: skip
@pytest.mark.parametrize("path", [STOCK, MOVEMENTS, ORDERS, PAYMENTS, SALES, "/admin/locks/", "/admin/"])
def test_an_odd_address_is_answered(admin_client: Client, redis: Redis, path: str, query: str) -> None:
    on_sale({"a": 10})
    admin_client.raise_request_exception = False
    assert admin_client.get(f"{path}?{query}").status_code in (200, 302, 400)


@pytest.mark.parametrize("path", ["shop/order/x/change/", "shop/sale/x/change/", "inventory/stockitem/_2F/change/"])
def test_what_is_not_there_leads_back_with_a_message(admin_client: Client, redis: Redis, path: str) -> None:
    response = admin_client.get(f"/admin/{path}", follow=True)
    assert response.redirect_chain[-1] == ("/admin/", 302)
    assert "doesn’t exist" in messages(response.content.decode())


@pytest.mark.parametrize(
    "path",
    ["shop/", "inventory/", "auth/", "password_change/", "shop/sale/add/", "shop/product/add/", "auth/user/add/",
     "auth/group/add/", "inventory/stockitem/add/"],
)  # fmt: skip
def test_every_page_that_a_link_leads_to_is_there(admin_client: Client, redis: Redis, path: str) -> None:
    get(admin_client, f"/admin/{path}")


def test_nothing_is_loaded_from_elsewhere(admin_client: Client, redis: Redis) -> None:
    for path in ("/admin/", STOCK, MOVEMENTS, ORDERS, PAYMENTS, SALES, "/admin/locks/"):
        loaded = re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="([^"]+)"', get(admin_client, path))
        assert [address for address in loaded if not address.startswith(("/", "data:"))] == []
        assert len([address for address in loaded if "htmx" in address]) == 1
