import django.core.validators
from django.db import migrations, models

import shop.models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0009_returns_and_refunds'),
    ]

    operations = [
        migrations.AddField(
            model_name='product',
            name='description',
            field=models.TextField(blank=True, db_default='', default='', help_text='One or two sentences for buyers.'),
        ),
        migrations.AddField(
            model_name='product',
            name='picture',
            field=models.CharField(blank=True, db_default='', default='', help_text='Address of the picture, such as /static/shop/products/keyboard.svg. Its server: PICTURE_ORIGINS.', max_length=300, validators=[django.core.validators.RegexValidator('^(https://|/)', 'Enter an address that begins with https:// or /.')]),
        ),
        migrations.AddField(
            model_name='sale',
            name='stock_shown',
            field=models.CharField(choices=[('exact', 'The exact number'), ('few', 'Only whether few are left'), ('hidden', 'Only whether it is sold out')], db_default='exact', default='exact', help_text='What pages show of the units left. An order for more than that is answered with the number.', max_length=10),
        ),
        migrations.AddField(
            model_name='sale',
            name='slug',
            field=models.CharField(max_length=60, null=True),
        ),
        migrations.RunSQL("UPDATE shop_sale SET slug = 'sale-' || id", migrations.RunSQL.noop),
        migrations.AlterField(
            model_name='sale',
            name='slug',
            field=models.SlugField(db_default=shop.models.RANDOM_SLUG, default=shop.models.new_slug, help_text="The sale's page is /sales/<slug>/.", max_length=60, unique=True),
        ),
    ]
