"""Prices and names: customers buy what they were shown, and the order keeps it. Free orders count as paid."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from inventory import stock
from inventory.models import StockMovement
from shop.models import Order, OrderItem, Product, SaleItem
from shop.orders import place
from shop.orders.errors import StillRunning
from shop.orders.expiry import expire_unpaid
from shop.orders.place import hash_of_body, place_order
from shop.orders.queued import save_queued
from shop.sales import offers
from tests.factories import OnSale, on_sale, orders_in
from tests.shop.conftest import Buyer, assert_conserved, assert_problem, make_due, order_body, taken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

SAVED_AND_QUEUED = ["guarded-update", "lua-queue"]
"""One strategy saves price and name in Postgres at once. The other keeps them in Redis until the order is saved."""


def body_with_price(offer: OnSale, price: Any, **units: int) -> dict[str, Any]:
    """Return an order body that names the price that the customer saw."""
    body = order_body(offer, **(units or {"a": 1}))
    return {**body, "items": [{**item, "price": price} for item in body["items"]]}


def set_price(price: str, **of: Any) -> None:
    """Change prices as an operator does. The offer in this process's cache keeps the old price."""
    SaleItem.objects.filter(**of).update(price=Decimal(price))


@pytest.mark.parametrize("name", SAVED_AND_QUEUED)
def test_an_order_at_another_price_is_refused_with_the_new_one(buyer: Buyer, name: str) -> None:
    offer = on_sale({"a": 3}, strategy=name, price="10.00")
    offers.get(offer.sale)
    set_price("99.00")
    offers.cache.clear()

    problem = assert_problem(buyer.order(body_with_price(offer, "10.00"), key="mine"), 409, "price-changed")

    assert problem["items"] == [{"product": offer.products["a"], "sku": "a", "expected": "10.00", "price": "99.00"}]
    assert problem["detail"] == "a costs 99.00, not 10.00."
    save_queued()
    assert (orders_in(), stock.on_hand("a"), taken()) == (0, 3, {})

    # The refusal has not used the key, so the customer can agree to the new price.
    agreed = buyer.order(body_with_price(offer, "99.00"), key="mine")
    assert agreed.json()["items"][0]["price"] == "99.00"
    save_queued()
    assert OrderItem.objects.get().price == Decimal("99.00")
    assert_conserved()


@pytest.mark.parametrize("name", SAVED_AND_QUEUED)
def test_a_retry_gets_its_order_at_the_price_of_the_first_request(buyer: Buyer, name: str) -> None:
    offer = on_sale({"a": 3}, strategy=name, price="10.00")
    first = buyer.order(body_with_price(offer, "10.00"), key="mine").json()
    for saved in (0, 1):
        set_price("99.00")
        offers.cache.clear()
        again = buyer.order(body_with_price(offer, "10.00"), key="mine")
        assert (again.json()["id"], again.json()["total"]) == (first["id"], "10.00"), saved
        assert again.headers["Idempotent-Replayed"] == "true"
        assert_problem(buyer.order(body_with_price(offer, "99.00"), key="mine"), 422, "key-reused")
        save_queued()
    assert OrderItem.objects.get().price == Decimal("10.00")


def test_the_newest_price_is_asked_for_before_an_order_is_refused(buyer: Buyer) -> None:
    offer = on_sale({"a": 3}, price="10.00")
    buyer.order(body_with_price(offer, "10.00"))
    set_price("99.00")  # Another process may show this price already.
    assert buyer.order(body_with_price(offer, "99.00")).json()["total"] == "99.00"
    assert buyer.order(body_with_price(offer, "99.00")).json()["total"] == "99.00", "the cache has the new price"


def test_each_changed_price_of_a_cart_is_named(buyer: Buyer) -> None:
    offer = on_sale({"a": 3, "b": 3, "c": 3}, price="10.00")
    set_price("11.00", product__sku__in=["a", "c"])
    problem = assert_problem(buyer.order(body_with_price(offer, "10.00", a=1, b=1, c=1)), 409, "price-changed")
    assert [(item["sku"], item["price"]) for item in problem["items"]] == [("a", "11.00"), ("c", "11.00")]


def test_a_malformed_price_is_refused(buyer: Buyer, settings: Any, subtests: pytest.Subtests) -> None:
    settings.ORDER_RATE = 1000
    offer = on_sale({"a": 3}, price="10.00")
    missing = assert_problem(
        buyer.order({"sale": offer.sale, "items": [{"product": 1, "quantity": 1}]}), 400, "invalid"
    )
    assert missing["errors"][0]["detail"].startswith("Send the price of one unit that the customer was shown.")
    for price in (10, 10.0, "10", "10.0", "10.000", "-10.00", "1e1", "", None, "9" * 15 + ".00"):
        with subtests.test(price=repr(price)):
            answer = buyer.order(body_with_price(offer, price))
            (error,) = assert_problem(answer, 400, "invalid", pointers=["#/items/0/price"])["errors"]
            assert price is None or error["detail"] == 'Send a string with two decimals, such as "10.00".'
    assert orders_in() == 0


def test_the_hash_of_a_request_does_not_change() -> None:
    """If it changed, an update of the shop would refuse the retry of a request that was served before the update."""
    prices = {1: Decimal("9.90"), 2: Decimal("5.00")}
    stored = hashlib.sha256(b'[7,[[1,3],[2,1]],[[1,"9.90"],[2,"5.00"]]]').hexdigest()
    assert hash_of_body(7, {2: 1, 1: 3}, prices) == stored


def test_an_order_names_the_price_of_each_product(customer: int) -> None:
    """Without a price, the customer could pay one that they were not shown."""
    offer = on_sale({"a": 1, "b": 1})
    prices = {offer.products["a"]: Decimal(offer.price)}
    cart = offer.cart(a=1, b=1)
    with pytest.raises(KeyError):
        place_order(customer=customer, sale=offer.sale, quantities=cart, key="k", expected_prices=prices)
    assert orders_in() == 0


def test_a_retry_at_another_price_waits_for_the_running_request(customer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = on_sale({"a": 3}, price="10.00")
    monkeypatch.setitem(place._running, (customer, "mine"), uuid4())
    prices = {offer.products["a"]: Decimal("9.00")}
    with pytest.raises(StillRunning):
        place_order(customer=customer, sale=offer.sale, quantities=offer.cart(a=1), key="mine", expected_prices=prices)


def name_in(order: dict[str, Any]) -> str:
    return str(order["items"][0]["name"])


@pytest.mark.parametrize("name", SAVED_AND_QUEUED)
def test_an_order_keeps_the_name_of_its_product(buyer: Buyer, admin_client: Client, name: str) -> None:
    offer = on_sale({"a": 3}, strategy=name)
    placed = buyer.order(order_body(offer, a=1), key="mine")
    Product.objects.update(name="Renamed")
    offers.cache.clear()
    for _ in range(2):
        retried = buyer.order(order_body(offer, a=1), key="mine")
        looked = buyer.get(placed.headers["Location"])
        assert [name_in(each.json()) for each in (placed, retried, looked)] == ["A"] * 3
        save_queued()
    assert name_in(buyer.get("/api/orders/").json()["results"][0]) == "A"
    page = admin_client.get(f"/admin/shop/order/{placed.json()['id']}/change/").content.decode()
    assert ">A<" in page.replace("\n", "").replace(" ", "")
    assert name_in(buyer.order(order_body(offer, a=1)).json()) == "Renamed"


def test_a_rejected_order_keeps_the_names_of_its_items(buyer: Buyer) -> None:
    offer = on_sale({"a": 3}, strategy="lua-queue")
    location = buyer.order(order_body(offer, a=1)).headers["Location"]
    Product.objects.update(name="Renamed")
    stock.move("a", StockMovement.Kind.CORRECTED, -3, why="lost")
    save_queued()
    rejected = buyer.get(location).json()
    assert (rejected["state"], name_in(rejected)) == ("rejected", "A")


@pytest.mark.parametrize("secret", ["", "shared with the provider"])
@pytest.mark.parametrize("name", SAVED_AND_QUEUED)
def test_a_free_order_is_paid_at_once(buyer: Buyer, settings: Any, name: str, secret: str) -> None:
    settings.PAYMENT_SECRET = secret
    offer = on_sale({"a": 3}, strategy=name, price="0.00")
    answer = buyer.order(body_with_price(offer, "0.00"))
    first = "queued" if answer.status_code == 202 else "paid"
    assert (answer.json()["state"], answer.json()["pay_by"]) == (first, None)
    save_queued()
    make_due()
    assert expire_unpaid() == 0
    order = buyer.get(answer.headers["Location"]).json()
    assert (order["state"], order["pay_by"], stock.on_hand("a")) == ("paid", None, 2)
    assert_conserved()


def test_a_cart_that_costs_something_is_pending(buyer: Buyer) -> None:
    offer = on_sale({"a": 3, "b": 3}, price="0.00")
    set_price("0.01", product__sku="b")
    offers.cache.clear()
    body = order_body(offer, a=1, b=1)
    body["items"][1]["price"] = "0.01"
    answer = buyer.order(body).json()
    assert (answer["state"], Order.objects.get().state) == ("pending", "pending")
