import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ('shop', '0015_help_texts'),
    ]

    operations = [
        migrations.AddField(
            model_name='sale',
            name='guest_checkout',
            field=models.BooleanField(db_default=False, default=False, help_text='Let visitors buy as guests. A limit per customer is then only as strong as the cost of a new guest.'),
        ),
        migrations.CreateModel(
            name='Guest',
            fields=[
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, serialize=False, to=settings.AUTH_USER_MODEL)),
                ('email', models.EmailField(help_text='For the receipt. Nobody has proved that it is theirs, so it opens no account and gets no mail.', max_length=254)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
    ]
