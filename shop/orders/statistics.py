"""Statistics of Postgres for the tables that an order reads and that grow in a sale."""

from __future__ import annotations

from django.db import connection

# In the first minute of a large sale, a table may grow from nearly nothing to 50,000 rows. Until it is analysed again,
# Postgres reads the whole table for each key that it looks up. Autovacuum checks the tables only once a minute. Leave
# out growth of fewer than 10 pages: reading a small table as a whole is cheap. `auth_user` is included because each
# guest is a row of it. Leave out tables of other owners, because only the owner of a table can analyse it.
GROWN = """
    SELECT relname
      FROM pg_class
     WHERE oid = ANY(ARRAY['auth_user', 'shop_order', 'shop_orderitem', 'shop_allowance']::regclass[])
       AND pg_has_role(relowner, 'USAGE')
       AND pg_relation_size(oid) / current_setting('block_size')::int > 4 * relpages + 10
     ORDER BY relname
"""


def analyze_grown_tables() -> list[str]:
    """Analyse the tables that have grown to more than four times their size since they were last vacuumed or analysed.

    Sessions then drop the query plans that they made with the old statistics. This leaves out tables that another
    session is analysing.

    Returns:
        The names of the tables that have grown.
    """
    with connection.cursor() as cursor:
        cursor.execute(GROWN)
        tables = [name for (name,) in cursor.fetchall()]
        for table in tables:
            cursor.execute(f"ANALYZE (SKIP_LOCKED) {table}")
    return tables
