from django.db import migrations, models

SPLIT_NOW = """
    UPDATE inventory_stockitem
       SET split_by = CASE WHEN EXISTS (SELECT FROM inventory_stockunit AS unit WHERE unit.sku = inventory_stockitem.sku)
                           THEN 'unit-rows'
                           ELSE 'segmented-lock'
                      END
     WHERE EXISTS (SELECT FROM inventory_stockunit AS unit WHERE unit.sku = inventory_stockitem.sku)
        OR EXISTS (SELECT FROM inventory_stocksegment AS segment
                    WHERE segment.sku = inventory_stockitem.sku AND segment.on_hand > 0)
"""


class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0003_lock_tables'),
    ]

    operations = [
        migrations.AddField(
            model_name='stockitem',
            name='split_by',
            field=models.CharField(default='', editable=False, help_text='The strategy that has split the stock for a sale; only it may split it again. Empty: not split.', max_length=40),
        ),
        migrations.RunSQL(SPLIT_NOW, migrations.RunSQL.noop),
    ]
