"""The page of a waiting room, and the form that buys behind it: all works without JavaScript."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from redis import Redis

from shop.admin.sales import digest
from shop.models import Sale
from shop.sales import lifecycle, offers
from shop.waiting import room
from tests.factories import OnSale, close_now, new_customer, on_sale, orders_in
from tests.shop.conftest import Gone, logged_in
from tests.shop.test_admin import the_form
from tests.shop.test_sale_pages import fields_of
from tests.shop.waiting_support import enter_all, offer_at, with_room

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9"}


@pytest.fixture
def visitor() -> Client:
    """A logged-in browser."""
    return logged_in(new_customer())


def address(offer: OnSale, room: str = "waiting") -> str:
    return f"/{room}/{Sale.objects.get(pk=offer.sale).slug}/"


def text(response: Any) -> str:
    return unescape(response.content.decode())


def says(response: Any) -> str:
    """Return the page's headline."""
    found = re.search('data-shown="headline">(.*?)</p>', text(response))
    assert found, response.status_code
    return found[1]


def script_of(response: Any) -> dict[str, Any]:
    """Return the data that the page's script reads."""
    found = re.search('<script id="room-data" type="application/json">(.*?)</script>', text(response))
    assert found, response.status_code
    return dict(json.loads(found[1]))


def test_a_visitor_enters_by_a_form_and_is_led_to_the_sale(visitor: Client) -> None:
    offer = with_room()
    page = visitor.get(address(offer))
    assert says(page) == "You are not in the waiting room yet"
    assert page.headers["Cache-Control"] == "max-age=0, no-cache, no-store, must-revalidate, private"
    assert visitor.get(address(offer)).status_code == 200, "to look at the page gives no place"
    assert room.look(offer_at(offer, 1), 1).entered == 0
    assert visitor.post(address(offer)).headers["Location"] == f"{address(offer)}?entered"
    assert visitor.get(address(offer)).headers["Location"] == address(offer, "sales")


def test_the_page_says_number_people_ahead_and_the_wait(visitor: Client) -> None:
    offer = with_room(rate=1)
    enter_all(offers.get(offer.sale), range(10_001, 10_400))
    visitor.post(address(offer))
    page = visitor.get(address(offer))
    assert says(page) == "You are number 400"
    ahead = int(re.search('data-shown="ahead">([0-9]+)<', text(page))[1])  # type: ignore[index]
    assert 0 < ahead < 400
    assert "about 7 min" in text(page) or "about 6 min" in text(page)
    (pace,) = re.findall('<noscript><meta http-equiv="refresh" content="([0-9]+)">', text(page))
    assert 2 <= int(pace) <= room.SLOWEST
    assert says(visitor.get(address(offer), headers=CHINESE)) == "您是第 400 位"
    assert set(script_of(page)["texts"]) == {"outside", "lost", "draw", "waiting", "admitted", "ended"}


def test_before_the_opening_the_visitor_is_in_the_draw(visitor: Client) -> None:
    offer = with_room(coming=True)
    visitor.post(address(offer))
    page = visitor.get(address(offer))
    assert says(page) == "You are in the draw"
    assert 'data-of="waiting" hidden' in text(page)
    # Without its script, the page reloads each minute, because the opening may be moved.
    assert '<noscript><meta http-equiv="refresh" content="60">' in text(page)
    assert script_of(page)["pollAfter"] > 60


def test_a_turn_that_has_ended_offers_to_enter_again(visitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = with_room()
    monkeypatch.setattr(room, "TURN", room.TURN * 0)
    visitor.post(address(offer))
    page = visitor.get(address(offer))
    assert says(page) == "Your turn is over"
    assert 'data-of="outside lost ended">' in text(page)


def test_a_lost_place_is_told_without_a_script(visitor: Client, redis: Redis) -> None:
    offer = with_room(coming=True)
    page = visitor.post(address(offer), follow=True)
    assert says(page) == "You are in the draw"
    redis.flushall()
    page = visitor.get(page.request["PATH_INFO"] + "?entered")
    assert says(page) == "Your place was lost"
    assert 'data-of="outside lost ended">' in text(page)


def test_the_page_says_when_all_units_are_taken(visitor: Client) -> None:
    hidden = 'data-shown="stock" hidden>'
    assert hidden not in text(visitor.get(address(with_room(units=0))))
    assert hidden in text(visitor.get(address(with_room(coming=True))))


@pytest.mark.parametrize("coming", [False, True], ids=["in the line", "in the draw"])
def test_in_a_pause_the_page_says_so_and_names_no_wait(visitor: Client, coming: bool) -> None:
    offer = with_room(coming=coming, rate=1)
    enter_all(offers.get(offer.sale), range(10_001, 10_400))
    visitor.post(address(offer))
    running = text(visitor.get(address(offer)))
    assert ('data-shown="paused" hidden>' in running, 'data-shown="estimate" hidden>' in running) == (True, False)
    lifecycle.pause(offer.sale)
    paused = text(visitor.get(address(offer)))
    assert ('data-shown="paused">' in paused, 'data-shown="estimate" hidden>' in paused) == (True, True)
    assert "The shop has paused the sale. Nobody is admitted until it goes on." in paused


def test_who_is_not_logged_in_logs_in_first() -> None:
    offer = with_room()
    for answer in (Client().get(address(offer)), Client().post(address(offer))):
        assert answer.headers["Location"] == f"/account/login/?next={address(offer)}"


def test_a_sale_without_a_room_or_that_is_over_leads_to_its_page(visitor: Client) -> None:
    plain, over = on_sale({"b": 1}), with_room()
    close_now(over)
    for offer in (plain, over):
        assert visitor.get(address(offer)).headers["Location"] == address(offer, "sales")
        assert visitor.post(address(offer)).headers["Location"] == address(offer, "sales")
    assert visitor.get("/waiting/none/").status_code == 404


def test_without_redis_the_page_says_so(visitor: Client, redis_gone: Gone) -> None:
    offer = with_room()
    with redis_gone():
        page, entering = visitor.get(address(offer)), visitor.post(address(offer))
    assert (page.status_code, page.headers["Retry-After"]) == (503, "5")
    assert "Your place is kept" in text(page)
    assert (entering.status_code, "Enter again in a moment" in text(entering)) == (503, True)


def test_in_a_full_redis_an_arrival_is_told_to_enter_again(visitor: Client, full: Gone) -> None:
    """A customer with a place sees it. A customer without a place reads that they have none yet."""
    offer = with_room(rate=1)
    other = logged_in(new_customer())
    other.post(address(offer))
    with full():
        page = visitor.post(address(offer))
        assert (page.status_code, page.headers["Retry-After"], "you have none yet" in text(page)) == (503, "5", True)
        assert f'href="{address(offer)}"' in text(page)
        assert "您还没有位置" in text(visitor.post(address(offer), headers=CHINESE))
        assert visitor.get(address(offer)).status_code == 200
        assert other.post(address(offer), follow=True).status_code == 200
    assert visitor.post(address(offer)).headers["Location"] == f"{address(offer)}?entered"


def test_the_form_buys_with_the_ticket_of_the_visitor(visitor: Client) -> None:
    offer = with_room()
    buying = f"{address(offer, 'sales')}buy/"
    assert visitor.get(buying).headers["Location"] == address(offer), "first to the waiting room"
    visitor.post(address(offer))
    page = visitor.get(buying, follow=True)
    form = fields_of(page)
    assert form["ticket"]
    refused = visitor.post(buying, {**form, "ticket": ""})
    assert (refused.status_code, orders_in()) == (403, 0)
    assert address(offer) in text(refused)
    assert visitor.post(buying, form).headers["Location"].startswith("/orders/")
    assert visitor.post(buying, {**form, "ticket": ""}).status_code == 302, "the same order again"
    assert orders_in() == 1


@pytest.mark.parametrize("coming", [True, False])
def test_the_page_of_the_sale_leads_to_the_room(*, coming: bool) -> None:
    offer = with_room(coming=coming)
    page = text(Client().get(address(offer, "sales")))
    assert f'This sale has a waiting room: you buy when it is your turn. <a href="{address(offer)}">' in page
    chinese = text(Client().get(address(offer, "sales"), headers=CHINESE))
    assert f'该活动设有等候室，轮到您时即可购买。 <a href="{address(offer)}">' in chinese
    assert Client().get(f"{address(offer, 'sales')}now.json").json()["waiting_room"] is True
    assert "waiting" not in text(Client().get(address(on_sale({"b": 1}), "sales"))).partition("sale-data")[0]


# The admin


@pytest.mark.parametrize(("rate", "saved"), [("25", True), ("", False), ("0", False)])
def test_an_operator_switches_the_room_on_with_a_rate(staff: Any, rate: str, saved: bool) -> None:
    offer = on_sale({"a": 1})
    sale = Sale.objects.get(pk=offer.sale)
    room = {"shown": digest(sale), "waiting_room": "on", "admitted_per_second": rate}
    form = the_form(offer, opens=sale.opens_at, closes=sale.closes_at, **room)
    operator = staff("change_sale", "view_sale", "change_saleitem", "view_saleitem", "view_product")
    page = operator.get(f"/admin/shop/sale/{sale.pk}/change/")
    assert "Buyers whom the waiting room admits in a second." in text(page)
    answer = operator.post(f"/admin/shop/sale/{sale.pk}/change/", form)
    sale.refresh_from_db()
    assert (answer.status_code == 302, sale.waiting_room) == (saved, saved), text(answer)
    if rate == "":
        assert "A waiting room needs a number of buyers to admit in a second." in text(answer)
