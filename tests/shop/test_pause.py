"""Pausing a sale: after the response no order is accepted, and no earlier order is lost."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test import Client
from redis import Redis, RedisError

from inventory import stock
from inventory.errors import TryAgain
from inventory.strategies import registry
from loadtest.tokens import access_token
from shop.api.exception_handler import problem_of
from shop.models import Order, Sale
from shop.orders.errors import SalePaused
from shop.orders.queued import save_queued
from shop.pages import now
from shop.sales import lifecycle, offers
from shop.sales.preheat import CannotPreheat, preheat_sale
from tests.factories import (
    DISTINCT,
    SAVING,
    OnSale,
    at_once,
    elsewhere,
    fast_and_slow,
    new_customer,
    on_sale,
    orders_in,
    slow,
    waiting_in_postgres,
)
from tests.shop.conftest import (
    Buyer,
    Gone,
    assert_conserved,
    assert_problem,
    buy,
    logged_in,
    on_hand,
    order_body,
    race,
    raising,
)
from tests.shop.web_server import ask, web_server
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

ACCEPTS = import_module("shop.migrations.0019_order_functions").ACCEPTS
UNCHECKED = "(queued OR paused_at IS NULL)", "true"
STALE = "VOLATILE", "STABLE"
"""Flaws in `shop_accepts_order`: it does not check for a pause, or it sees only the snapshot of its caller."""


@contextmanager
def flawed(flaw: tuple[str, str]) -> Iterator[None]:
    """Build a flaw into the function of Postgres that decides whether a sale accepts an order."""
    assert flaw[0] in ACCEPTS
    with connection.cursor() as cursor:
        cursor.execute(ACCEPTS.replace(*flaw))
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(ACCEPTS)


@pytest.fixture
def stale_offers(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Let this process keep its cached offers, as other processes do for a second."""
    settings.OFFER_TTL = 3600.0
    monkeypatch.setattr(offers, "forget", lambda sale: None)


def paused(offer: OnSale) -> bool:
    return Sale.objects.get(pk=offer.sale).paused_at is not None


@pytest.mark.parametrize("known", [True, False], ids=["", "in a process that does not know of the pause"])
@pytest.mark.parametrize("strategy", fast_and_slow(registry.NAMES))
def test_a_paused_sale_takes_no_order_until_it_is_resumed(
    strategy: str, known: bool, request: pytest.FixtureRequest
) -> None:
    if not known:
        request.getfixturevalue("stale_offers")
    offer = on_sale({"a": 3}, strategy=strategy)
    first = buy(offer, key="first", customer=(customer := new_customer()), a=1)
    save_queued()
    lifecycle.pause(offer.sale)
    with pytest.raises(SalePaused):
        buy(offer, a=1)
    again = buy(offer, key="first", customer=customer, a=1)
    assert again.order.pk == first.order.pk, "a repeated request has its order"
    save_queued()
    assert (on_hand()[0], orders_in("pending"), orders_in()) == (2, 1, 1)
    lifecycle.resume(offer.sale)
    buy(offer, a=2)
    save_queued()
    assert (on_hand()[0], orders_in("pending")) == (0, 2)
    assert_conserved()


BURSTS = ("guarded-update", "group-commit", "lua-queue")
"""Strategies with different work in progress, for which the pause must wait."""


class Burst:
    """Several threads that place orders, each for one new customer after another, until the burst is stopped."""

    THREADS = 6

    def __init__(self, offer: OnSale) -> None:
        self.offer = offer
        self.customers = [new_customer() for _ in range(self.THREADS)]
        self.placed: list[UUID] = []
        self.refused: list[str] = []
        self.before: set[UUID] = set()
        self.stopped = threading.Event()

    def buyers(self) -> list[Callable[[], None]]:
        return [partial(self._buy, customer) for customer in self.customers]

    def _buy(self, customer: int) -> None:
        while not self.stopped.is_set():
            answer = self.order(customer)
            self.placed.append(answer) if isinstance(answer, UUID) else self.refused.append(answer)

    def order(self, customer: int) -> UUID | str:
        """Order one unit, and return the id of the order, or the type of the problem."""
        try:
            return buy(self.offer, customer, a=1).order.pk
        except (SalePaused, TryAgain) as refused:
            return problem_of(refused).type

    def pause(self) -> None:
        lifecycle.pause(self.offer.sale)

    def pause_in_its_middle(self) -> set[UUID]:
        """Pause the sale in the burst, then wait for 50 more answers. Return the orders taken at the pause."""
        try:
            wait_for(lambda: len(self.placed) >= 20, "some orders", timeout=3 * WAIT_TIMEOUT)
            self.before = all_taken()
            self.pause()
            taken = all_taken()
            seen = len(self.refused) + len(self.placed)
            wait_for(
                lambda: len(self.refused) + len(self.placed) >= seen + 50,
                "answers after the pause",
                timeout=3 * WAIT_TIMEOUT,
            )
        finally:
            self.stopped.set()
        return taken


class BurstOverHttp(Burst):
    """Customers who send orders to web processes. An operator pauses the sale in the admin.

    The admin runs in the process of the test, so no web process is told of the pause.
    """

    THREADS = 8

    def __init__(self, offer: OnSale, port: int) -> None:
        super().__init__(offer)
        self.port = port
        self.body = json.dumps(order_body(offer, a=1))
        self.operator = Client()
        self.operator.force_login(User.objects.create_superuser("root"))

    def order(self, customer: int) -> UUID | str:
        headers = {"Authorization": f"Bearer {access_token(customer)}", "Content_Type": "application/json"}
        key = str(uuid4())
        status, _, answer = ask(self.port, "POST", "/api/orders/", self.body, Idempotency_Key=key, **headers)
        return UUID(answer["id"]) if status in (201, 202) else str(answer["type"])

    def pause(self) -> None:
        answer = self.operator.post(f"/admin/shop/sale/{self.offer.sale}/pause/", {"why": "Wrong price."})
        assert (answer.status_code, paused(self.offer)) == (302, True)


def all_taken() -> set[UUID]:
    saved = set(Order.objects.values_list("pk", flat=True))
    # Each reservation belongs to an order that is queued or being saved.
    return saved | registry.counters().order_ids()


def run(burst: Burst) -> set[UUID]:
    taken, *rest = at_once(burst.pause_in_its_middle, *burst.buyers())
    assert [each for each in (taken, *rest) if isinstance(each, Exception)] == []
    assert isinstance(taken, set)
    save_queued()
    return taken


@pytest.mark.usefixtures("stale_offers")
@pytest.mark.parametrize("strategy", [*BURSTS, *slow(*(name for name in DISTINCT if name not in BURSTS))])
def test_in_the_middle_of_a_burst_nothing_is_taken_after_the_pause_and_nothing_before_is_lost(strategy: str) -> None:
    assert_clean_cut(Burst(on_sale({"a": 10_000}, strategy=strategy)))


def assert_clean_cut(burst: Burst) -> set[UUID]:
    """Run the burst. Check that no order is taken after the pause and none is lost. Return the saved orders."""
    taken = run(burst)
    saved = set(Order.objects.filter(state="pending").values_list("pk", flat=True))
    assert set(burst.placed) <= saved, "an order that was answered is lost"
    assert saved <= taken, "an order was taken after the pause was answered"
    assert "/api/problems/sale-paused/" in burst.refused
    assert_conserved()
    return saved


@pytest.mark.slow
@pytest.mark.parametrize("strategy", BURSTS)
def test_a_pause_is_a_clean_cut_for_all_web_processes(strategy: str) -> None:
    with web_server(WEB_PROCESSES="2", ORDER_RATE="1000") as (port, _):
        burst = BurstOverHttp(on_sale({"a": 10_000}, strategy=strategy), port)
        assert assert_clean_cut(burst) - burst.before, "negative control: orders came until the pause"


@pytest.mark.usefixtures("stale_offers")
@pytest.mark.parametrize("strategy", BURSTS)
def test_without_its_guard_orders_are_taken_after_the_pause(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the burst: nothing unloads the stock of `lua-queue`, or saving does not check for a pause."""
    if strategy == "lua-queue":
        monkeypatch.setattr(lifecycle, "_hold", lambda sale: None)
    burst = Burst(on_sale({"a": 10_000}, strategy=strategy))
    with nullcontext() if strategy == "lua-queue" else flawed(UNCHECKED):
        taken = run(burst)
    assert set(Order.objects.values_list("pk", flat=True)) - taken


@pytest.mark.usefixtures("stale_offers")
@pytest.mark.parametrize("strategy", ["guarded-update", "group-commit", "redis-lock"])
@pytest.mark.parametrize("sound", [True, False], ids=["", "which sees only what its statement sees"])
def test_an_order_that_waits_for_the_stock_during_the_pause_is_refused(strategy: str, sound: bool) -> None:
    """The statement that takes stock and saves the order began before the pause. It must still see the pause."""
    offer = on_sale({"a": 3}, strategy=strategy)
    with nullcontext() if sound else flawed(STALE), ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            stock.lock(["a"])
            answer = pool.submit(buy, offer, a=1)
            wait_for(lambda: waiting_in_postgres() == 1, "the order to wait for the stock row")
            elsewhere(lambda: Sale.objects.update(paused_at=Now()))
        if sound:
            with pytest.raises(SalePaused):
                answer.result(WAIT_TIMEOUT)
        else:
            assert answer.result(WAIT_TIMEOUT).order.state == "pending"


def pause_and_count(offer: OnSale) -> int:
    lifecycle.pause(offer.sale)
    return orders_in()


@pytest.mark.usefixtures("in_steps")
@pytest.mark.parametrize("strategy", fast_and_slow(name for name in DISTINCT if name in SAVING))
def test_the_pause_waits_for_an_order_that_is_written_and_not_committed(strategy: str) -> None:
    offer = on_sale({"a": 3}, strategy=strategy)
    placed, counted = race(lambda: buy(offer, a=1), lambda: pause_and_count(offer), after="INSERT INTO shop_order ")
    assert (placed.order.state, counted) == ("pending", 1)


@pytest.mark.usefixtures("in_steps")
def test_without_its_locks_the_pause_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without its locks, the pause ends before an order in progress is committed."""
    offer = on_sale({"a": 3})
    monkeypatch.setattr(lifecycle, "_hold", lambda sale: None)
    _, counted = race(lambda: buy(offer, a=1), lambda: pause_and_count(offer), after="INSERT INTO shop_order ")
    assert (counted, orders_in()) == (0, 1)


def test_an_order_that_was_queued_before_the_pause_is_saved_during_it() -> None:
    offer = on_sale({"a": 3}, strategy="lua-queue", limit=1)
    queued = buy(offer, customer=(customer := new_customer()), a=1)
    lifecycle.pause(offer.sale)
    assert save_queued() == 1
    assert Order.objects.get(pk=queued.order.pk).state == "pending"
    lifecycle.resume(offer.sale)
    with pytest.raises(Exception, match="at most 1 per customer"):
        buy(offer, customer=customer, a=1)


def test_nothing_preheats_a_paused_sale() -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    lifecycle.pause(offer.sale)
    lifecycle.advance()
    with pytest.raises(CannotPreheat, match="is paused"):
        preheat_sale(offer.sale)
    assert on_hand() == (3, None)
    lifecycle.resume(offer.sale)
    assert on_hand() == (3, 3)


def test_without_redis_a_pause_stops_saving_and_beat_does_the_rest(redis_gone: Gone) -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    with redis_gone(), pytest.raises(RedisError):
        lifecycle.pause(offer.sale)
    assert (paused(offer), on_hand()) == (True, (3, 3))
    lifecycle.advance()
    assert on_hand() == (3, None)


def test_the_api_answers_the_problem_until_the_sale_is_resumed_or_closed(buyer: Buyer) -> None:
    offer = on_sale({"a": 3})
    lifecycle.pause(offer.sale)
    assert_problem(buyer.order(order_body(offer, a=1)), 409, "sale-paused")
    assert buyer.get(f"/api/sales/{offer.sale}/").json()["paused"] is True
    lifecycle.resume(offer.sale)
    assert buyer.order(order_body(offer, a=1)).status_code == 201
    assert buyer.get(f"/api/sales/{offer.sale}/").json()["paused"] is False
    lifecycle.pause(offer.sale)
    lifecycle.close(offer.sale)
    assert_problem(buyer.order(order_body(offer, a=1)), 409, "sale-not-open")


def test_an_operator_pauses_and_resumes_with_a_reason(staff: Callable[..., Client]) -> None:
    offer = on_sale({"a": 3})
    operator = staff("view_sale", "pause_sale")
    link = f"/admin/shop/sale/{offer.sale}/"
    for verb, done, other in (("pause", "Paused.", "resume"), ("resume", "Resumed.", "pause")):
        page = operator.get(f"{link}change/").text
        assert (f"{link}{verb}" in page, f"{link}{other}" in page) == (True, False)
        asked = operator.get(f"{link}{verb}/").text
        assert ("Reason" in asked, 'href="../change/"' in asked) == (True, True)
        assert "This field is required" in operator.post(f"{link}{verb}/", {"why": " "}).text
        assert paused(offer) is (verb == "resume"), "nothing without a reason"
        assert operator.post(f"{link}{verb}/", {"why": "Wrong price."}).status_code == 302
        assert paused(offer) is (verb == "pause")
        assert LogEntry.objects.latest("pk").change_message == f"{done} Wrong price."
    assert operator.post(f"{link}resume/", {"why": "again"}, follow=True).text.count(
        "was not resumed: it is not paused"
    )


@pytest.mark.parametrize(("strategy", "names"), [("lua", ""), ("etcd-lock", "ETCD_URL")], ids=["away", "not set up"])
def test_a_pause_without_its_server_is_in_the_history(
    staff: Callable[..., Client], redis_gone: Gone, strategy: str, names: str
) -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    Sale.objects.filter(pk=offer.sale).update(strategy=strategy)
    operator = staff("view_sale", "pause_sale")
    with redis_gone() if strategy == "lua" else nullcontext():
        page = operator.post(f"/admin/shop/sale/{offer.sale}/pause/", {"why": "Wrong price."}, follow=True).text
    assert (paused(offer), "was not fully paused" in page, names in page) == (True, True, True)
    assert LogEntry.objects.latest("pk").change_message == "Paused in part. Wrong price."


def test_a_resumed_sale_whose_stock_cannot_be_loaded_is_called_resumed(
    staff: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = on_sale({"a": 3})
    lifecycle.pause(offer.sale)
    operator = staff("view_sale", "pause_sale")
    monkeypatch.setattr(lifecycle, "preheat_sale", raising(CannotPreheat("Another sale has queued orders.")))
    page = operator.post(f"/admin/shop/sale/{offer.sale}/resume/", {"why": "Right again."}, follow=True).text
    assert not paused(offer)
    assert "Another sale has queued orders." in page
    assert LogEntry.objects.latest("pk").change_message == "Resumed. Right again."


def test_beat_does_not_hold_a_sale_that_was_resumed_meanwhile() -> None:
    offer = on_sale({"a": 3}, strategy="lua")
    lifecycle.pause(offer.sale)
    lifecycle.resume(offer.sale)
    lifecycle._hold(offer.sale)
    assert Sale.objects.get(pk=offer.sale).is_loaded
    assert buy(offer, new_customer(), a=1)


def test_a_queueing_sale_that_closes_in_a_pause_is_unloaded(redis: Redis) -> None:
    offer = on_sale({"a": 3}, strategy="lua-queue")
    buy(offer, new_customer(), a=1)
    save_queued()
    lifecycle.pause(offer.sale)
    assert redis.keys("*bought*")
    Sale.objects.filter(pk=offer.sale).update(closes_at=Now())
    lifecycle.advance()
    assert redis.keys("*bought*") == []


def test_the_actions_of_the_list_ask_for_the_reason(staff: Callable[..., Client]) -> None:
    offer, other = on_sale({"a": 3}), on_sale({"b": 3}, opens=timedelta(hours=1), closes=timedelta(hours=2))
    operator = staff("view_sale", "pause_sale")
    form = {"action": "pause", "_selected_action": [offer.sale, other.sale], "index": "0", "select_across": "0"}
    page = operator.post("/admin/shop/sale/", form)
    assert f'name="_selected_action" value="{other.sale}"' in page.text
    assert 'href="."' in page.text, "it leads back to the list"
    assert not paused(offer)
    answer = operator.post("/admin/shop/sale/", {**form, "why": "Wrong price."}, follow=True)
    assert "2 sales are paused." in answer.text
    assert (paused(offer), paused(other)) == (True, True)
    assert operator.get("/admin/shop/sale/").text.count("paused") >= 2


def test_without_the_permission_nobody_pauses(staff: Callable[..., Client]) -> None:
    offer = on_sale({"a": 3})
    operator = staff("view_sale", "change_sale")
    link = f"/admin/shop/sale/{offer.sale}/"
    assert f"{link}pause" not in operator.get(f"{link}change/").text
    assert operator.post(f"{link}pause/", {"why": "x"}).status_code == 403
    assert not paused(offer)


def test_the_pages_say_that_the_sale_is_paused() -> None:
    offer = on_sale({"a": 3})
    slug = Sale.objects.get(pk=offer.sale).slug
    browser = logged_in(new_customer())
    lifecycle.pause(offer.sale)
    now.cache.clear()
    assert browser.get(f"/sales/{slug}/now.json").json()["state"] == "paused"
    assert re.search(r'<button class="button" aria-disabled="true">Paused<', browser.get(f"/sales/{slug}/").text)
    form = {"product": offer.products["a"], "quantity": 1, "price": "9.90", "key": str(uuid4())}
    answer = browser.post(f"/sales/{slug}/buy/", form)
    assert (answer.status_code, "The sale is paused." in answer.text, form["key"] in answer.text) == (409, True, True)
    lifecycle.resume(offer.sale)
    assert browser.post(f"/sales/{slug}/buy/", form).status_code == 302
    assert orders_in("pending") == 1
