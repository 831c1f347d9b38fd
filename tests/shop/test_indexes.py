"""Each index costs every order a write, so no index repeats the beginning of another one of its table."""

from __future__ import annotations

import pytest
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
