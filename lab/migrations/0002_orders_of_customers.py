from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('lab', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='rungorder',
            name='customer',
            field=models.BigIntegerField(default=0),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name='rungorder',
            name='key',
            field=models.CharField(default='', help_text='The idempotency key. Nothing makes it unique.', max_length=128),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name='rungorder',
            name='state',
            field=models.CharField(choices=[('placed', 'Placed'), ('cancelled', 'Cancelled')], default='placed', max_length=9),
        ),
        migrations.AddField(
            model_name='rungorder',
            name='counted',
            field=models.BooleanField(default=False, help_text="Its units were never subtracted from the stock's row: they are counted here."),
        ),
        migrations.AlterField(
            model_name='rungorder',
            name='order',
            field=models.UUIDField(db_index=True),
        ),
    ]
