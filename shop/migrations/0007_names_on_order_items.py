from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0006_sign_out'),
    ]

    operations = [
        migrations.AddField(
            model_name='orderitem',
            name='name',
            field=models.CharField(default='', help_text='Name of the product when the order was placed.', max_length=200),
            preserve_default=False,
        ),
        migrations.RunSQL(
            "UPDATE shop_orderitem SET name = shop_product.name FROM shop_product WHERE shop_product.sku = shop_orderitem.sku",
            migrations.RunSQL.noop,
        ),
        # An order that costs nothing is complete at once. Pending orders of amount 0 could never be paid at a provider.
        migrations.RunSQL(
            "UPDATE shop_order SET state = 'paid' WHERE state = 'pending'"
            " AND NOT EXISTS (SELECT FROM shop_orderitem WHERE order_id = shop_order.id AND price <> 0)",
            migrations.RunSQL.noop,
        ),
    ]
