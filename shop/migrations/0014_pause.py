from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0013_waiting_room'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='sale',
            options={'ordering': ['-opens_at'], 'permissions': [('pause_sale', 'Can pause and resume sale')]},
        ),
        migrations.AddField(
            model_name='sale',
            name='paused_at',
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
    ]
