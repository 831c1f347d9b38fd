"""Migrations keep the data of earlier versions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from shop.models import Order, OrderItem, Payment, Refund, Sale
from tests.factories import new_customer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

BEFORE = "0005_plain_help_texts"


@pytest.fixture
def earlier() -> Iterator[Any]:
    """The models of the version without names, currencies and refunds. The newest tables are restored at the end."""
    executor = MigrationExecutor(connection)
    newest = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "shop"]
    executor.migrate([("shop", BEFORE)])
    try:
        yield executor.loader.project_state([("shop", BEFORE)]).apps
    finally:
        MigrationExecutor(connection).migrate(newest)


@pytest.mark.slow
def test_orders_keep_names_currency_and_refunds(earlier: Any) -> None:
    sale_model, order_model, payment_model = (earlier.get_model("shop", name) for name in ("Sale", "Order", "Payment"))
    now, customer, operator = timezone.now(), new_customer(), new_customer()
    product = earlier.get_model("shop", "Product").objects.create(sku="a", name="Old name")
    sale = sale_model.objects.create(name="A sale", opens_at=now, closes_at=now + timedelta(hours=1))
    same = {"customer_id": customer, "sale": sale, "created_at": now, "payable_from": now}
    item_model = earlier.get_model("shop", "OrderItem")
    orders = {}
    for key, price in (("free", 0), ("pending", 5), ("paid", 5)):
        orders[key] = order_model.objects.create(id=uuid4(), key=key, **same)
        item_model.objects.create(order=orders[key], product=product, quantity=2, price=price)
    order_model.objects.filter(key="paid").update(state="paid")
    of_order, sent = {"order": orders["paid"], "amount": 10}, {"refunded_at": now, "refunded_by_id": operator}
    payment_model.objects.create(reference="one", outcome="paid", **of_order)
    payment_model.objects.create(reference="two", outcome="refund_due", note="Again.", **of_order)
    payment_model.objects.create(reference="three", outcome="refund_due", **of_order, **sent)

    executor = MigrationExecutor(connection)
    executor.migrate([node for node in executor.loader.graph.leaf_nodes() if node[0] == "shop"])

    assert set(OrderItem.objects.values_list("name", "returned")) == {("Old name", 0)}
    assert dict(Order.objects.values_list("key", "state")) == {"free": "paid", "pending": "pending", "paid": "paid"}
    for model in (Sale, Order, Payment):
        assert set(model._default_manager.values_list("currency", flat=True)) == {"EUR"}
    refunds = Refund.objects.order_by("payment__reference").values_list(
        "payment__reference", "amount", "note", "sent_at", "sent_by"
    )
    assert list(refunds) == [("three", Decimal(10), "", now, operator), ("two", Decimal(10), "Again.", None, None)]


LIVE = {"shop": "0016", "inventory": "0005"}
"""The first migration of each app that has to run while the shop sells."""


def test_no_migration_drops_a_constraint_while_the_shop_sells() -> None:
    """`AlterField` drops a foreign key and makes it again: that deadlocks with orders, and may lose the key."""
    loader = MigrationExecutor(connection).loader
    live = [key for key in loader.graph.nodes if key[0] in LIVE and key[1] >= LIVE[key[0]]]
    assert len(live) >= 4
    for key in live:
        statements = loader.collect_sql([(loader.graph.nodes[key], False)])
        assert not [each for each in statements if "DROP CONSTRAINT" in each], key
