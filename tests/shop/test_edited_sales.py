"""A sale that is edited, or preheated, while orders and their units come and go."""

from __future__ import annotations

import pytest
from django.db import transaction

from inventory.models import StockItem
from shop.models import Order, SaleItem
from shop.orders.errors import KeyReused, UnknownProduct, UnknownSale
from shop.orders.place import hash_of_body, place_order
from shop.sales import lifecycle, offers
from tests.factories import interleaved, new_customer, on_sale

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.mark.parametrize("gone", ["the product", "the sale"])
def test_a_retry_is_the_same_order_also_when_what_it_ordered_is_offered_no_more(gone: str) -> None:
    offer, customer = on_sale({"a": 2}), new_customer()
    cart = offer.cart(a=1)
    placed = place_order(customer=customer, sale=offer.sale, quantities=cart, key="one")
    sale = offer.sale
    if gone == "the product":
        SaleItem.objects.all().delete()
    else:
        sale = 2**62
        Order.objects.update(body_hash=hash_of_body(sale, cart))
    offers._remembered.clear()

    again = place_order(customer=customer, sale=sale, quantities=cart, key="one")

    assert (again.order.pk, again.replayed) == (placed.order.pk, True)
    with pytest.raises(KeyReused):
        place_order(customer=customer, sale=sale, quantities={**cart, 2**40: 1}, key="one")
    with pytest.raises((UnknownProduct, UnknownSale)):
        place_order(customer=customer, sale=sale, quantities=cart, key="another")
    assert StockItem.objects.get(sku="a").on_hand == 1


def test_no_units_come_back_between_the_reading_and_the_copy_of_a_preheat() -> None:
    offer = on_sale({"a": 2}, strategy="lua")
    free: list[bool] = []

    def look() -> None:
        with transaction.atomic():
            free.append(StockItem.objects.select_for_update(skip_locked=True).filter(sku="a").exists())

    with interleaved(look, after="inventory_stockitem.*FOR NO KEY UPDATE"):
        lifecycle.preheat(offer.sale)

    assert free == [False]
