"""The list of sales, the page of a sale, its live figures, the token of its script, and the form that buys."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from redis import Redis

from inventory import stock
from inventory.errors import StockBusy
from shop.clock import Clock
from shop.models import Order, OrderItem, Product, Sale, SaleItem
from shop.orders.errors import StillRunning
from shop.orders.queued import save_queued
from shop.pages import buying, now
from shop.sales import load_tests, offers
from tests.factories import OnSale, at_once, close_now, new_customer, on_sale, orders_in
from tests.shop.conftest import Gone, assert_problem, buy, logged_in, order_body, raising
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
CHINESE = {"Accept-Language": "zh-hans"}


@pytest.fixture(autouse=True)
def nothing_cached(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear cached figures, and keep new ones from expiring on a slow machine."""
    now.cache.clear()
    monkeypatch.setattr(now, "TTL", 3600.0)


def page_of(offer: OnSale, end: str = "") -> str:
    return f"/sales/{Sale.objects.get(pk=offer.sale).slug}/{end}"


# The list, and the page of a sale


def test_the_list_has_open_and_coming_sales_and_the_last_five_that_are_over(client: Client) -> None:
    for number in range(6):
        offer = on_sale({}, opens=-HOUR * (number + 2), closes=-HOUR * (number + 1))
        Sale.objects.filter(pk=offer.sale).update(name=f"Past {number:02}.")
    for name, opens in {"Later.": 2 * HOUR, "Soon.": HOUR, "Now.": -HOUR}.items():
        Sale.objects.filter(pk=on_sale({name: 1}, opens=opens, closes=3 * HOUR).sale).update(name=name)

    answer = client.get("/sales/")

    shown = re.findall(r'<a href="/sales/[0-9a-f]{8}/">(.*?)</a>', answer.text)
    assert shown == ["Now.", "Soon.", "Later.", *(f"Past {number:02}." for number in range(5))]
    assert answer.headers["Cache-Control"] == "public, s-maxage=5"
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(("opens", "closes"), [(-HOUR, HOUR), (HOUR, 2 * HOUR), (-2 * HOUR, -HOUR)])
def test_sales_of_load_tests_are_in_no_list(client: Client, opens: timedelta, closes: timedelta) -> None:
    """No page lists the sale of a load test. Control: the pages list the same sale under another slug."""
    offer = on_sale({"a": 1}, opens=opens, closes=closes)
    for slug, listed in ((f"{load_tests.SLUG_PREFIX}1", False), ("tested-load", True)):
        Sale.objects.filter(pk=offer.sale).update(slug=slug)
        assert (f'href="/sales/{slug}/"' in client.get("/sales/").text) is listed
        assert (f'href="/sales/{slug}/"' in client.get("/").text) is (listed and closes > timedelta())
        assert client.get(f"/sales/{slug}/").status_code == 200


def test_the_list_does_not_call_a_paused_or_sold_out_sale_open(client: Client) -> None:
    for name, units in {"Selling.": 3, "Empty.": 0, "Halted.": 3}.items():
        Sale.objects.filter(pk=on_sale({name: units}).sale).update(name=name)
    Sale.objects.filter(name="Halted.").update(paused_at=Now())

    text = client.get("/sales/").text
    open_now, halted = (
        text.partition(f"<h2>{title}</h2>")[2].partition("<h2>")[0] for title in ("Open now", "Paused or sold out")
    )
    assert [name in open_now for name in ("Selling.", "Empty.", "Halted.")] == [True, False, False]
    assert [(name in halted) for name in ("Selling.", "Empty.", "Halted.")] == [False, True, True]
    assert re.search("Empty.<.*?<b>Sold out</b>", halted, re.DOTALL)
    assert re.search("Halted.<.*?<b>Paused</b>", halted, re.DOTALL)
    chinese = client.get("/sales/", headers=CHINESE).text
    assert [f"<b>{word}</b>" in chinese for word in ("售罄", "已暂停")] == [True, True]


def test_figures_of_the_list_are_read_together_and_not_for_each_visitor(client: Client) -> None:
    for number in range(5):
        on_sale({f"s{number}": number})
    reading = []
    for _ in range(3):
        with CaptureQueriesContext(connection) as queries:
            client.get("/sales/")
        reading.append(sum("inventory_stockitem" in each["sql"] for each in queries))
    assert reading == [1, 0, 0]
    now.cache.clear()
    now.get(next(iter(Sale.objects.values_list("slug", flat=True))))
    slugs = [*Sale.objects.values_list("slug", flat=True)]
    with CaptureQueriesContext(connection) as queries:
        assert set(now.get_all([*slugs, "none"])) == set(slugs)
    assert sum("inventory_stockitem" in each["sql"] for each in queries) == 1


def test_the_page_shows_without_its_script_what_is_sold_out(client: Client) -> None:
    text = client.get(page_of(on_sale({"a": 0, "b": 2}))).text
    sold_out, sold = ('class="button" aria-disabled="true"', "Sold out"), ('class="button"', "Buy")
    assert re.findall(r"<button (.*?)>(.*?)</button>", text) == [sold_out, sold]


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_the_page_has_the_same_bytes_for_every_visitor_of_a_language(language: str) -> None:
    """Every visitor gets the same page, so that proxies can cache it. Negative control: pages with a form differ."""
    offer = on_sale({"a": 3}, limit=2, price="59.90")
    visitors = [Client(), logged_in(new_customer()), logged_in(new_customer())]

    pages = [each.get(page_of(offer), headers={"Accept-Language": language}) for each in visitors]

    assert len({page.content for page in pages}) == 1
    for page in pages:
        assert page.headers["Cache-Control"] == "public, s-maxage=5"
        assert page.headers["Content-Language"] == language
        assert not page.cookies
        assert "csrf" not in page.text
        assert "'unsafe-inline'" not in page.headers["Content-Security-Policy"]
    assert ("每人限购 2 件" if language != "en" else "At most 2 for each customer.") in pages[0].text
    assert "59.90 EUR" in pages[0].text

    forms = [each.get(page_of(offer, "buy/"), follow=True) for each in visitors[1:]]
    assert forms[0].content != forms[1].content
    assert all("no-store" in form.headers["Cache-Control"] for form in forms)


def test_a_page_has_no_inline_style_or_script_and_preloads_its_modules(client: Client) -> None:
    text = client.get(page_of(on_sale({"a": 3}))).text
    assert not re.search(r"\sstyle=|\son\w+=|<style", text)
    assert re.findall(r"<script[^>]*>", text) == [
        '<script type="module" src="/static/shop/sale.js">',
        '<script id="sale-data" type="application/json">',
    ]
    preloaded = re.findall(r'<link rel="modulepreload" href="/static/shop/(.*?)">', text)
    assert sorted(preloaded) == sorted(imported("sale.js", set()))


def imported(name: str, found: set[str]) -> set[str]:
    """Return the modules that a script imports, directly or not."""
    source = (Path(settings.BASE_DIR) / "shop" / "static" / "shop" / name).read_text(encoding="utf-8")
    for other in set(re.findall(r'from "\./(.*?)"', source)) - found:
        found = imported(other, found | {other})
    return found


def test_a_name_that_closes_the_script_is_escaped(client: Client) -> None:
    offer = on_sale({"a": 3})
    Sale.objects.filter(pk=offer.sale).update(name="</script><b>x")
    assert "<b>x" not in client.get(page_of(offer)).text


def test_an_unknown_sale_is_not_found(client: Client) -> None:
    for path in ("/sales/none/", "/sales/none/buy/"):
        answer = logged_in(new_customer()).get(path)
        assert (answer.status_code, "There is no sale at this address." in answer.text) == (404, True)
    assert_problem(client.get("/sales/none/now.json"), 404, "not-found")


# The live figures


def now_of(offer: OnSale, client: Client | None = None, **headers: str) -> Any:
    return (client or Client()).get(page_of(offer, "now.json"), headers=headers)


def test_the_live_figures_are_the_same_for_all_visitors() -> None:
    offer = on_sale({"a": 3, "b": 0}, limit=2, price="59.90")
    sale = Sale.objects.get(pk=offer.sale)

    answers = [now_of(offer, each, Accept_Language="zh-hans") for each in (Client(), logged_in(new_customer()))]

    assert answers[0].content == answers[1].content
    assert answers[0].headers["Cache-Control"] == "public, s-maxage=1"
    assert "Vary" not in answers[0].headers
    assert "Set-Cookie" not in answers[1].headers
    assert json.loads(answers[0].content) == {
        "sale": offer.sale,
        "state": "open",
        "paused": False,
        "opens_at": sale.opens_at.isoformat().replace("+00:00", "Z"),
        "closes_at": sale.closes_at.isoformat().replace("+00:00", "Z"),
        "currency": "EUR",
        "waiting_room": False,
        "items": [
            {"product": offer.products["a"], "price": "59.90", "limit": 2, "left": 3},
            {"product": offer.products["b"], "price": "59.90", "limit": 2, "left": 0},
        ],
    }


@pytest.mark.parametrize(
    ("opens", "closes", "units", "state"),
    [(1, 2, 3, "coming"), (-1, 1, 3, "open"), (-1, 1, 0, "sold-out"), (-2, -1, 3, "over")],
)
def test_it_tells_the_state_of_the_sale(opens: int, closes: int, units: int, state: str) -> None:
    assert now_of(on_sale({"a": units}, opens=opens * HOUR, closes=closes * HOUR)).json()["state"] == state


def test_the_state_follows_the_clock_while_the_figures_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    offer, read = on_sale({"a": 3}, opens=HOUR, closes=3 * HOUR), Clock.now
    assert now_of(offer).json()["state"] == "coming"
    monkeypatch.setattr(Clock, "now", lambda clock: read(clock) + 2 * HOUR)
    with CaptureQueriesContext(connection) as queries:
        assert now.get(next(iter(now.cache._entries))).state == "open"  # type: ignore[union-attr]
    assert len(queries) == 0


@pytest.mark.parametrize(
    ("stock_shown", "units", "left", "english", "chinese"),
    [
        ("exact", 3, 3, "3 left", "剩余 3 件"),
        ("exact", 0, 0, "Sold out", "售罄"),
        ("few", now.FEW + 1, "some", "In stock", "有货"),
        ("few", now.FEW, "few", "Few left", "所剩不多"),
        ("few", 0, 0, "Sold out", "售罄"),
        ("hidden", 3, None, "", ""),
        ("hidden", 0, 0, "Sold out", "售罄"),
    ],
)
def test_the_sale_decides_what_is_seen_of_the_units_left(
    stock_shown: str, units: int, left: Any, english: str, chinese: str
) -> None:
    offer = on_sale({"a": units})
    Sale.objects.filter(pk=offer.sale).update(stock_shown=stock_shown)
    assert now_of(offer).json()["items"][0]["left"] == left
    for headers, words in (({}, english), (CHINESE, chinese)):
        assert re.findall(r'data-shown="left">([^<]*)<', Client().get(page_of(offer), headers=headers).text) == [words]


@pytest.mark.parametrize("strategy", ["guarded-update", "unit-rows", "segmented-lock"])
def test_units_are_counted_wherever_the_strategy_keeps_them(strategy: str) -> None:
    offer = on_sale({"a": 3}, strategy=strategy)
    buy(offer, a=1)
    assert now_of(offer).json()["items"][0]["left"] == stock.on_hand("a") == 2


def test_what_has_not_changed_is_not_sent_again() -> None:
    offer = on_sale({"a": 3})
    first = now_of(offer)
    again = now_of(offer, If_None_Match=first.headers["ETag"])
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    assert again.headers["Cache-Control"] == "public, s-maxage=1"
    buy(offer, a=1)
    now.cache.clear()
    changed = now_of(offer, If_None_Match=first.headers["ETag"])
    assert (changed.status_code, changed.json()["items"][0]["left"]) == (200, 2)


@pytest.mark.parametrize("cached", [True, False])
def test_twenty_polls_read_the_tables_once(monkeypatch: pytest.MonkeyPatch, *, cached: bool) -> None:
    """Twenty polls query the tables once. Negative control: without the cache, each poll queries them."""
    if not cached:
        monkeypatch.setattr(now, "TTL", 0.0)
    path, client = page_of(on_sale({"a": 3})), Client()
    with CaptureQueriesContext(connection) as queries:
        for _ in range(20):
            assert client.get(f"{path}now.json").status_code == 200
    read = [each for each in queries if 'FROM "shop_sale"' in each["sql"]]
    assert (len(read), len(queries)) == ((1, 4) if cached else (20, 80))


def test_polls_that_find_nothing_cached_share_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    offer, readings, read = on_sale({"a": 3}), [], now.read

    def read_when_all_wait(slug: str) -> now.SaleNow | None:
        readings.append(slug)
        wait_for(lambda: now._readers.pending() == 7, "the others to wait")
        return read(slug)

    monkeypatch.setattr(now, "read", read_when_all_wait)
    slug = Sale.objects.get(pk=offer.sale).slug
    found = at_once(*[lambda: now.get(slug)] * 8)
    assert [each.sale for each in found if isinstance(each, now.SaleNow)] == [offer.sale] * 8
    assert readings == [slug]


def test_without_postgres_the_last_figures_are_shown_and_then_a_problem(postgres_gone: Gone) -> None:
    path, client = page_of(on_sale({"a": 3}), "now.json"), Client(raise_request_exception=False)
    client.get(path)
    with postgres_gone():
        assert client.get(path).status_code == 200
        now.cache.clear()
        assert_problem(client.get(path), 503, "unavailable")


# The token


def test_the_script_gets_a_token_of_an_active_customer_who_has_logged_in(customer: int) -> None:
    offer, client = on_sale({"a": 3}), logged_in(customer)
    answer = client.get("/account/token/")
    assert answer.headers["Cache-Control"] == "no-store"
    assert set(answer.json()) == {"access", "expires_in", "customer", "guest"}
    assert answer.json()["customer"] == customer
    headers = {"Authorization": f"Bearer {answer.json()['access']}", "Idempotency-Key": "one"}
    order = Client().post("/api/orders/", order_body(offer, a=1), content_type="application/json", headers=headers)
    assert (order.status_code, Order.objects.get().customer_id) == (201, customer)
    User.objects.filter(pk=customer).update(is_active=False)
    for each in (Client(), client):
        answer = each.get("/account/token/")
        assert answer.json() == {"access": None, "expires_in": 0, "customer": None, "guest": False}
        assert answer.headers["Cache-Control"] == "no-store"


# The form


def form_of(client: Client, offer: OnSale) -> dict[str, Any]:
    """Return the fields of the form that buys."""
    return fields_of(client.get(page_of(offer, "buy/"), follow=True))


def fields_of(answer: Any) -> dict[str, Any]:
    inputs = re.findall(r"<input[^>]*>", answer.text)
    pairs = [(re.search(r'name="(.*?)"', each), re.search(r'value="(.*?)"', each)) for each in inputs]
    return {name[1]: value[1] for name, value in pairs if name and value}


def press(client: Client, offer: OnSale, fields: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Send the form that buys, with these changes. Without `fields`, open the form first."""
    return client.post(page_of(offer, "buy/"), {**(fields or form_of(client, offer)), **changes})


def test_buying_needs_a_login_and_comes_back() -> None:
    path = page_of(on_sale({"a": 3}), "buy/?product=7&quantity=2")
    answer = Client().get(path)
    assert (answer.status_code, answer.url) == (302, f"/account/login/?next={quote(path)}")


def test_the_form_buys_once_however_often_it_is_sent(customer: int) -> None:
    offer, client = on_sale({"a": 5}, limit=3, price="59.90"), logged_in(customer)
    address = client.get(page_of(offer, "buy/"), {"product": offer.products["a"], "quantity": 2}).url
    fields, reloaded = (fields_of(client.get(address)) for _ in range(2))
    assert fields["key"] == reloaded["key"]
    assert (fields["product"], fields["price"], fields["quantity"]) == (str(offer.products["a"]), "59.90", "2")
    assert UUID(fields["key"])

    answers = [press(client, offer, fields) for _ in range(2)]

    order = Order.objects.get()
    assert [(each.status_code, each.url) for each in answers] == [(302, f"/orders/{order.pk}/")] * 2
    item = OrderItem.objects.get()
    assert (item.quantity, item.price, order.customer_id) == (2, Decimal("59.90"), customer)


@pytest.mark.parametrize(("kept", "orders"), [(True, 1), (False, 2)])
def test_a_form_that_is_opened_again_buys_again_only_after_the_order_was_seen(
    customer: int, monkeypatch: pytest.MonkeyPatch, *, kept: bool, orders: int
) -> None:
    """A buyer got no response and opens the form again: they buy once. Negative control: each view has a new key."""
    offer, client, other = on_sale({"a": 5}), logged_in(customer), on_sale({"b": 5})
    if not kept:
        monkeypatch.setattr(buying, "kept_key", lambda sale: str(uuid4()))
    for _ in range(2):
        press(client, offer)
    assert orders_in() == orders
    assert client.get(press(client, other).url).status_code == 200, "the order of another sale"
    press(client, offer)
    assert orders_in() == 1 + orders + (not kept)
    older = f"/orders/{Order.objects.filter(sale=offer.sale).latest('created_at').pk}/"
    client.get(older)
    press(client, offer)
    assert orders_in() == 2 + orders + (not kept)
    client.get(older)  # The customer has not seen the newer order yet.
    press(client, offer)
    assert orders_in() == 2 + orders + 2 * (not kept)


def test_a_form_without_its_token_is_refused(customer: int) -> None:
    offer = on_sale({"a": 5})
    client = logged_in(customer, enforce_csrf_checks=True)
    fields = form_of(client, offer)
    assert (press(client, offer, fields, csrfmiddlewaretoken="").status_code, orders_in()) == (403, 0)
    assert press(client, offer, fields).status_code == 302


def test_the_form_asks_again_at_another_price_under_the_same_key(customer: int) -> None:
    offer, client = on_sale({"a": 5}, price="10.00"), logged_in(customer)
    fields = form_of(client, offer)
    SaleItem.objects.update(price=Decimal("99.00"))
    offers.cache.clear()

    answer = press(client, offer, fields)

    assert (answer.status_code, orders_in()) == (409, 0)
    assert "The price is now 99.00 EUR. Nothing was bought." in answer.text
    for value in ("99.00", fields["key"]):
        assert f'value="{value}"' in answer.text
    assert press(client, offer, fields, price="99.00").status_code == 302
    assert OrderItem.objects.get().price == Decimal("99.00")


@pytest.mark.parametrize(
    ("language", "some", "all_of_them", "few", "none"),
    [
        ("en", "you have bought 2", "At most 3 for each customer in this sale, and you have bought them.",
         "Only 1 left.", "Orders that are not paid within 15 minutes"),
        ("zh-hans", "您已买 2 件", "本场活动每人限购 3 件，您已经买满了。",
         "只剩 1 件", "15 分钟内没有付款的订单会退回库存"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_the_customer_may_still_buy(
    customer: int, language: str, some: str, all_of_them: str, few: str, none: str
) -> None:
    """The refusal is in the language of the customer. The form keeps its key, and proposes a quantity."""
    client, limited, one = logged_in(customer), on_sale({"a": 9}, limit=3), on_sale({"b": 1})
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = language
    buy(limited, customer, a=2)
    assert 'max="3"' in client.get(page_of(limited, "buy/"), follow=True).text
    fields = form_of(client, one)
    refusals = [press(client, limited, quantity=2), press(client, one, fields, quantity=2)]
    buy(limited, customer, a=1)
    buy(one, b=1)
    refusals += [press(client, limited, quantity=1), press(client, one, fields)]
    expected = [(some, 'name="quantity" value="1"'), (few, f'value="{fields["key"]}"'),
                (all_of_them, 'href="/orders/"'), (none, "")]  # fmt: skip
    for answer, words in zip(refusals, expected, strict=True):
        assert (answer.status_code, [each in answer.text for each in words]) == (409, [True, True]), words


@pytest.mark.parametrize("stock_shown", ["hidden", "few"])
def test_the_form_does_not_say_how_many_are_left_if_the_sale_hides_it(customer: int, stock_shown: str) -> None:
    offer, client = on_sale({"a": 37}), logged_in(customer)
    Sale.objects.filter(pk=offer.sale).update(stock_shown=stock_shown)
    fields, fewer = form_of(client, offer), "Fewer than 100 are left. Nothing was bought."

    def refusal() -> str:
        answer = press(client, offer, fields, quantity=100)
        text = answer.text
        assert (answer.status_code, fewer in text, 'name="quantity" value="100"' in text) == (409, True, True)
        return re.sub(r'name="csrfmiddlewaretoken" value="\w+"|<script.*?</script>', "", text, flags=re.DOTALL)

    with_37_left = refusal()
    buy(offer, a=1)
    assert refusal() == with_37_left
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "zh-hans"
    assert "剩余不足 100 件，这次没有" in press(client, offer, fields, quantity=100).text
    assert press(client, offer, fields, quantity=36).status_code == 302


def test_before_and_after_the_sale_there_is_no_form(customer: int) -> None:
    client, coming = logged_in(customer), on_sale({"a": 1}, opens=HOUR, closes=2 * HOUR)
    opens = Sale.objects.get(pk=coming.sale).opens_at
    answer = client.get(page_of(coming, "buy/"))
    assert (answer.status_code, f"opens at {opens.day} {opens:%b %Y, %H:%M} UTC" in answer.text) == (409, True)

    offer = on_sale({"b": 1})
    fields = form_of(client, offer)
    close_now(offer)
    text = client.get(page_of(offer)).text
    assert ("This sale is over." in text, "<form" in text) == (True, False)
    assert re.findall(r"<script[^>]*>", text) == ['<script type="module" src="/static/shop/times.js">']
    answer = client.get(page_of(offer, "buy/"))
    assert (answer.status_code, "The sale is over." in answer.text) == (409, True)
    answer = press(client, offer, fields)
    assert (answer.status_code, "The sale is not open. Nothing was bought." in answer.text) == (409, True)


@pytest.mark.parametrize(
    ("error", "status"), [(StillRunning("x"), 409), (StockBusy("x"), 503), (OperationalError("x"), 503)], ids=repr
)
def test_when_the_shop_is_busy_the_same_form_is_sent_again(
    customer: int, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    offer, client = on_sale({"a": 5}), logged_in(customer)
    fields = form_of(client, offer)
    with monkeypatch.context() as patch:
        patch.setattr(buying, "place_order", raising(error))
        answer = press(client, offer, fields)
    assert (answer.status_code, f'value="{fields["key"]}"' in answer.text) == (status, True)
    assert ("Retry-After" in answer.headers) is (status == 503)
    assert press(client, offer, fields).status_code == 302


def test_the_rate_of_orders_is_that_of_the_api(customer: int, settings: Any) -> None:
    settings.ORDER_RATE = 0
    offer, client = on_sale({"a": 5}), logged_in(customer)
    fields = form_of(client, offer)
    answer = press(client, offer, fields)
    assert (answer.status_code, answer.headers["Retry-After"], orders_in()) == (429, "2", 0)
    settings.ORDER_RATE = 10
    assert press(client, offer, fields).status_code == 302


def test_a_form_that_is_not_the_pages_own_is_refused(customer: int) -> None:
    offer, client = on_sale({"a": 5}), logged_in(customer)
    fields = form_of(client, offer)
    numbers = [{"quantity": "0"}, {"quantity": "1001"}, {"price": "1e9"}, {"product": ""}, {"product": str(2**64)}]
    for changes in (*numbers, {"key": "x"}):
        assert press(client, offer, fields, **changes).status_code == 400
    answer = press(client, offer, fields, product=on_sale({"b": 5}).products["b"])
    assert (answer.status_code, orders_in()) == (409, 0)
    press(client, offer, fields)
    assert (press(client, offer, fields, quantity="2").status_code, orders_in()) == (422, 1)


def test_a_queued_order_leads_to_its_page(customer: int) -> None:
    offer, client = on_sale({"a": 5}, strategy="lua-queue"), logged_in(customer)
    answer = press(client, offer)
    assert (answer.status_code, orders_in()) == (302, 0)
    save_queued()
    assert answer.url == f"/orders/{Order.objects.get().pk}/"


def test_each_product_of_a_sale_has_its_own_form(customer: int) -> None:
    offer, client = on_sale({"a": 5, "b": 5}), logged_in(customer)
    assert client.get(page_of(offer, "buy/"), follow=True).text.count("<form") == 2
    chosen = client.get(page_of(offer, "buy/"), {"product": offer.products["b"]}, follow=True)
    assert (chosen.text.count("<form"), f'value="{offer.products["b"]}"' in chosen.text) == (1, True)
    assert client.get(page_of(offer, "buy/"), {"product": "x"}).status_code == 404


def test_a_nul_in_a_cookie_is_refused() -> None:
    """A session cookie with a NUL is refused, because Postgres accepts no NUL in a query."""
    client = Client(raise_request_exception=False, headers={"Cookie": r'sessionid="abcdefgh\000"'})
    for path in (page_of(on_sale({"a": 3}), "buy/"), "/orders/", "/account/", "/account/token/"):
        assert client.get(path).status_code == 400, path


@pytest.mark.parametrize("path", ["/orders/", f"/orders/{UUID(int=7)}/", "/account/", "/sales/{}/buy/"])
def test_without_postgres_a_page_of_a_customer_says_to_come_back(customer: int, path: str, postgres_gone: Gone) -> None:
    """Without Postgres, each page of a customer tells them to come back later. Reading the session needs Postgres."""
    slug = Sale.objects.get(pk=on_sale({"a": 3}).sale).slug
    client = logged_in(customer)
    client.raise_request_exception = False
    with postgres_gone():
        answer = client.get(path.format(slug))
    assert (answer.status_code, bool(answer.headers["Retry-After"])) == (503, True)


def test_a_chinese_page_shows_chinese_names_where_there_are_some(client: Client) -> None:
    offer = on_sale({"a": 1, "b": 1})
    Product.objects.filter(sku="a").update(name_zh="甲")
    Sale.objects.update(name_zh="特卖")
    for path in (page_of(offer), "/sales/"):
        in_english, in_chinese = (client.get(path, headers=sent).text for sent in ({}, CHINESE))
        assert "甲" not in in_english
        assert "特卖" not in in_english
        assert "特卖</" in in_chinese
        assert re.findall("[>]([甲AB])[<,]", in_chinese) == ["甲", "B"]
