from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0003_payments_and_refunds'),
    ]

    operations = [
        migrations.AddField(
            model_name='order',
            name='payable_from',
            field=models.DateTimeField(null=True),
        ),
        migrations.RunSQL("UPDATE shop_order SET payable_from = created_at", migrations.RunSQL.noop),
        migrations.AlterField(
            model_name='order',
            name='payable_from',
            field=models.DateTimeField(help_text='When it was placed; one that was queued, when it was saved.'),
        ),
        migrations.RemoveIndex(
            model_name='order',
            name='order_pending_by_age',
        ),
        migrations.AddIndex(
            model_name='order',
            index=models.Index(condition=models.Q(('state', 'pending')), fields=['payable_from'], name='order_pending_by_age'),
        ),
    ]
