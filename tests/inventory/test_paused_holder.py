"""A holder that is stopped (SIGSTOP) beyond its TTL notices the loss on waking, and Postgres refuses its writes."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connection
from redis import Redis

from inventory import stock
from inventory.models import StockItem
from inventory.strategies.locked import CLAIM
from locking import RedisLock
from tests.locking import actors
from tests.locking.support import RedisRecipe, paused, process
from tests.waiting import WAIT_TIMEOUT

pytestmark = pytest.mark.django_db(transaction=True)

UNGUARDED = CLAIM.replace("fence < %(fence)s", "true")


@pytest.mark.parametrize(("statement", "written"), [(CLAIM, 0), (UNGUARDED, 1)], ids=["guarded", "unguarded"])
def test_the_write_of_a_stopped_holder_is_refused(redis: Redis, statement: str, written: int) -> None:
    stock.deliver("a", 10)
    url = f"unix://{redis.connection_pool.connection_kwargs['path']}"
    server = connection.settings_dict
    conninfo = psycopg.conninfo.make_conninfo(
        host=server["HOST"], port=server["PORT"], user=server["USER"], dbname=server["NAME"]
    )
    arguments = (RedisRecipe(url), "stock:a", {"ttl": 0.5}, conninfo, statement)
    with process(actors.write_with_its_fence, *arguments) as (holder, pipe):
        fence = pipe.recv()
        with paused(holder.pid), RedisLock(redis, "stock:a").hold(timeout=WAIT_TIMEOUT) as lease:
            with connection.cursor() as cursor:
                cursor.execute(CLAIM, {"sku": "a", "units": 1, "fence": lease.fence, "kind": "redis-lock"})
            assert lease.fence > fence
            pipe.send("go on")
        assert pipe.recv() == ("lost", 1, written)
    assert StockItem.objects.get(sku="a").on_hand == 9 - written
