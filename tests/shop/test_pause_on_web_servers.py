"""An operator pauses a sale in the admin while buyers send orders to several web processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from redis import Redis

from inventory.strategies import registry
from loadtest.tokens import access_token
from shop.models import Order, Sale
from shop.orders.queued import save_queued
from tests.factories import OnSale, new_customer, on_sale
from tests.shop.conftest import assert_conserved, order_body
from tests.shop.web_server import ask, web_server
from tests.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

BUYERS = 8
BEFORE, AFTER = 40, 40
"""Number of accepted orders before the pause, and of refused requests after it."""


class Burst:
    """Buyers who send orders one after the other, each with their own connections, until the burst is stopped."""

    def __init__(self, port: int, offer: OnSale) -> None:
        self.port = port
        self.body = json.dumps(order_body(offer, a=1))
        self.accepted: list[UUID] = []
        self.refused: list[str] = []
        self.stopped = threading.Event()

    def buyer(self, customer: int) -> Callable[[], None]:
        headers = {"Authorization": f"Bearer {access_token(customer)}", "Content_Type": "application/json"}

        def buy() -> None:
            while not self.stopped.is_set():
                key = str(uuid4())
                status, _, answer = ask(self.port, "POST", "/api/orders/", self.body, Idempotency_Key=key, **headers)
                if status in (201, 202):
                    self.accepted.append(UUID(answer["id"]))
                else:
                    self.refused.append(answer["type"])

        return buy


def taken() -> set[UUID]:
    """Return the orders that are saved, queued, or being saved."""
    return set(Order.objects.values_list("pk", flat=True)) | registry.counters().order_ids()


def pause(operator: Client, sale: int) -> None:
    """Send the form of the admin. It runs in this process, so none of the web processes is told of the pause."""
    answer = operator.post(f"/admin/shop/sale/{sale}/pause/", {"why": "Wrong price."})
    assert answer.status_code == 302
    assert Sale.objects.get(pk=sale).paused_at is not None


@pytest.mark.parametrize("strategy", ["group-commit", "guarded-update", "lua-queue"])
def test_a_pause_is_a_clean_cut_for_all_web_processes(redis: Redis, strategy: str) -> None:
    offer = on_sale({"a": 10_000}, strategy=strategy)
    operator = Client()
    operator.force_login(User.objects.create_superuser("root"))
    with web_server(WEB_PROCESSES="2", ORDER_RATE="1000") as (port, _), ThreadPoolExecutor(BUYERS) as pool:
        burst = Burst(port, offer)
        buyers = [pool.submit(burst.buyer(new_customer())) for _ in range(BUYERS)]
        try:
            wait_for(lambda: len(burst.accepted) >= BEFORE, "some orders", timeout=3 * PATIENCE)
            before = taken()
            pause(operator, offer.sale)
            at_the_pause, seen = taken(), len(burst.refused)
            wait_for(lambda: len(burst.refused) >= seen + AFTER, "some refusals", timeout=3 * PATIENCE)
        finally:
            burst.stopped.set()
        for buyer in buyers:
            buyer.result(3 * PATIENCE)
    save_queued()
    saved = set(Order.objects.filter(state="pending").values_list("pk", flat=True))
    assert saved <= at_the_pause, "an order was taken after the pause was answered"
    assert set(burst.accepted) <= saved, "an order that was answered is lost"
    assert "/api/problems/sale-paused/" in burst.refused
    assert saved - before, "negative control: orders came until the pause, so a later one would have been found"
    assert_conserved()
