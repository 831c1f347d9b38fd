import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0008_currency_and_unmatched_reports'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField(
            model_name='order',
            name='state',
            field=models.CharField(choices=[('pending', 'Pending'), ('paid', 'Paid'), ('cancelled', 'Cancelled'), ('expired', 'Expired'), ('rejected', 'Rejected'), ('refunded', 'Refunded')], default='pending', max_length=20),
        ),
        migrations.AddField(
            model_name='orderitem',
            name='returned',
            field=models.PositiveIntegerField(db_default=0, default=0, help_text='Units that came back after payment.'),
        ),
        migrations.AddConstraint(
            model_name='orderitem',
            constraint=models.CheckConstraint(condition=models.Q(('returned__lte', models.F('quantity'))), name='order_item_returned_at_most_once'),
        ),
        migrations.CreateModel(
            name='Refund',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('amount', models.DecimalField(decimal_places=2, max_digits=16)),
                ('note', models.CharField(blank=True, help_text='Why the money goes back.', max_length=200)),
                ('chargeback', models.CharField(blank=True, help_text='Reference of the provider that took it back.', max_length=128, null=True, unique=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('sent_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('payment', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='refunds', to='shop.payment')),
                ('sent_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['created_at', 'pk'],
                'indexes': [models.Index(condition=models.Q(('sent_at', None)), fields=['payment'], name='refund_due')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('chargeback', None), ('sent_at', None), ('sent_by', None)), models.Q(('chargeback', None), ('sent_at__isnull', False), ('sent_by__isnull', False)), models.Q(('chargeback__isnull', False), ('sent_at__isnull', False), ('sent_by', None)), _connector='OR'), name='refund_sent_by_somebody_or_the_provider')],
            },
        ),
        migrations.RunSQL(
            "INSERT INTO shop_refund (payment_id, amount, note, created_at, sent_at, sent_by_id)"
            " SELECT id, amount, note, received_at, refunded_at, refunded_by_id FROM shop_payment WHERE outcome = 'refund_due'",
            migrations.RunSQL.noop,
        ),
        migrations.RemoveConstraint(
            model_name='payment',
            name='payment_refunded_by_somebody_and_only_if_due',
        ),
        migrations.RemoveIndex(
            model_name='payment',
            name='payment_refund_open',
        ),
        migrations.RemoveField(
            model_name='payment',
            name='refunded_at',
        ),
        migrations.RemoveField(
            model_name='payment',
            name='refunded_by',
        ),
    ]
