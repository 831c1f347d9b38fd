import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


# This is separate from 0016, so that no transaction waits for the lock on the orders while it holds the lock on the
# sales: the transaction of an order locks both tables, so there could be a deadlock.
class Migration(migrations.Migration):

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ('shop', '0016_guests'),
    ]

    operations = [
        migrations.CreateModel(
            name='Ending',
            fields=[
                ('order', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='ending', serialize=False, to='shop.order')),
                ('state', models.CharField(choices=[('pending', 'Pending'), ('paid', 'Paid'), ('cancelled', 'Cancelled'), ('expired', 'Expired'), ('rejected', 'Rejected'), ('refunded', 'Refunded')], help_text='State of the order from then on.', max_length=20)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('by', models.ForeignKey(help_text='Empty when a program of the shop ended it.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
    ]
