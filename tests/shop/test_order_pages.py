"""Order pages, as the customer sees them: list, states, timeline, paying, cancelling."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags
from redis import Redis

from shop.admin.recording import BY_OPERATOR
from shop.models import Order, Payment, Product, Sale, UnmatchedReport
from shop.orders import payments
from shop.orders.customer_changes import cancel_order, pay_order
from shop.orders.expiry import expire_unpaid
from shop.orders.payments import receive_payment
from shop.orders.queued import save_queued
from shop.orders.returns import receive_chargeback, return_order
from shop.payments.request import PaymentRequest
from tests.factories import OnSale, close_now, new_customer, on_sale
from tests.shop.conftest import Gone, assert_conserved, buy, logged_in, make_due, state

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

PAGE = "https://pay.example/pay/"


@pytest.fixture
def client(customer: int) -> Client:
    """A client of the logged-in customer."""
    return logged_in(customer)


@pytest.fixture
def offer(redis: Redis) -> OnSale:
    return on_sale({"a": 5, "b": 5}, price="9.90")


@pytest.fixture
def order(offer: OnSale, customer: int) -> UUID:
    """A pending order of two units of a."""
    return buy(offer, customer, a=2).order.pk


@pytest.fixture
def with_provider(settings: Any) -> None:
    settings.PAYMENT_SECRET, settings.PAYMENT_PAGE = "shared", PAGE


def shown(client: Client, order: UUID, query: str = "", **headers: str) -> str:
    """Return the text of an order page."""
    response = client.get(f"/orders/{order}/{query}", headers=headers)
    assert response.status_code == 200, response.status_code
    return response.content.decode()


def words(page: str) -> str:
    """Return the visible text of a page's main part."""
    return re.sub(r"\s+", " ", strip_tags(page.partition("<main")[2]))


def events(page: str) -> list[str]:
    """Return the events that the timeline shows."""
    return re.findall(r"<li[^>]*><b>(.*?)</b>", page.partition('class="events"')[2])


# The list


def test_the_list_has_twenty_orders_to_a_page_the_newest_first(client: Client, customer: int) -> None:
    offer = on_sale({"a": 100})
    made = sorted(buy(offer, customer, a=1).order.pk for _ in range(23))  # Ids of one millisecond may be in any order.
    buy(offer, new_customer(), a=1)
    first = client.get("/orders/").content.decode()
    linked = [UUID(each) for each in re.findall(r'href="/orders/([0-9a-f-]{36})/"', first)]
    assert linked == made[:2:-1]
    older = client.get(re.search(r'href="(/orders/\?before=[^"]+)"', first)[1]).content.decode()
    assert [UUID(each) for each in re.findall(r'href="/orders/([0-9a-f-]{36})/"', older)] == made[2::-1]
    assert "before=" not in older


def test_the_list_tells_sale_items_total_state_and_time_left(client: Client, order: UUID, customer: int) -> None:
    text = words(client.get("/orders/").content.decode())
    for part in ("Sale by guarded-update", "2 × A", "19.80 EUR", "Not paid yet", "14 minutes left to pay"):
        assert part in text
    pay_order(order, customer=customer)
    text = words(client.get("/orders/").content.decode())
    assert ("Paid" in text, "left to pay" in text) == (True, False)


def test_the_list_costs_the_same_number_of_queries_however_long_it_is(
    client: Client, customer: int, offer: OnSale, django_assert_num_queries: Any
) -> None:
    for _ in range(2):
        buy(offer, customer, a=1, b=1)
    with django_assert_num_queries(5):  # The queries read session, user, orders, items and clock.
        client.get("/orders/")


@pytest.mark.parametrize("cursor", ["x", "1", "../", "%00"])
def test_a_wrong_page_of_the_list_is_not_found(client: Client, cursor: str) -> None:
    assert client.get(f"/orders/?before={cursor}").status_code == 404


def test_who_is_not_logged_in_logs_in_first(order: UUID) -> None:
    for path in ("/orders/", f"/orders/{order}/", f"/orders/{order}/pay/", f"/orders/{order}/cancel/"):
        answer = Client().get(path)
        assert (answer.status_code, answer.headers["Location"]) == (302, f"/account/login/?next={path}")
        assert answer.headers["Cache-Control"] == "private, no-store"
    assert Client().post(f"/orders/{order}/cancel/").status_code == 302
    assert state(order) == "pending"


def test_nobody_keeps_a_copy(client: Client, order: UUID) -> None:
    for path, status in (("/orders/", 200), (f"/orders/{order}/", 200), (f"/orders/{uuid4()}/", 404)):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["Cache-Control"]) == (status, "private, no-store")
    assert "no-store" not in client.get("/").headers.get("Cache-Control", ""), "the negative control"


# States


def test_an_order_of_somebody_else_is_not_found(order: UUID) -> None:
    other = logged_in(new_customer())
    for send, verb in ((other.get, ""), (other.post, "pay/"), (other.post, "cancel/")):
        answer = send(f"/orders/{order}/{verb}")
        assert answer.status_code == 404
        assert "You have no such order." in answer.content.decode()
    assert state(order) == "pending"


def test_a_pending_order_tells_how_long_and_what_to_do(client: Client, order: UUID, settings: Any) -> None:
    page = shown(client, order)
    text = words(page)
    for part in ("Reserved: pay in time to keep it", "14 minutes left to pay", "Pay 19.80 EUR", "Cancel the order"):
        assert part in text
    assert events(page) == ["Placed", "Saved"]
    left = int(re.search(r'data-left="(\d+)"', page)[1])
    # The page was made before now, so it shows at least the time that is left now, even on a slow machine.
    until = Order.objects.get().payable_from + timedelta(seconds=settings.ORDER_TTL)
    assert (until - timezone.now()) // timedelta(milliseconds=1) <= left <= 1000 * settings.ORDER_TTL
    assert 'data-poll="0"' in page
    assert 'data-poll="2"' in shown(client, order, "?from_provider=1")


def test_an_order_whose_time_is_over_looks_again_until_it_expires(client: Client, order: UUID) -> None:
    make_due()
    page = shown(client, order)
    assert "The time to pay is over" in words(page)
    assert 'data-poll="2"' in page
    expire_unpaid()
    page = shown(client, order)
    assert events(page) == ["Placed", "Saved", "Expired"]
    assert 'data-poll="0"' in page
    assert "To the sale" in words(page)


def test_a_queued_order_looks_again_until_it_is_saved(client: Client, customer: int) -> None:
    order = buy(on_sale({"a": 2}, strategy="lua-queue"), customer, a=1).order.pk
    page = shown(client, order)
    assert "In the queue, place 1" in words(page)
    assert (events(page), 'data-poll="2"' in page) == (["Placed", "Queued"], True)
    assert f'<a class="button quiet" href="/orders/{order}/">Look again</a>' in page
    early = client.post(f"/orders/{order}/cancel/")
    assert (early.status_code, "not saved yet" in early.content.decode()) == (409, True)
    save_queued()
    page = shown(client, order)
    assert (events(page), 'data-poll="0"' in page) == (["Placed", "Queued", "Saved"], True)


def test_a_rejected_order_says_why(client: Client, customer: int) -> None:
    offer = on_sale({"a": 2}, strategy="lua-queue")
    order = buy(offer, customer, a=1).order.pk
    close_now(offer)
    save_queued()
    page = shown(client, order)
    assert events(page) == ["Placed", "Queued", "Rejected"]
    assert "The sale was closed or postponed before the order was saved." in words(page)
    assert "活动已经关闭或推迟" in shown(client, order, accept_language="zh-CN")


def test_a_lost_order_is_looked_for_and_then_says_so(
    client: Client, customer: int, redis: Redis, settings: Any
) -> None:
    order = buy(on_sale({"a": 2}, strategy="lua-queue"), customer, a=1).order.pk
    redis.flushall()
    assert "Looking for your order" in shown(client, order)
    settings.RECONCILE_GRACE = 0
    page = shown(client, order)
    assert "The shop has lost this order" in words(page)
    assert events(page) == ["Placed", "Lost"]
    assert [client.post(f"/orders/{order}/{change}/").status_code for change in ("pay", "cancel")] == [409, 409]


def test_while_redis_is_away_a_saved_order_is_shown_and_another_one_asks_to_come_again(
    client: Client, order: UUID, redis_gone: Gone
) -> None:
    with redis_gone():
        assert "Reserved: pay in time to keep it" in shown(client, order)
        away = client.get(f"/orders/{uuid4()}/")
    assert (away.status_code, away.headers["Retry-After"]) == (503, "2")


def test_a_free_order_is_paid(client: Client, customer: int) -> None:
    order = buy(on_sale({"a": 1}, price="0"), customer, a=1).order.pk
    page = shown(client, order)
    assert events(page) == ["Placed", "Saved", "Paid"]
    assert "The order is free." in page


# The timeline


def test_returned_units_and_their_money_are_in_the_time_line(client: Client, order: UUID, with_provider: None) -> None:
    receive_payment("pay_1", order=order, amount=Order.objects.get(pk=order).total)
    operator = new_customer()
    return_order(order, by=operator, returned={"a": 1})
    page = shown(client, order)
    assert events(page) == ["Placed", "Saved", "Paid", "Units returned", "9.90 EUR to be refunded"]
    assert "19.80 EUR, reference pay_1." in page
    assert "1 returned" in words(page)
    payments.mark_refunded(Payment.objects.get().refunds.get().pk, by=operator)
    assert events(shown(client, order))[-2:] == ["9.90 EUR to be refunded", "9.90 EUR sent back to you"]
    receive_chargeback("cb_1", payment="pay_1", amount=Order.objects.get(pk=order).total / 2)
    page = shown(client, order)
    assert "All units were returned" in words(page)
    assert events(page)[-1] == "9.90 EUR taken back by the payment provider"
    assert_conserved()


@pytest.mark.parametrize(
    ("language", "says"), [("en", "19.80 EUR, recorded by the shop."), ("zh-CN", "19.80 EUR，由商店登记。")]
)
def test_a_payment_without_a_reference_of_the_provider_is_recorded_by_the_shop(
    client: Client, order: UUID, language: str, says: str
) -> None:
    receive_payment(f"{BY_OPERATOR}{order}", order=order, amount=Order.objects.get(pk=order).total)
    page = shown(client, order, accept_language=language)
    assert (says in page, BY_OPERATOR in page) == (True, False)


def test_a_second_payment_stands_at_its_time(client: Client, order: UUID, with_provider: None) -> None:
    total = Order.objects.get(pk=order).total
    for reference in ("pay_1", "pay_2"):
        receive_payment(reference, order=order, amount=total)
    return_order(order, by=new_customer())
    assert events(shown(client, order)) == [
        *("Placed", "Saved", "Paid", "Units returned"),
        *("A payment of 19.80 EUR arrived and is refunded to you", "19.80 EUR to be refunded"),
        "19.80 EUR to be refunded",
    ]


# Pay and cancel


def test_in_a_shop_without_a_provider_the_buyers_word_pays(client: Client, order: UUID) -> None:
    assert "no money moves" in shown(client, order)
    answer = client.post(f"/orders/{order}/pay/")
    assert (answer.status_code, answer.headers["Location"]) == (302, f"/orders/{order}/")
    assert state(order) == "paid"
    page = shown(client, order)
    assert "19.80 EUR, marked as paid by you; no money moved." in page
    assert "Print the receipt" in page


@pytest.mark.parametrize("secret", ["", "shared"])
def test_a_shop_that_cannot_take_money_says_so(client: Client, order: UUID, settings: Any, secret: str) -> None:
    settings.PAYMENT_SECRET, settings.PAY_WITHOUT_PROVIDER = secret, bool(secret)
    page = shown(client, order)
    assert ("no payment provider yet" in page, f"/orders/{order}/pay/" in page) == (True, False)
    answer = client.post(f"/orders/{order}/pay/")
    assert (answer.status_code, "no payment provider yet" in answer.content.decode()) == (409, True)
    assert state(order) == "pending"


def test_pay_leads_to_the_provider_with_a_signed_request(client: Client, order: UUID, with_provider: None) -> None:
    answer = client.post(f"/orders/{order}/pay/", headers={"accept-language": "zh-CN"})
    assert answer.headers["Location"].startswith(f"{PAGE}?")
    asked = PaymentRequest.read(urlsplit(answer.headers["Location"]).query, "shared")
    placed = Order.objects.get(pk=order)
    assert asked == PaymentRequest(
        order=order,
        amount=placed.total,
        currency="EUR",
        pay_by=placed.payable_from + timedelta(seconds=900),
        back=f"http://testserver/orders/{order}/?from_provider=1",
        language="zh-hans",
    )
    assert (state(order), Payment.objects.count()) == ("pending", 0), "only a report pays it"


@pytest.mark.parametrize(
    ("end", "verb", "says", "ended"),
    [(cancel_order, "pay", "there is nothing to pay", "cancelled"), (pay_order, "cancel", "was changed", "paid")],
    ids=["cancelled", "paid"],
)
def test_an_order_that_has_ended_is_not_changed(
    client: Client, order: UUID, customer: int, settings: Any, end: Any, verb: str, says: str, ended: str
) -> None:
    end(order, customer=customer)
    settings.PAYMENT_SECRET, settings.PAYMENT_PAGE = "shared", PAGE
    answer = client.post(f"/orders/{order}/{verb}/")
    assert (answer.status_code, says in answer.content.decode(), state(order)) == (409, True, ended)


def test_a_form_needs_its_token_and_a_get_changes_nothing(order: UUID, customer: int) -> None:
    client = logged_in(customer, enforce_csrf_checks=True)
    for verb in ("pay", "cancel"):
        assert client.post(f"/orders/{order}/{verb}/").status_code == 403
        assert client.get(f"/orders/{order}/{verb}/").headers["Location"] == f"/orders/{order}/"
    assert state(order) == "pending"
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', shown(client, order))[1]
    assert client.post(f"/orders/{order}/cancel/", {"csrfmiddlewaretoken": token}).status_code == 302
    assert state(order) == "cancelled"


def test_unmatched_reports_stay_with_the_operator(client: Client, order: UUID) -> None:
    UnmatchedReport.objects.create(digest="0" * 64, report=str(order), reason="The order costs 19.80, not 1.00.")
    assert events(shown(client, order)) == ["Placed", "Saved"]


# Chinese


def test_the_pages_of_orders_show_chinese_names(client: Client, order: UUID) -> None:
    """A product that has another name by now keeps the name in the order."""
    Product.objects.filter(sku="a").update(name_zh="甲")
    Sale.objects.update(name_zh="特卖")
    pages, chinese = ("/orders/", f"/orders/{order}/"), {"Accept-Language": "zh-hans"}
    for path in pages:
        assert "2 × A" in client.get(path).content.decode()
        page = client.get(path, headers=chinese).content.decode()
        assert ("2 × 甲" in page, "特卖" in page) == (True, True)
    Product.objects.filter(sku="a").update(name="Other", name_zh="别的")
    for path in pages:
        page = client.get(path, headers=chinese).content.decode()
        assert ("2 × A" in page, "别的" in page) == (True, False)
