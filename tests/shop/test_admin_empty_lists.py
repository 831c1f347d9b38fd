"""The text of an admin list without rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client

from tests.factories import on_sale
from tests.shop.conftest import buy
from tests.shop.test_admin import ORDERS, REFUNDS, get, text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


def test_each_list_says_what_leads_to_its_first_row(admin_client: Client) -> None:
    for model, its_admin in admin.site._registry.items():
        page = get(admin_client, f"/admin/{model._meta.app_label}/{model._meta.model_name}/")
        if model is not User:  # The list of users contains the user who views it.
            assert its_admin.none_yet in text(page), model  # type: ignore[attr-defined]
        assert ("yielded" in page, "Show all" in page) == (False, False), model


def test_only_who_may_add_a_row_is_led_to_it(admin_client: Client, staff: Callable[..., Client]) -> None:
    add = 'href="/admin/shop/product/add/">Add product'
    assert add in get(admin_client, "/admin/shop/product/")
    assert add not in get(staff("view_product"), "/admin/shop/product/")
    assert "/admin/shop/refund/add" not in get(admin_client, REFUNDS)


@pytest.mark.parametrize("query", [{"q": "nobody"}, {"state": "refunded"}])
def test_a_list_without_a_match_leads_to_all_rows(admin_client: Client, query: dict[str, str]) -> None:
    buy(on_sale({"a": 3}), a=1)
    page = get(admin_client, ORDERS, **query)
    assert "No orders match the search and the filters. Show all 1" in text(page)
    assert "No orders" not in get(admin_client, ORDERS)
