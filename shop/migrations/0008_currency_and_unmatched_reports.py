import django.core.validators
import django.db.models.deletion
import shop.models
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0007_names_on_order_items'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='sale',
            name='currency',
            field=models.CharField(default=shop.models.default_currency, help_text='Currency of the prices: a code of ISO 4217, such as EUR. It cannot be changed later.', max_length=3, validators=[django.core.validators.RegexValidator('^[A-Z]{3}$', 'Enter a currency code such as EUR.')]),
        ),
        migrations.AddField(
            model_name='order',
            name='currency',
            field=models.CharField(default='', editable=False, max_length=3),
            preserve_default=False,
        ),
        migrations.RunSQL(
            "UPDATE shop_order SET currency = shop_sale.currency FROM shop_sale WHERE shop_sale.id = sale_id",
            migrations.RunSQL.noop,
        ),
        migrations.AddField(
            model_name='payment',
            name='currency',
            field=models.CharField(default='', max_length=3),
            preserve_default=False,
        ),
        migrations.RunSQL(
            "UPDATE shop_payment SET currency = shop_order.currency FROM shop_order WHERE shop_order.id = order_id",
            migrations.RunSQL.noop,
        ),
        migrations.CreateModel(
            name='UnmatchedReport',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(editable=False, help_text='SHA-256 of the report.', max_length=64, unique=True)),
                ('report', models.TextField(help_text='The report as the provider has signed it.')),
                ('reason', models.CharField(help_text='Why it was not booked.', max_length=200)),
                ('received_at', models.DateTimeField(auto_now_add=True)),
                ('settled_at', models.DateTimeField(blank=True, null=True)),
                ('settled_by', models.ForeignKey(blank=True, help_text='Empty when the provider repeated the report and it was booked.', null=True, on_delete=django.db.models.deletion.PROTECT, to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-received_at', '-pk'],
                'indexes': [models.Index(condition=models.Q(('settled_at', None)), fields=['received_at'], name='unmatched_report_open')],
            },
        ),
    ]
