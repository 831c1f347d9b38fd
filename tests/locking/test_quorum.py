"""Locks on three servers. The leader is killed or cut off, a follower loses its disk, or the holder is paused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection

from inventory import stock
from inventory.models import StockItem
from inventory.strategies.locked import CLAIM
from inventory.strategies.locks import conninfo
from locking import Lease, LockUnavailable
from servers import ServerError
from tests.locking import actors
from tests.locking.quorum_support import Quorum, granted, renewed, running_quorum
from tests.locking.support import Pool, acquired, paused, process
from tests.locking.zookeeper_support import SHORTEST
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = pytest.mark.slow

LONG = 10.0
"""Seconds: longer than any election."""
UNGUARDED = CLAIM.replace("fence < %(fence)s", "true")


@pytest.fixture(params=["etcd", "zookeeper"])
def quorum(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Quorum]:
    with running_quorum(request.param, tmp_path) as running:
        yield running


def test_a_holder_whose_own_server_is_killed_keeps_the_lock_or_is_told(quorum: Quorum, threads: Pool) -> None:
    """When its server is killed, a ZooKeeper holder moves to another and keeps the lock. An etcd holder is told."""
    leader, (one, other) = quorum.cluster.leader(), quorum.followers()
    told: list[Lease] = []
    ttl = SHORTEST if quorum.is_etcd else LONG
    lease = acquired(quorum.recipe(leader, one)("stock", ttl=ttl, on_lost=told.append))
    waiter = threads.submit(granted, quorum.recipe(other, one, own=1)("stock", ttl=LONG))
    leader.kill()
    if quorum.is_etcd:
        second = waiter.result(WAIT_TIMEOUT)
        assert lease.lost
        wait_for(lambda: told)
        assert second.fence > lease.fence  # type: ignore[operator]
    else:
        assert renewed(lease)
        assert not waiter.done()
        assert lease.release() is True
        second = waiter.result(WAIT_TIMEOUT)
    assert second.release() is True


def test_a_minority_grants_nothing_and_its_holder_is_told_first(
    quorum: Quorum, threads: Pool, record_property: Callable[[str, object], None]
) -> None:
    old, (one, other) = quorum.cluster.leader(), quorum.followers()
    minority, majority = quorum.recipe(old), quorum.recipe(one, other)
    told: list[float] = []
    lock = minority("stock", ttl=SHORTEST, on_lost=lambda lease: told.append(time.monotonic()))
    acquired(minority("another", ttl=SHORTEST)).release()  # Locks are granted while the network is whole.
    lease = acquired(lock)
    cut = time.monotonic()
    quorum.cluster.isolate(old)
    waiter = threads.submit(granted, majority("stock", ttl=LONG))
    attempts = 0
    while not waiter.done():
        attempts += 1
        with pytest.raises(LockUnavailable):
            minority("another", ttl=SHORTEST).acquire(timeout=0.5)
    second = waiter.result()
    assert lease.lost  # The lease is lost before the majority grants the lock to another client.
    record_property("seconds from the cut to the grant", time.monotonic() - cut)
    record_property("seconds from the cut to the call of on_lost", wait_for(lambda: told)[0] - cut)
    assert attempts
    assert second.fence > lease.fence  # type: ignore[operator]
    quorum.cluster.heal()
    assert second.release() is True
    third = granted(minority("stock", ttl=SHORTEST))
    assert third.fence > second.fence  # type: ignore[operator]
    third.release()


def test_a_follower_that_lost_its_disk_forgets_no_grant(quorum: Quorum, threads: Pool) -> None:
    leader, (empty, other) = quorum.cluster.leader(), quorum.followers()
    lease = acquired(quorum.recipe(other, empty)("stock", ttl=LONG))
    quorum.replace_disk(empty)
    leader.kill()  # Now the follower and the member with the new disk are the majority.
    assert quorum.cluster.leader() is not leader
    waiter = threads.submit(granted, quorum.recipe(empty, other, own=1)("stock", ttl=LONG))
    assert renewed(lease)
    assert not waiter.done()
    assert lease.release() is True
    assert waiter.result(WAIT_TIMEOUT).release() is True


def test_two_losses_at_once_make_zookeeper_forget_and_etcd_refuse(quorum: Quorum) -> None:
    """Negative control: no quorum survives two losses. ZooKeeper forgets the grant; etcd does not start."""
    leader, (late, empty) = quorum.cluster.leader(), quorum.followers()
    quorum.cluster.isolate(late)
    wait_for(lambda: not late.status().up)
    lease = acquired(quorum.recipe(leader)("stock", ttl=60.0))
    leader.kill()
    empty.kill()
    empty.lose_disk()
    quorum.cluster.network.heal()
    empty.launch()
    if quorum.is_etcd:
        with pytest.raises(ServerError, match="has already been bootstrapped"):
            empty.wait()
    else:
        second = granted(quorum.recipe(late, empty)("stock", ttl=LONG))
        assert not lease.lost
        second.release()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("statement", "written"), [(CLAIM, 0), (UNGUARDED, 1)], ids=["guarded", "unguarded"])
def test_the_fence_and_not_the_quorum_stops_a_paused_holder(quorum: Quorum, statement: str, written: int) -> None:
    stock.deliver("a", 10)
    recipe = quorum.recipe(*quorum.followers())
    arguments = (recipe, "stock:a", {"ttl": SHORTEST}, conninfo(), statement)
    with process(actors.write_with_its_fence, *arguments) as (holder, pipe):
        fence = pipe.recv()
        with paused(holder.pid):
            lease = granted(recipe("stock:a", ttl=LONG))
            with connection.cursor() as cursor:
                cursor.execute(CLAIM, {"sku": "a", "units": 1, "fence": lease.fence, "kind": "redis-lock"})
            assert lease.fence > fence
            pipe.send("go on")
        assert pipe.recv() == ("lost", 1, written)
        lease.release()
    assert StockItem.objects.get(sku="a").on_hand == 9 - written
