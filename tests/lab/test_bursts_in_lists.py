"""A burst of a flawed rung is in no list of sales: not in the admin, on the overview, in the shop or in the API."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from lab.models import RungOrder
from loadtest.outcome import close_sale
from loadtest.preparation import prepare
from shop.models import Order, Sale
from shop.overview import document
from tests.factories import new_customer
from tests.shop.conftest import Buyer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

LISTS = ("/admin/shop/sale/", "/admin/", "/admin/live/", "/", "/sales/", "/api/sales/")
STOREFRONT = {"/", "/sales/"}
"""Lists that show no load test."""


def test_the_sale_of_a_flawed_rung_is_in_no_list(live_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: lists show the sale of a strategy, and the sale of a rung that has a strategy by mistake."""
    operator = Client()
    operator.force_login(User.objects.create_superuser("root"))

    def lists_of(**seller: str) -> list[str]:
        """Sell a unit in a burst. Return the lists that show the sale before the burst ends."""
        customers = [new_customer()]
        burst = prepare(**{"strategy": "lua", **seller}, units=5, customers=customers, limit=1, host=live_server.url)  # type: ignore[arg-type]
        body = burst.body(burst.cart())
        sent = Buyer(customers[0]).post(burst.path, body, format="json", headers={"Idempotency-Key": "mine"})
        assert sent.status_code == 201
        name = Sale.objects.get(pk=burst.sale).name.partition(",")[0]
        monkeypatch.setattr(document, "shared", document.SharedFigures())
        try:
            return [path for path in LISTS if name in operator.get(path).content.decode()]
        finally:
            close_sale(burst)

    assert lists_of(rung="compute-and-overwrite") == []
    assert RungOrder.objects.count() == 1
    assert not Order.objects.exists()
    assert lists_of(strategy="lua") == [path for path in LISTS if path not in STOREFRONT]
    monkeypatch.setattr("loadtest.preparation.NO_STRATEGY", "lua")
    assert lists_of(rung="compute-and-overwrite") == ["/admin/shop/sale/"]
