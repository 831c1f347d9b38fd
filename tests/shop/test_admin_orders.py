"""Orders and sales in the admin: timeline, search, export, figures, extending a sale, buttons, and dead letters."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis import Redis

from inventory.queue.dead_letters import DEAD_LETTERS, DeadLetters
from inventory.strategies import registry
from shop.admin import order_export, strategy_help
from shop.models import Ending, Order, Sale
from shop.orders import payments
from shop.orders.customer_changes import cancel_order
from shop.orders.expiry import expire_unpaid
from shop.orders.queued import save_queued
from shop.overview import document
from shop.sales import lifecycle
from tests.docs.pages import PAGES
from tests.factories import on_sale
from tests.shop.conftest import Gone, assert_conserved, buy, make_due, on_hand, raising, state
from tests.shop.test_admin import ORDERS, SALES, WHY, bought, get, many_orders, post, rows, run_action, text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def exported(client: Client, **query: str) -> list[dict[str, str]]:
    response: Any = client.get(f"{ORDERS}export/", query)
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert "orders.csv" in response.headers["Content-Disposition"]
    return list(csv.DictReader(io.StringIO(b"".join(response.streaming_content).decode())))


def pay(order: Order, reference: str = "pay-1") -> None:
    payments.receive_payment(reference, order=order.pk, amount=order.total)


def test_an_order_is_found_by_its_id_customer_key_or_reference(admin_client: Client) -> None:
    offer = on_sale({"a": 5, "b": 5}, price="2.50")
    mine, other = bought(offer, a=2, b=1), bought(offer, a=1)
    pay(mine, "provider-4711")
    pay(mine, "provider-4711-again")
    for query in (str(mine.pk), str(mine.pk)[-12:], str(mine.customer), mine.key, "provider-4711"):
        assert list(rows(get(admin_client, ORDERS, q=query))) == [str(mine.pk)], query
        assert [row["id"] for row in exported(admin_client, q=query)] == [str(mine.pk)], query
    found = rows(get(admin_client, ORDERS))
    assert list(found) == [str(other.pk), str(mine.pk)]
    fields = ("sale", "ordered", "total_label", "state_label")
    shown = ["Sale by guarded-update", "2 × A, 1 × B", "7.50 EUR", "paid"]
    assert [found[str(mine.pk)][field] for field in fields] == shown


def test_the_export_has_the_orders_of_the_filtered_list(admin_client: Client) -> None:
    offer = on_sale({"a": 9, "b": 9}, price="2.50")
    paid, pending = bought(offer, a=2, b=1), bought(offer, a=1)
    pay(paid)
    page = get(admin_client, ORDERS, state__exact="paid")
    link = re.search(r'href="(export/[^"]*)"', page)
    assert link is not None
    assert "state__exact=paid" in link[1]
    assert "Export 1 order as CSV" in text(page)
    (row,) = exported(admin_client, state__exact="paid")
    assert row == {
        "id": str(paid.pk), "customer": str(paid.customer), "sale": "Sale by guarded-update", "state": "paid",
        "placed": f"{paid.created_at:%Y-%m-%d %H:%M:%S}", "ended": "", "ended_by": "",
        "products": "2 × A; 1 × B", "total": "7.50", "currency": "EUR", "references": "pay-1",
        "key": paid.key, "reason": "",
    }  # fmt: skip
    assert [each["id"] for each in exported(admin_client)] == [str(pending.pk), str(paid.pk)]
    assert exported(admin_client, state__exact="expired") == []


def test_no_cell_is_a_formula(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the quote, a spreadsheet evaluates the cell as a formula."""
    order = bought(on_sale({"a": 9}), a=1)
    for name in ("plain", 'a"b, c\nd', "+1", "-1", "@SUM(A1)", "\t=1", "=1+1"):
        Sale.objects.update(name=name)
        User.objects.filter(pk=order.customer_id).update(username=name)
        (row,) = exported(admin_client)
        neutral = name if name[0] not in "=+-@\t" else f"'{name}"
        assert (row["sale"], row["customer"]) == (neutral, neutral)
    monkeypatch.setattr(order_export, "FORMULA", ("\0",))
    assert exported(admin_client)[0]["sale"] == "=1+1"


def begun_export(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """Begin to export 35 orders in batches of 10. Return the parts after the heading and the first batch."""
    monkeypatch.setattr(order_export, "BATCH", 10)
    many_orders(on_sale({"a": 100}), "a", 35)
    response: Any = client.get(f"{ORDERS}export/")
    chunks = iter(response.streaming_content)
    next(chunks), next(chunks)
    return chunks


def test_the_export_reads_in_batches_and_misses_none(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = begun_export(admin_client, monkeypatch)
    bought(on_sale({"b": 1}), b=1)  # Too late for the export.
    with CaptureQueriesContext(connection) as queries:
        rest = [*chunks]
    assert [chunk.count(b"\n") for chunk in rest] == [10, 10, 5]
    assert len(queries) == 4, "the last one finds no more"


@pytest.mark.parametrize(
    "error", [OperationalError("the server has gone"), InterfaceError("closed"), ValueError("a bug")]
)
def test_an_export_that_ends_early_says_so(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    chunks = begun_export(admin_client, monkeypatch)
    monkeypatch.setattr(order_export, "cells", raising(error))
    assert [chunk.decode().strip('"').partition(":")[0] for chunk in chunks] == ["INCOMPLETE"]


def test_an_export_has_what_the_operator_may_see(staff: Callable[..., Client]) -> None:
    assert staff("view_sale").get(f"{ORDERS}export/").status_code == 403
    assert staff("view_order").post(f"{ORDERS}export/").status_code == 405
    pay(bought(on_sale({"a": 1}), a=1), "provider-4711")
    assert exported(staff("view_order", "view_payment"))[0]["references"] == "provider-4711"
    (row,) = exported(staff("view_order"))
    assert "references" not in row
    assert "provider-4711" not in row.values()
    # The search does not reveal a reference, either.
    assert len(exported(staff("view_order", "view_payment"), q="provider-4711")) == 1
    assert exported(staff("view_order"), q="provider-4711") == []


def time_line(client: Client, order: Order) -> list[str]:
    page = get(client, f"{ORDERS}{order.pk}/change/").partition("Timeline")[2]
    entries = re.findall(r"<li.*?</li>", page.partition("</ol>")[0], re.DOTALL)
    return [re.sub(r"^\S+ \d\d:\d\d:\d\d ", "", text(entry)) for entry in entries]


def test_the_time_line_says_who_and_why(admin_client: Client) -> None:
    offer = on_sale({"a": 9}, price="2.00")
    order = bought(offer, a=2)
    pay(order)
    pay(order, "pay-2")
    run_action(admin_client, ORDERS, "refund_orders", order.pk)
    name = str(order.customer)
    entries = time_line(admin_client, order)
    assert entries[0] == f"Placed {name}"
    assert entries[1].startswith("Paid 4.00 EUR, reference pay-1")
    assert entries[1].endswith("payment provider")
    assert any(each.startswith("A payment to refund: 4.00 EUR, reference pay-2 . The order is already paid.")
               for each in entries)  # fmt: skip
    assert any(re.match(r"Refund of 4.00 EUR due.* admin$", each) for each in entries)
    assert f"Refunded . {WHY} admin" in entries


def test_the_time_line_of_an_order_that_ended(admin_client: Client) -> None:
    offer = on_sale({"a": 9})
    expired, cancelled, by_operator = (bought(offer, a=1) for _ in range(3))
    make_due(expired.pk)
    expire_unpaid()
    cancel_order(cancelled.pk, customer=cancelled.customer_id)
    run_action(admin_client, ORDERS, "cancel", by_operator.pk)
    assert time_line(admin_client, expired)[-1].startswith("Expired . It was not paid in time")
    assert time_line(admin_client, cancelled)[-1] == f"Cancelled {cancelled.customer}"
    once = [f"Cancelled . {WHY} admin"]
    assert time_line(admin_client, by_operator)[1:] == once, "once, though the history has it, too"
    Ending.objects.all().delete()  # As if an earlier version of the shop had ended the orders.
    assert time_line(admin_client, expired)[-1].startswith("– Expired . It was not paid in time")
    assert time_line(admin_client, cancelled)[-1] == f"– Cancelled {cancelled.customer}"
    assert time_line(admin_client, by_operator)[1:] == once


def test_the_time_line_of_a_queued_order(admin_client: Client) -> None:
    offer = on_sale({"a": 9}, strategy="lua-queue")
    buy(offer, a=1)
    save_queued()
    assert time_line(admin_client, Order.objects.get())[1] == "Saved from the queue worker"


def test_the_list_of_sales_shows_sold_left_and_revenue(admin_client: Client) -> None:
    offer = on_sale({"a": 9, "b": 4}, price="2.50")
    paid, _pending, cancelled = bought(offer, a=2, b=1), bought(offer, a=1), bought(offer, a=1)
    pay(paid)
    cancel_order(cancelled.pk, customer=cancelled.customer_id)
    row = rows(get(admin_client, SALES))["Sale by guarded-update"]
    assert (row["sold"], row["left"], row["revenue"]) == ("4", "9", "7.50 EUR")


def test_sales_are_filtered_by_their_state(admin_client: Client) -> None:
    sales = {
        "coming": on_sale({"a": 1}, opens=timedelta(hours=2), closes=timedelta(hours=3)),
        "over": on_sale({"b": 1}, opens=timedelta(hours=-3), closes=timedelta(hours=-2)),
        "open": on_sale({"c": 1}),
        "paused": on_sale({"d": 1}),
    }
    lifecycle.pause(sales["paused"].sale)
    for name, offer in sales.items():
        Sale.objects.filter(pk=offer.sale).update(name=name)
    for name in sales:
        found = rows(get(admin_client, SALES, state=name))
        assert [row["state"].replace("to come", "coming") for row in found.values()] == [name]
        assert list(found) == [name]


def extend(client: Client, sale: int, minutes: str) -> str:
    link = f"{SALES}{sale}/extend/"
    shown = re.search(r'name="shown" value="([^"]*)"', get(client, link))
    assert shown is not None
    return post(client, link, {"minutes": minutes, "shown": shown[1]})


def test_a_sale_gets_more_time(admin_client: Client) -> None:
    offer = on_sale({"a": 1})
    before = Sale.objects.get().closes_at
    assert "is open until" in extend(admin_client, offer.sale, "15")
    assert Sale.objects.get().closes_at == before + timedelta(minutes=15)
    assert LogEntry.objects.latest("pk").change_message.startswith("Extended until ")
    again = post(admin_client, f"{SALES}{offer.sale}/extend/", {"minutes": "15", "shown": before.isoformat()})
    assert "has changed since the page was opened" in again
    for wrong in ("0", "-1", "x", "9999999"):
        extend(admin_client, offer.sale, wrong)
    assert Sale.objects.get().closes_at == before + timedelta(minutes=15)


def test_a_sale_that_is_over_opens_again_and_takes_orders(admin_client: Client) -> None:
    offer = on_sale({"a": 1}, strategy="lua")
    lifecycle.close(offer.sale)
    extend(admin_client, offer.sale, "15")
    left = Sale.objects.get().closes_at - timezone.now()
    assert timedelta(minutes=14) < left <= timedelta(minutes=15)
    lifecycle.advance()
    assert bought(offer, a=1).state == "pending"


def test_a_sale_is_not_extended_into_the_next_one_or_beyond_the_last_year(admin_client: Client) -> None:
    offer = on_sale({"a": 1})
    on_sale({"a": 0}, opens=timedelta(hours=1, minutes=5), closes=timedelta(hours=2))
    last = datetime.max.replace(microsecond=0, tzinfo=UTC)
    for closes_at, said in (
        (Sale.objects.get(pk=offer.sale).closes_at, "at the same time"),
        (last, "was not extended. It would close after the year 9999."),
    ):
        Sale.objects.filter(pk=offer.sale).update(closes_at=closes_at)
        assert said in extend(admin_client, offer.sale, "15")
        assert Sale.objects.get(pk=offer.sale).closes_at == closes_at


def test_the_form_helps_to_choose_a_strategy_as_the_readme_does(admin_client: Client) -> None:
    page = text(get(admin_client, f"{SALES}add/"))
    assert "group-commit : you have no reason for another one (the default)" in page
    assert set(strategy_help.CHOOSE_WHEN) == set(registry.STRATEGIES)
    table = PAGES["README.md"].partition("| strategy | how it takes stock | choose it when |")[2].partition("\n\n")[0]
    told = {}
    for line in table.splitlines()[2:]:
        names, _, when = (cell.strip() for cell in line.strip("| ").split(" | "))
        told.update(dict.fromkeys(re.findall(r"`([a-z-]+)`", names), when))
    assert told == strategy_help.CHOOSE_WHEN


# Buttons do the same as the list actions, after a confirmation


def offered(client: Client, path: str) -> set[str]:
    page = get(client, f"{path}change/")
    return {name for name in ("preheat", "close", "cancel", "refund-items") if f"{path}{name}" in page}


@pytest.mark.parametrize(
    ("opens", "closes", "buttons"),
    [(1, 2, {"preheat"}), (-1, 1, {"preheat", "close"}), (-2, -1, set())],
    ids=["to come", "open", "over"],
)
def test_the_page_of_a_sale_offers_what_can_be_done_with_it(
    admin_client: Client, staff: Callable[..., Client], opens: int, closes: int, buttons: set[str]
) -> None:
    offer = on_sale({"a": 1}, opens=timedelta(hours=opens), closes=timedelta(hours=closes))
    page = f"{SALES}{offer.sale}/"
    assert offered(admin_client, page) == buttons
    assert offered(staff("view_sale"), page) == set()


@pytest.mark.parametrize("paused", [False, True])
def test_close_now_closes_the_sale_when_it_is_confirmed(admin_client: Client, redis: Redis, paused: bool) -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    buy(offer, a=1)
    if paused:
        lifecycle.pause(offer.sale)
    page = f"{SALES}{offer.sale}/close/"
    assert "takes no more orders" in get(admin_client, page)
    assert admin_client.put(page).status_code == 200
    assert Sale.objects.get().closes_at > timezone.now(), "only the form closes it"
    assert LogEntry.objects.count() == 0
    assert "Sale by lua is closed." in post(admin_client, page, {})
    assert Sale.objects.get().closes_at <= timezone.now()
    assert redis.exists("{stock}:counter:a") == 0
    assert LogEntry.objects.get().change_message == "Closed."
    assert "was not closed: it is over." in post(admin_client, page, {})
    assert LogEntry.objects.count() == 1
    assert_conserved()


def test_preheat_loads_the_stock_when_it_is_confirmed(admin_client: Client) -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    Sale.objects.update(preheated_at=None)
    page = f"{SALES}{offer.sale}/preheat/"
    get(admin_client, page)
    assert not Sale.objects.get().is_loaded
    assert "Sale by lua is preheated." in post(admin_client, page, {})
    assert Sale.objects.get().is_loaded
    assert LogEntry.objects.get().change_message == "Preheated."


def test_only_a_pending_order_is_cancelled_and_with_a_reason(admin_client: Client) -> None:
    order = bought(on_sale({"a": 3}), a=2)
    page = f"{ORDERS}{order.pk}/"
    assert offered(admin_client, page) == {"cancel"}
    assert ">Cancel order</button>" in admin_client.get(f"{page}cancel/").text
    another = bought(on_sale({"b": 1}), b=1)
    both = {"action": "cancel", "_selected_action": [str(order.pk), str(another.pk)], "index": "0"}
    assert ">Cancel orders</button>" in admin_client.post(ORDERS, both).text
    assert (state(order.pk), on_hand()[0]) == ("pending", 1)
    assert "This field is required." in post(admin_client, f"{page}cancel/", {"why": ""})
    assert (state(order.pk), on_hand()[0]) == ("pending", 1)
    assert "is cancelled." in post(admin_client, f"{page}cancel/", {"why": WHY})
    assert (state(order.pk), on_hand()[0]) == ("cancelled", 3)
    assert LogEntry.objects.get().change_message == f"Cancelled. {WHY}"
    assert offered(admin_client, page) == set()
    assert "had been cancelled before" in post(admin_client, f"{page}cancel/", {"why": WHY})
    assert on_hand()[0] == 3
    assert_conserved()
    Order.objects.update(state="paid")
    assert offered(admin_client, page) == {"refund-items"}
    assert "The order is paid." in post(admin_client, f"{page}cancel/", {"why": WHY})
    assert state(order.pk) == "paid"


# Dead letters

LETTERS = "/admin/shop/order/dead-letters/"


def letter(redis: Redis, name: str, at: str = "*") -> None:
    redis.xadd(DEAD_LETTERS, {"id": name, "request": "<b>2 of a</b>", "reason": f"no {name}"}, id=at)


def named(redis: Redis) -> list[str]:
    return [name for _, name, _, _ in DeadLetters(redis).newest()]


def test_an_operator_settles_what_the_page_has_shown(redis: Redis, staff: Callable[..., Client]) -> None:
    letter(redis, "first", "1000-0")
    letter(redis, "second", "2000-1")
    client = staff("view_order", "change_order")
    page = client.get(LETTERS).content.decode()
    assert ("no first" in page, "no second" in page, "&lt;b&gt;2 of a" in page) == (True, True, True)
    letter(redis, "third", "2000-2")
    for wrong in ({}, *({"until": until} for until in ("", "soon", "-1", "9999999999999"))):
        assert (client.post(LETTERS, wrong).status_code, named(redis)) == (200, ["third", "second", "first"]), wrong
    until = re.search(r'name="until" value="([\d-]+)"', page)
    assert client.post(LETTERS, {"until": until and until[1]}).url == "/admin/"  # type: ignore[attr-defined]
    assert named(redis) == ["third"]
    assert "2 dead letters are settled." in client.get("/admin/", follow=True).content.decode()


def test_only_who_may_change_orders_may_settle(redis: Redis, staff: Callable[..., Client]) -> None:
    letter(redis, "first")
    client = staff("view_order")
    assert client.get(LETTERS).status_code == 403
    assert client.post(LETTERS, {"until": "9999999999999-0"}).status_code == 403
    assert named(redis) == ["first"]
    document.shared = document.SharedFigures()  # Forget figures that an earlier test has read.
    pages = [reader.get("/admin/").text for reader in (client, staff("view_order", "change_order"))]
    assert [("no first" in page, "Settle them" in page) for page in pages] == [(True, False), (True, True)]


def test_while_redis_is_away_the_page_does_not_say_that_there_is_none(
    staff: Callable[..., Client], redis_gone: Gone
) -> None:
    client = staff("view_order", "change_order")
    assert "There are no dead letters" in client.get(LETTERS).text
    with redis_gone():
        assert client.get(LETTERS).url == "/admin/"  # type: ignore[attr-defined]
