import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

DROPPED = {
    "shop_allowance_sale_id_6733398a": "shop_allowance (sale_id)",
    "shop_order_customer_id_f638df20": "shop_order (customer_id)",
    "shop_orderitem_order_id_2f1b00cf": "shop_orderitem (order_id)",
    "shop_orderitem_sku_4fe5dbcb": "shop_orderitem (sku)",
    "shop_orderitem_sku_4fe5dbcb_like": "shop_orderitem (sku varchar_pattern_ops)",
    "shop_saleitem_sale_id_e4a2cf0d": "shop_saleitem (sale_id)",
}


def drop(name):
    return [f"DROP INDEX CONCURRENTLY IF EXISTS {name}"]


def create(name, columns):
    # An interrupted CREATE INDEX CONCURRENTLY leaves an invalid index, so drop it first.
    return [*drop(name), f"CREATE INDEX CONCURRENTLY {name} ON {columns}"]


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0017_endings'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    # Run each statement in its own transaction, so that the shop can go on selling: no statement blocks orders while it
    # waits for other orders.
    atomic = False

    operations = [
        # AlterField on the tables would drop each foreign key and make it again. That locks two tables, which can
        # deadlock with orders. An interruption would lose the foreign key.
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(create("order_item_sku", "shop_orderitem (sku)"), drop("order_item_sku")),
                *(migrations.RunSQL(drop(name), create(name, columns)) for name, columns in DROPPED.items()),
            ],
            state_operations=[
                migrations.AddIndex(
                    model_name='orderitem',
                    index=models.Index(fields=['product'], name='order_item_sku'),
                ),
                migrations.AlterField(
                    model_name='allowance',
                    name='sale',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, to='shop.sale'),
                ),
                migrations.AlterField(
                    model_name='order',
                    name='customer',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='orders', to=settings.AUTH_USER_MODEL),
                ),
                migrations.AlterField(
                    model_name='orderitem',
                    name='order',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='items', to='shop.order'),
                ),
                migrations.AlterField(
                    model_name='orderitem',
                    name='product',
                    field=models.ForeignKey(db_column='sku', db_index=False, on_delete=django.db.models.deletion.PROTECT, to='shop.product', to_field='sku'),
                ),
                migrations.AlterField(
                    model_name='saleitem',
                    name='sale',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='items', to='shop.sale'),
                ),
            ],
        ),
    ]
