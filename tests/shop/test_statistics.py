"""A session keeps its plan until the tables of orders are analysed, so they are analysed once they have grown."""

from __future__ import annotations

import pytest
from django.db import connection

from shop.orders.statistics import analyze_grown_tables
from tests.factories import on_sale

ORDERS = """
    INSERT INTO shop_order (id, customer_id, sale_id, currency, state, reason, key, body_hash, created_at, payable_from)
    SELECT gen_random_uuid(), %s, %s, 'EUR', 'paid', '', key::text, repeat('0', 64), now(), now()
      FROM generate_series(1, 3000) AS key
"""
LOOK_UP = "PREPARE look_up (bigint, text) AS SELECT true FROM shop_order WHERE customer_id = $1 AND key = $2 LIMIT 1"


def plan() -> str:
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (COSTS off) EXECUTE look_up (1, '1')")
        return "\n".join(line for (line,) in cursor.fetchall())


@pytest.mark.django_db
@pytest.mark.usefixtures("redis")
def test_a_session_drops_the_plan_of_a_nearly_empty_table(customer: int) -> None:
    offer = on_sale({"a": 1})
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE shop_order")
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute(LOOK_UP)
        assert "Seq Scan" in plan()
        cursor.execute(ORDERS, [customer, offer.sale])
    assert "Seq Scan" in plan()  # Without an ANALYZE, the session keeps its plan.
    assert analyze_grown_tables() == ["shop_order"]
    assert "using order_key_once_per_customer" in plan()
    assert analyze_grown_tables() == []
