"""Migrations keep the data of earlier versions. Foreign keys are there, and no index repeats another one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models.functions import Now
from django.utils import timezone

from shop.models import Order, OrderItem, Payment, Refund, Sale
from shop.orders.expiry import expire_unpaid
from tests.factories import new_customer, on_sale

pytestmark = pytest.mark.usefixtures("redis")

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
@pytest.mark.django_db(transaction=True)
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


@pytest.mark.django_db
def test_no_migration_drops_a_constraint_while_the_shop_sells() -> None:
    """`AlterField` drops a foreign key and makes it again: that deadlocks with orders, and may lose the key."""
    loader = MigrationExecutor(connection).loader
    live = [key for key in loader.graph.nodes if key[0] in LIVE and key[1] >= LIVE[key[0]]]
    assert len(live) >= 4
    for key in live:
        statements = loader.collect_sql([(loader.graph.nodes[key], False)])
        assert not [each for each in statements if "DROP CONSTRAINT" in each], key


# Indexes and foreign keys

# Compares columns and their operator classes, from the first one on. Skips partial indexes and indexes on expressions.
REPEATED = """
    SELECT shorter.indexrelid::regclass::text, longer.indexrelid::regclass::text
      FROM pg_index AS shorter
      JOIN pg_index AS longer USING (indrelid)
      JOIN pg_class ON pg_class.oid = indrelid AND relnamespace = 'public'::regnamespace
     WHERE shorter.indexrelid <> longer.indexrelid
       AND NOT shorter.indisunique AND shorter.indpred IS NULL AND longer.indpred IS NULL
       AND shorter.indexprs IS NULL AND longer.indexprs IS NULL
       AND longer.indkey::text || ' ' LIKE shorter.indkey::text || ' %'
       AND longer.indclass::text || ' ' LIKE shorter.indclass::text || ' %'
     ORDER BY 1
"""


@pytest.mark.django_db
def test_no_index_repeats_the_beginning_of_another() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX shop_control ON shop_order (customer_id)")
        cursor.execute(REPEATED)
        found = cursor.fetchall()
    ours = [pair for pair in found if pair[0].startswith(("shop_", "inventory_", "lab_"))]
    assert ours == [("shop_control", "order_key_once_per_customer")]


@pytest.mark.django_db
def test_each_foreign_key_of_the_models_is_in_the_tables() -> None:
    """A migration that drops a key and makes it again loses the key if it is interrupted in between."""
    missing = []
    with connection.cursor() as cursor:
        # The control: a key that is not there.
        cursor.execute("ALTER TABLE shop_order DROP CONSTRAINT shop_order_sale_id_62db70ac_fk_shop_sale_id")
        for model in apps.get_models():
            table = model._meta.db_table
            found = connection.introspection.get_constraints(cursor, table).values()
            in_table = {column for each in found if each["foreign_key"] for column in each["columns"]}
            keys = {field.column for field in model._meta.local_fields if field.is_relation and field.db_constraint}
            missing += [(table, column) for column in keys - in_table]
    assert missing == [("shop_order", "sale_id")]


# Ids of orders begin with the time, so the pending orders are the last ones in the index of ids. A worker has saved the
# last 250 of them together, so they are payable from the same time.
ORDERS = """
    INSERT INTO shop_order (id, customer_id, sale_id, currency, state, reason, key, body_hash, created_at, payable_from)
    SELECT lpad(to_hex(number), 32, '0')::uuid, %s, %s, 'EUR', CASE WHEN number > 9000 THEN 'pending' ELSE 'paid' END,
           '', number::text, repeat('0', 64), placed, placed
      FROM generate_series(1, 10000) AS number,
           LATERAL (SELECT now() - make_interval(hours => 10001 - least(number, 9751))) AS at (placed)
"""


class RowsRead:
    """A wrapper of statements that counts the rows which each `SELECT … LIMIT 100` reads from a table or an index."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.endswith(" LIMIT 100"):
            execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params, many, context)
            ((plan,),) = context["cursor"].fetchone()
            self.counts.append(self._of(plan["Plan"]))
        return execute(sql, params, many, context)

    def _of(self, node: dict[str, Any]) -> int:
        if inner := node.get("Plans"):
            return sum(map(self._of, inner))
        return int(node["Actual Rows"]) + int(node.get("Rows Removed by Filter", 0))


@pytest.mark.django_db
def test_expiry_does_not_read_the_orders_of_the_past() -> None:
    with connection.cursor() as cursor:
        cursor.execute(ORDERS, [new_customer(), on_sale({"a": 1}).sale])
        cursor.execute("ANALYZE shop_order")
    pending = Order.objects.filter(state=Order.State.PENDING, payable_from__lte=Now())
    with connection.execute_wrapper(by_id := RowsRead()):
        assert len(pending.order_by("pk").values_list("pk")[:100]) == 100
    assert by_id.counts == [9100], "the control"
    with connection.execute_wrapper(expiry := RowsRead()):
        assert expire_unpaid() == 1000
    assert len(expiry.counts) == 11
    assert max(expiry.counts) <= 350
