from django.db import migrations

# Declare the function VOLATILE. Then its query sees what was committed before the call. Otherwise it would see only
# what was committed before the calling statement began.
ACCEPTS = """
    CREATE OR REPLACE FUNCTION shop_accepts_order(customer bigint, sale bigint, made_at timestamptz, queued boolean)
    RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        RETURN EXISTS (SELECT FROM auth_user WHERE id = customer AND is_active)
           AND EXISTS (SELECT FROM shop_sale
                        WHERE id = sale AND opens_at <= made_at AND made_at < closes_at
                          AND (queued OR paused_at IS NULL));
    END $$
"""

ALL_OR_NOTHING = """
    CREATE OR REPLACE FUNCTION shop_all_or_nothing(complete boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        IF NOT complete THEN
            RAISE EXCEPTION 'Not all of these orders can be saved together: the shop saves them one by one';
        END IF;
        RETURN true;
    END $$
"""


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0018_fewer_indexes'),
    ]

    operations = [
        migrations.RunSQL(ACCEPTS, "DROP FUNCTION shop_accepts_order"),
        migrations.RunSQL(ALL_OR_NOTHING, "DROP FUNCTION shop_all_or_nothing"),
    ]
