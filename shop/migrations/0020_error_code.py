from importlib import import_module

from django.db import migrations

BEFORE = import_module("shop.migrations.0019_order_functions").ALL_OR_NOTHING

# Use a separate error code. So the shop does not confuse this error with an error of a trigger, and logs can leave it
# out.
WITH_CODE = """
    CREATE OR REPLACE FUNCTION shop_all_or_nothing(complete boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        IF NOT complete THEN
            RAISE EXCEPTION 'Not all of these orders can be saved together: the shop saves them one by one'
                USING ERRCODE = 'LU001';
        END IF;
        RETURN true;
    END $$
"""


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0019_order_functions'),
    ]

    operations = [
        migrations.RunSQL(WITH_CODE, BEFORE),
    ]
