import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0004_split_by'),
    ]

    operations = [
        migrations.AlterField(
            model_name='stocksegment',
            name='item',
            field=models.ForeignKey(db_column='sku', db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='segments', to='inventory.stockitem'),
        ),
    ]
