"""A session keeps its plan until the tables of orders are analysed, so they are analysed once they have grown."""

from __future__ import annotations

import pytest
from django.db import connection

from shop.orders.statistics import analyze_grown_tables
from tests.factories import new_customer, on_sale

ORDERS = """
    INSERT INTO shop_order (id, customer_id, sale_id, currency, state, reason, key, body_hash, created_at, payable_from)
    SELECT gen_random_uuid(), %s, %s, 'EUR', 'paid', '', key::text, repeat('0', 64), now(), now()
      FROM generate_series(1, 3000) AS key
"""
CUSTOMERS = """
    INSERT INTO auth_user (username, password, email, first_name, last_name, is_superuser, is_staff, is_active,
                           date_joined)
    SELECT key::text, '', '', '', '', false, false, true, now() FROM generate_series(1, 3000) AS key
"""
LOOK_UP = "PREPARE look_up (bigint, text) AS SELECT true FROM shop_order WHERE customer_id = $1 AND key = $2 LIMIT 1"

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]


def run(statement: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)


@pytest.fixture(autouse=True)
def nearly_empty_tables(db: None) -> None:
    run("TRUNCATE shop_order, auth_user CASCADE")
    run("ANALYZE shop_order, auth_user")


def plan() -> str:
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (COSTS off) EXECUTE look_up (1, '1')")
        return "\n".join(line for (line,) in cursor.fetchall())


def test_a_session_drops_the_plan_of_a_nearly_empty_table() -> None:
    run("SET LOCAL plan_cache_mode = force_generic_plan")
    run("SET LOCAL enable_bitmapscan = off")
    run(LOOK_UP)
    assert "Seq Scan" in plan()
    run(ORDERS, new_customer(), on_sale({"a": 1}).sale)
    assert "Seq Scan" in plan()  # Without an ANALYZE, the session keeps its plan.
    assert analyze_grown_tables() == ["shop_order"]
    assert "using order_key_once_per_customer" in plan()
    assert analyze_grown_tables() == []


def test_tables_of_another_role_are_left_to_it() -> None:
    """Otherwise Postgres would log a warning each time."""
    run(ORDERS, new_customer(), on_sale({"a": 1}).sale)
    run("CREATE ROLE other")
    run("SET LOCAL ROLE other")
    assert analyze_grown_tables() == []
    run("RESET ROLE")
    assert analyze_grown_tables() == ["shop_order"]


def test_customers_are_analysed_too() -> None:
    """Guests make many new rows of customers, and the statement that saves an order reads the customer."""
    run(CUSTOMERS)
    assert analyze_grown_tables() == ["auth_user"]
