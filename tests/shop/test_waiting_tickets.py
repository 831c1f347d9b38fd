"""Tickets of a waiting room: only an issued ticket admits, for its customer and sale, until it ends."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.core.signing import Signer, dumps
from django.db.models import F
from redis import Redis

from shop.models import Sale
from shop.sales import offers
from shop.waiting import room, tickets
from tests.factories import OnSale, close_now, on_sale, orders_in
from tests.shop.conftest import Buyer, Gone, assert_problem, order_body
from tests.shop.test_round_trips import counted
from tests.shop.waiting_support import enter, look, with_room
from tests.shop.web_server import ask, web_server
from tests.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

Attack = Callable[[Buyer, Buyer, OnSale], str]


def order(buyer: Buyer, offer: OnSale, ticket: str | None, key: str | None = None) -> Any:
    headers = {} if ticket is None else {"Waiting-Ticket": ticket}
    return buyer.order(order_body(offer, a=1), key or str(uuid4()), headers=headers)


def changed(mine: Buyer, other: Buyer, offer: OnSale) -> str:
    """Put this customer into another customer's ticket, and keep its signature."""
    body, _, signature = enter(other, offer)["ticket"].rpartition(":")
    content = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    content[1] = mine.customer
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=") + ":" + signature


def of_another_sale(mine: Buyer, other: Buyer, offer: OnSale) -> str:
    close_now(offer)  # A product can be in one sale at a time, and another sale needs it.
    another = with_room(units=0)
    ticket = str(enter(mine, another)["ticket"])
    Sale.objects.filter(pk=offer.sale).update(closes_at=Sale.objects.get(pk=another.sale).closes_at)
    offers.cache.clear()
    return ticket


def of_an_earlier_opening(mine: Buyer, other: Buyer, offer: OnSale) -> str:
    ticket = str(enter(mine, offer)["ticket"])
    Sale.objects.filter(pk=offer.sale).update(opens_at=F("opens_at") + timedelta(minutes=1))
    offers.cache.clear()
    return ticket


def ended(mine: Buyer, other: Buyer, offer: OnSale) -> str:
    here = offers.get_newest(offer.sale)
    return tickets.issue(here, mine.customer, here.opens_at)


def signed(salt: str = tickets.SALT, key: str | None = None) -> Attack:
    """Sign valid content for this purpose or another one, with the key of the shop or another one."""
    return lambda mine, other, offer: Signer(salt=salt, key=key).sign_object([offer.sale, mine.customer, 2**45])


ATTACKS: dict[str, Attack] = {
    "without": lambda mine, other, offer: "",
    "made up": lambda mine, other, offer: "let me in",
    "changed": changed,
    "signed for something else": signed(salt="something else"),
    "signed with another key": signed(key="another key"),
    "with a time": lambda mine, other, offer: dumps([offer.sale, mine.customer, 2**45], salt=tickets.SALT),
    "shared": lambda mine, other, offer: str(enter(other, offer)["ticket"]),
    "of another sale": of_another_sale,
    "of an earlier opening": of_an_earlier_opening,
    "ended": ended,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_false_ticket_buys_nothing(
    attack: Attack, buyer: Buyer, other_buyer: Buyer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A false ticket buys nothing. Negative control: without the check, it buys."""
    offer = with_room()
    ticket = attack(buyer, other_buyer, offer)
    assert_problem(order(buyer, offer, ticket), 403, "waiting-room")
    assert orders_in() == 0
    monkeypatch.setattr(tickets, "require", lambda *_, **__: None)
    assert order(buyer, offer, ticket).status_code == 201


def test_a_ticket_that_was_issued_buys_until_it_ends(
    buyer: Buyer, other_buyer: Buyer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = with_room()
    stands = enter(buyer, offer)
    assert (stands["state"], stands["place"], stands["ahead"]) == ("admitted", 1, 0)
    assert order(buyer, offer, stands["ticket"]).status_code == 201
    assert order(buyer, offer, stands["ticket"]).status_code == 201
    monkeypatch.setattr(room, "TURN", timedelta(milliseconds=1))
    short = enter(other_buyer, offer)["ticket"]
    wait_for(lambda: look(other_buyer, offer)["state"] == "ended", "the turn to end")
    refused = assert_problem(order(other_buyer, offer, short), 403, "waiting-room")
    assert "has ended" in refused["detail"]
    assert enter(other_buyer, offer)["place"] == 3


@pytest.mark.parametrize("strategy", ["guarded-update", "lua-queue", "group-commit", "lua"])
def test_every_strategy_wants_the_ticket_once(strategy: str, buyer: Buyer) -> None:
    """A retry of a placed order needs no ticket, because the ticket may have ended meanwhile."""
    offer = with_room(strategy=strategy)
    assert_problem(order(buyer, offer, None), 403, "waiting-room")
    first = order(buyer, offer, enter(buyer, offer)["ticket"], key="mine")
    again = order(buyer, offer, None, key="mine")
    assert first.status_code == again.status_code == (202 if strategy == "lua-queue" else 201)
    assert (again.json()["id"], again.headers["Idempotent-Replayed"]) == (first.json()["id"], "true")


def test_the_order_path_pays_no_command_and_no_query_for_the_room(buyer: Buyer, in_one_second: None) -> None:
    """All orders come in one second, because the rate limit queries Redis only after the first order of a second."""
    plain, roomy = on_sale({"b": 9}), with_room()
    ticket = enter(buyer, roomy)["ticket"]
    costs = []
    for offer, sku, shown in ((plain, "b", None), (roomy, "a", ticket)):
        headers = {} if shown is None else {"Waiting-Ticket": shown}
        assert buyer.order(order_body(offer, **{sku: 1}), headers=headers).status_code == 201
        with counted() as (queries, sent):
            assert buyer.order(order_body(offer, **{sku: 1}), headers=headers).status_code == 201
        costs.append((len(queries), len(sent)))
    assert costs[0] == costs[1]


def test_a_sale_without_a_room_ignores_tickets(buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "require", None)
    offer = on_sale({"a": 1})
    assert order(buyer, offer, "anything").status_code == 201
    refused = assert_problem(buyer.post(f"/api/sales/{offer.sale}/waiting/"), 404, "not-found")
    assert "no waiting room" in refused["detail"]
    assert buyer.get(f"/api/sales/{offer.sale}/").json()["waiting_room"] is False


def test_without_redis_the_room_is_closed_and_tickets_still_buy(buyer: Buyer, redis_gone: Gone) -> None:
    offer = with_room()
    ticket = enter(buyer, offer)["ticket"]
    with redis_gone():
        assert_problem(buyer.post(f"/api/sales/{offer.sale}/waiting/"), 503, "unavailable")
        assert order(buyer, offer, ticket).status_code == 201


def test_the_room_answers_its_customers_alone(buyer: Buyer, visitor: Any, redis: Redis) -> None:
    offer = with_room()
    assert_problem(visitor.post(f"/api/sales/{offer.sale}/waiting/"), 401, "unauthenticated")
    assert_problem(buyer.post("/api/sales/999999999/waiting/"), 404, "not-found")
    answer = buyer.get(f"/api/sales/{offer.sale}/waiting/")
    assert answer.headers["Cache-Control"] == "no-store"
    unknown = dict.fromkeys(("place", "ahead", "estimate", "ticket", "ends_at"))
    assert answer.json() == {"state": "outside", "entered": 0, "poll_after": room.SLOWEST, **unknown}
    assert buyer.get(f"/api/sales/{offer.sale}/").json()["waiting_room"] is True
    close_now(offer)
    assert_problem(buyer.post(f"/api/sales/{offer.sale}/waiting/"), 409, "sale-not-open")


@pytest.mark.slow
def test_places_and_tickets_survive_a_restart_of_the_web_servers(buyer: Buyer, other_buyer: Buyer) -> None:
    offer = with_room(rate=1)
    ticket = enter(other_buyer, offer)["ticket"]
    address, body = f"/api/sales/{offer.sale}/waiting/", json.dumps(order_body(offer, a=1))
    mine, others = ({"Authorization": f"Bearer {one.token}"} for one in (buyer, other_buyer))
    with web_server() as (port, _):
        status, _, first = ask(port, "POST", address, **mine)
        assert (status, first["place"]) == (200, 2)
    with web_server() as (port, _):
        assert ask(port, "GET", address, **mine)[2]["place"] == 2
        sent = {"Idempotency_Key": "mine", "Waiting_Ticket": ticket, "Content_Type": "application/json", **others}
        assert ask(port, "POST", "/api/orders/", body, **sent)[0] == 201
