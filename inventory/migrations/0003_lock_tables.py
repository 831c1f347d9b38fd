from django.db import migrations

from locking.postgres.tables import LOCK_TABLES


class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0002_segments_units_movements'),
    ]

    operations = [
        # The tables of the locks in Postgres.
        migrations.RunSQL(LOCK_TABLES, "DROP TABLE lock_row, lock_grant; DROP SEQUENCE lock_fence"),
    ]
