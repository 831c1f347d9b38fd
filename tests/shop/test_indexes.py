"""Each index costs every order a write, so no index repeats the beginning of another one of its table."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection

# Compares the whole definition: columns with their operator classes and collations, from the first one on.
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
        cursor.execute(
            "ALTER TABLE shop_order DROP CONSTRAINT shop_order_sale_id_62db70ac_fk_shop_sale_id"
        )  # the control
        for model in apps.get_models():
            table = model._meta.db_table
            found = connection.introspection.get_constraints(cursor, table).values()
            in_table = {column for each in found if each["foreign_key"] for column in each["columns"]}
            keys = {field.column for field in model._meta.local_fields if field.is_relation and field.db_constraint}
            missing += [(table, column) for column in keys - in_table]
    assert missing == [("shop_order", "sale_id")]
