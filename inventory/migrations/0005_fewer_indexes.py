import django.db.models.deletion
from django.db import migrations, models

SKU = "inventory_stocksegment_sku_eb2348d8"


class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0004_split_by'),
    ]

    # The shop sells during this migration. One transaction would keep its locks, and stop new orders, while a statement
    # waits for running orders.
    atomic = False

    operations = [
        # AlterField on the table would drop the foreign key and create it again, which locks both tables.
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    [f"DROP INDEX CONCURRENTLY IF EXISTS {SKU}"],
                    [f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {SKU} ON inventory_stocksegment (sku)"],
                ),
                migrations.RunSQL(
                    [f"DROP INDEX CONCURRENTLY IF EXISTS {SKU}_like"],
                    [f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {SKU}_like ON inventory_stocksegment (sku varchar_pattern_ops)"],
                ),
            ],
            state_operations=[
                migrations.AlterField(
                    model_name='stocksegment',
                    name='item',
                    field=models.ForeignKey(db_column='sku', db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='segments', to='inventory.stockitem'),
                ),
            ],
        ),
    ]
