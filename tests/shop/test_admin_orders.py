"""Orders and sales in the admin: timeline, search, export, figures, and extending a sale."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inventory.strategies import registry
from shop.admin import order_export, strategy_help
from shop.models import Ending, Order, Product, Sale
from shop.orders import payments
from shop.orders.customer_changes import cancel_order
from shop.orders.expiry import expire_unpaid
from shop.orders.queued import save_queued
from shop.sales import lifecycle
from tests.docs.pages import PAGES
from tests.factories import new_customer, on_sale
from tests.shop.conftest import buy, make_due, raising
from tests.shop.test_admin import ORDERS, SALES, bought, get, many_orders, post, rows, run_action, text

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


def test_no_cell_is_a_formula(admin_client: Client) -> None:
    order = bought(on_sale({"a": 9}), a=1)
    for name in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", 'a"b, c\nd', "plain"):
        Sale.objects.update(name=name)
        User.objects.filter(pk=order.customer_id).update(username=name)
        (row,) = exported(admin_client)
        neutral = name if name[0] not in "=+-@\t" else f"'{name}"
        assert (row["sale"], row["customer"]) == (neutral, neutral)


def test_without_the_quote_a_cell_is_a_formula(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the quote, a spreadsheet evaluates the cell as a formula."""
    monkeypatch.setattr(order_export, "FORMULA", ("\0",))
    bought(on_sale({"a": 9}), a=1)
    Sale.objects.update(name="=1+1")
    assert exported(admin_client)[0]["sale"] == "=1+1"


def test_the_export_reads_in_batches_and_misses_none(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_export, "BATCH", 10)
    offer = on_sale({"a": 100})
    many_orders(offer, "a", 35)
    response: Any = admin_client.get(f"{ORDERS}export/")
    chunks = iter(response.streaming_content)
    next(chunks), next(chunks)
    bought(offer, a=1)  # Too late for the export.
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
    monkeypatch.setattr(order_export, "BATCH", 10)
    many_orders(on_sale({"a": 100}), "a", 35)
    response: Any = admin_client.get(f"{ORDERS}export/")
    chunks = iter(response.streaming_content)
    next(chunks), next(chunks)
    monkeypatch.setattr(order_export, "cells", raising(error))
    assert [chunk.decode().strip('"').partition(":")[0] for chunk in chunks] == ["INCOMPLETE"]


def test_only_who_may_see_orders_exports_them(staff: Callable[..., Client]) -> None:
    assert staff("view_sale").get(f"{ORDERS}export/").status_code == 403
    assert staff("view_order").get(f"{ORDERS}export/").status_code == 200
    assert staff("view_order").post(f"{ORDERS}export/").status_code == 405


def test_only_who_may_see_payments_exports_their_references(staff: Callable[..., Client]) -> None:
    pay(bought(on_sale({"a": 1}), a=1), "provider-4711")
    assert exported(staff("view_order", "view_payment"))[0]["references"] == "provider-4711"
    (row,) = exported(staff("view_order"))
    assert "references" not in row
    assert "provider-4711" not in row.values()
    # Nor does the search tell whether a reference exists.
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
    assert "Refunded admin" in entries


def test_the_time_line_of_an_order_that_ended(admin_client: Client) -> None:
    offer = on_sale({"a": 9})
    expired, cancelled, by_operator = (bought(offer, a=1) for _ in range(3))
    make_due(expired.pk)
    expire_unpaid()
    cancel_order(cancelled.pk, customer=cancelled.customer_id)
    run_action(admin_client, ORDERS, "cancel", by_operator.pk)
    assert time_line(admin_client, expired)[-1].startswith("Expired . It was not paid in time")
    assert time_line(admin_client, cancelled)[-1] == f"Cancelled {cancelled.customer}"
    assert time_line(admin_client, by_operator)[1:] == ["Cancelled admin"], "once, though the history has it, too"
    Ending.objects.all().delete()  # An earlier version of the shop has ended the orders.
    assert time_line(admin_client, expired)[-1].startswith("– Expired . It was not paid in time")
    assert time_line(admin_client, cancelled)[-1] == f"– Cancelled {cancelled.customer}"
    assert time_line(admin_client, by_operator)[1:] == ["Cancelled admin"]


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
    for state, offer in sales.items():
        Sale.objects.filter(pk=offer.sale).update(name=state)
    for state in sales:
        found = rows(get(admin_client, SALES, state=state))
        assert [row["state"].replace("to come", "coming") for row in found.values()] == [state]
        assert list(found) == [state]


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
    for wrong in ("0", "-1", "x", "9999999"):
        extend(admin_client, offer.sale, wrong)
    assert Sale.objects.get().closes_at == before + timedelta(minutes=15)


def test_a_sale_is_not_extended_beyond_the_last_year(admin_client: Client) -> None:
    offer = on_sale({"a": 10})
    last = datetime.max.replace(microsecond=0, tzinfo=UTC)
    Sale.objects.update(closes_at=last)
    assert "was not extended. It would close after the year 9999." in extend(admin_client, offer.sale, "15")
    assert Sale.objects.get().closes_at == last


def test_a_form_that_is_sent_twice_extends_a_sale_once(admin_client: Client) -> None:
    offer = on_sale({"a": 1})
    before = Sale.objects.get().closes_at
    form = {"minutes": "15", "shown": before.isoformat()}
    post(admin_client, f"{SALES}{offer.sale}/extend/", form)
    assert "has changed since the page was opened" in post(admin_client, f"{SALES}{offer.sale}/extend/", form)
    assert Sale.objects.get().closes_at == before + timedelta(minutes=15)


def test_a_sale_that_is_over_opens_again_and_takes_orders(admin_client: Client) -> None:
    offer = on_sale({"a": 1}, strategy="lua")
    lifecycle.close(offer.sale)
    extend(admin_client, offer.sale, "15")
    left = Sale.objects.get().closes_at - timezone.now()
    assert timedelta(minutes=14) < left <= timedelta(minutes=15)
    lifecycle.advance()
    assert bought(offer, a=1).state == "pending"


def test_a_sale_is_not_extended_into_the_next_one_of_the_same_product(admin_client: Client) -> None:
    offer = on_sale({"a": 1})
    on_sale({"a": 0}, opens=timedelta(hours=1, minutes=5), closes=timedelta(hours=2))
    before = Sale.objects.get(pk=offer.sale).closes_at
    assert "at the same time" in extend(admin_client, offer.sale, "15")
    assert Sale.objects.get(pk=offer.sale).closes_at == before


def test_the_form_helps_to_choose_a_strategy(admin_client: Client) -> None:
    page = text(get(admin_client, f"{SALES}add/"))
    assert "group-commit : you have no reason for another one (the default)" in page
    assert set(strategy_help.CHOOSE_WHEN) == set(registry.STRATEGIES)


def test_the_help_is_that_of_the_readme() -> None:
    table = PAGES["README.md"].partition("| strategy | how it takes stock | choose it when |")[2].partition("\n\n")[0]
    told = {}
    for line in table.splitlines()[2:]:
        names, _, when = (cell.strip() for cell in line.strip("| ").split(" | "))
        told.update(dict.fromkeys(re.findall(r"`([a-z-]+)`", names), when))
    assert told == strategy_help.CHOOSE_WHEN


def test_a_page_of_sales_needs_as_many_queries_for_5_sales_as_for_1(admin_client: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as made:
            get(admin_client, SALES)
        return len(made)

    bought(on_sale({"a": 9}), a=1)
    get(admin_client, SALES)
    of_one = queries()
    for number in range(4):
        bought(on_sale({f"s{number}": 9}), **{f"s{number}": 1})
    assert queries() == of_one
    assert Product.objects.count() == 5
    assert new_customer()
