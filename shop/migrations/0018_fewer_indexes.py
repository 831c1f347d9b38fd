import django.db.models.deletion
from django.conf import settings
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0017_endings'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    atomic = False

    operations = [
        # The shop goes on selling while the index is built.
        AddIndexConcurrently(
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
    ]
