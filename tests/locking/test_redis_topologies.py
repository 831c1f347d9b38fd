"""RedisLock with replicas, Sentinel and a cluster, on real servers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from locking import Lock, LockUnavailable, RedisLock, Redlock, force_release, held
from locking.redis.nodes import node_of
from locking.redis.own_connections import OwnConnections, open_connection, own_connections
from servers import ServerError
from servers.folder import RunFolder, private_subfolder, unprivileged_user
from servers.process import Child
from servers.valkey import WHEEL, Valkey
from tests.locking.conformance import LONG, RENEWED
from tests.locking.support import CommandStats, Patch, Pool, acquired, paused, renew, run_folder, run_threads, started
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
Pair = tuple[tuple[Valkey, int], tuple[Valkey, int]]


def free_port() -> int:
    """Return a free port whose cluster bus port, 10,000 above it, is free too."""
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
            if port < 55_000:
                try:
                    bus.bind((HOST, port + 10_000))
                except OSError:
                    continue
                return port


@contextmanager
def valkeys(count: int, *extra: str) -> Iterator[list[tuple[Valkey, int]]]:
    """Yield `count` servers, with their ports on the loopback interface."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(_started(stack.enter_context(run_folder()), *extra))
            stack.callback(made[-1][0].stop)
        yield made


def _started(folder: RunFolder, *extra: str) -> tuple[Valkey, int]:
    """Start a server on a free port. If another program takes the port first, try another one."""
    for attempt in range(5):
        port = free_port()
        valkey = Valkey(folder.valkey, extra=("--port", str(port), "--bind", HOST, *extra))
        try:
            valkey.start()
        except ServerError:
            if attempt == 4:
                raise
        else:
            break
    return valkey, port


def client_of(port: int) -> redis.Redis:
    return redis.Redis(HOST, port, socket_timeout=2.0, retry=Retry(NoBackoff(), 0))


@contextmanager
def replicated() -> Iterator[list[tuple[Valkey, int]]]:
    """Yield a primary and its replica, with their ports."""
    with valkeys(2, "--repl-diskless-sync-delay", "0") as pair:
        (_, primary), (_, replica) = pair
        client_of(replica).replicaof(HOST, primary)
        wait_for_replica(primary)
        yield pair


def wait_for_replica(primary: int) -> None:
    """Wait until a replica confirms the latest writes."""
    wait_for(lambda: client_of(primary).wait(1, 100) == 1, "the replica")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Yield a primary and its replica."""
    with replicated() as (primary, replica):
        yield primary, replica


class TestReplicas:
    @pytest.fixture
    def client(self, pair: Pair) -> redis.Redis:
        """Return a client of the primary once the replica is up to date: an earlier test may have paused it."""
        (_, primary), _ = pair
        wait_for_replica(primary)
        return client_of(primary)

    @pytest.fixture
    def replica(self, pair: Pair) -> int:
        """Return the process id of the replica."""
        return pair[1][0].child.pid

    def test_a_grant_that_no_replica_has_does_not_count(self, client: redis.Redis, replica: int) -> None:
        with paused(replica):
            with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
                RedisLock(client, "copied", ttl=LONG, wait_for_replicas=1).acquire(timeout=1.0)
            wait_for(lambda: not client.exists("lock:{copied}"), "the grant to be taken back")
            acquired(RedisLock(client, "copied"), timeout=0).release()  # No replica has to confirm this one.

    @pytest.mark.parametrize("ttl", [2.0, 6.0])
    def test_a_renewal_without_a_replica_does_not_affect_others(
        self, client: redis.Redis, replica: int, ttl: float
    ) -> None:
        with (
            RedisLock(client, "plain", ttl=2.0).hold() as plain,
            RedisLock(client, "strict", ttl=ttl, wait_for_replicas=1).hold() as strict,
            paused(replica),
        ):
            wait_for(lambda: strict.lost)
            plain.check()

    def user(self, client: redis.Redis, *commands: str) -> redis.Redis:
        """Return a client of another user, who may use these commands."""
        client.acl_setuser("other", enabled=True, nopass=True, keys="*", commands=commands)
        port = client.connection_pool.connection_kwargs["port"]
        return redis.Redis(HOST, port, username="other", password="none", retry=Retry(NoBackoff(), 0))

    def test_a_grant_with_a_refused_wait_is_taken_back(self, client: redis.Redis) -> None:
        hasty = self.user(client, "+@all", "-wait")
        with pytest.raises(LockUnavailable, match="wait"):
            RedisLock(hasty, "refused", ttl=LONG, wait_for_replicas=1).acquire()
        wait_for(lambda: client.exists("lock:{refused}:fence"))
        wait_for(lambda: not client.exists("lock:{refused}"), "the grant to be taken back")

    def test_a_renewal_with_a_refused_wait_does_not_affect_others(self, client: redis.Redis) -> None:
        revoked = self.user(client, "+@all")
        with (
            RedisLock(revoked, "plain", ttl=2.0).hold() as plain,
            RedisLock(revoked, "strict", ttl=2.0, wait_for_replicas=1).hold() as strict,
        ):
            client.acl_setuser("other", enabled=True, commands=["-wait"])
            wait_for(lambda: strict.lost)
            plain.check()

    def test_only_a_grant_waits_for_a_replica(self, pair: Pair, client: redis.Redis, replica: int) -> None:
        strict = RedisLock(client, "strict", ttl=0.5, wait_for_replicas=1)
        with RedisLock(client, "strict", ttl=LONG).hold():
            stats = CommandStats(client)
            assert strict.acquire(blocking=False) is None
            assert strict.acquire(timeout=1.2) is None
            assert stats()["wait"] == 0
            with paused(replica):
                assert strict.acquire(blocking=False) is None
        wait_for_replica(pair[0][1])
        stats = CommandStats(client)
        acquired(RedisLock(client, "strict", ttl=LONG, wait_for_replicas=1)).release()
        counts = stats()
        assert (counts["evalsha"], counts["wait"]) == (2, 1)

    def test_a_handed_over_grant_without_a_replica_does_not_count(
        self, client: redis.Redis, replica: int, threads: Pool
    ) -> None:
        lock = RedisLock(client, "copied", ttl=LONG, wait_for_replicas=1)
        lease = lock.acquire()
        waiting = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
        wait_for(lambda: client.info("clients")["blocked_clients"])
        with paused(replica):
            lease.release()
            wait_for(lambda: not client.exists("lock:{copied}"), "the grant to be given back")
        with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
            waiting.result(WAIT_TIMEOUT)


FailOver = tuple[redis.Redis, Callable[[], None]]


@pytest.fixture
def failing_over() -> Iterator[FailOver]:
    """Yield a client of a primary, and a function that makes the replica the primary.

    The client then connects to the new primary, as one from Sentinel does. Its open connections stay.
    """
    with replicated() as ((_, old), (_, new)):
        client = redis.Redis(HOST, old, retry=Retry(NoBackoff(), 0))

        def fail_over() -> None:
            client_of(old).set("the last write", "")
            assert client_of(old).wait(1, int(WAIT_TIMEOUT * 1000)) == 1
            client_of(new).replicaof("NO", "ONE")
            client_of(old).replicaof(HOST, new)
            client.connection_pool.connection_kwargs["port"] = new

        yield client, fail_over
        client.close()


class TestDemotedPrimary:
    """A demoted primary keeps its connections open, and refuses every write on them."""

    def test_a_lease_is_renewed_at_the_new_primary(self, failing_over: FailOver) -> None:
        client, fail_over = failing_over
        with RedisLock(client, "moved", ttl=6.0).hold() as lease:
            renew(lease)
            fail_over()
            renew(lease)

    @pytest.mark.parametrize(
        ("make", "connections_of"),
        [
            pytest.param(RedisLock, own_connections, id="redis"),
            pytest.param(lambda client, name: Redlock([client], name), node_of, id="redlock"),
        ],
    )
    def test_one_acquire_fails_at_most(
        self, failing_over: FailOver, make: Callable[..., Lock], connections_of: Callable[[Any], OwnConnections]
    ) -> None:
        client, fail_over = failing_over
        for _ in range(3):
            connections_of(client.connection_pool).put(open_connection(client.connection_pool))
        fail_over()
        with pytest.raises(LockUnavailable, match="read only"):
            make(client, "moved").acquire()
        make(client, "moved").acquire(timeout=WAIT_TIMEOUT).release()


class TestSentinel:
    def test_a_sentinel_client_finds_the_new_primary(self) -> None:
        with replicated() as ((first, port), (_, second)), valkeys_sentinel(port) as at:
            sentinel = Sentinel([(HOST, at)], socket_timeout=2.0)
            wait_for(lambda: sentinel.discover_slaves("shop"), "the sentinel to know the replica")
            client = sentinel.master_for("shop", socket_timeout=2.0, retry=Retry(NoBackoff(), 0))
            lock = RedisLock(client, "watched", ttl=2.0, wait_for_replicas=1)
            with lock.hold() as lease:
                before = lease.fence
                renew(lease)
            first.child.kill()

            def granted() -> int:
                try:
                    with RedisLock(client, "watched", ttl=2.0).hold(timeout=1.0) as lease:
                        return lease.fence
                except LockUnavailable:
                    return 0

            assert wait_for(granted, "the new primary") > before
            assert client_of(second).role()[0] == b"master"


@contextmanager
def valkeys_sentinel(primary: int) -> Iterator[int]:
    """Run a sentinel that starts a failover after half a second."""
    with run_folder() as folder:
        WHEEL.unpack(folder.path)
        private_subfolder(folder.valkey)
        port = free_port()
        settings = folder.valkey / "sentinel.conf"
        settings.write_text(
            f"port {port}\nbind {HOST}\ndir {folder.valkey}\nsentinel monitor shop {HOST} {primary} 1\n"
            "sentinel down-after-milliseconds shop 500\nsentinel failover-timeout shop 2000\n"
        )
        settings.chmod(0o666)  # The sentinel, run by any user, rewrites the file.
        sentinel = Child(
            "sentinel",
            [str(WHEEL.path(folder.path)), str(settings), "--sentinel"],
            log=folder.valkey.with_name("sentinel.log"),
            env={},
            cwd=folder.valkey,
            user=unprivileged_user(),
        )
        with started(sentinel):
            wait_for(lambda: answers(port), "the sentinel")
            yield port


def answers(port: int) -> bool:
    try:
        return bool(client_of(port).ping())
    except redis.RedisError:
        return False


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[int]]:
    """Yield the ports of three nodes that share the slots of a cluster."""
    with running_cluster() as nodes:
        yield [port for _, port in nodes]


@contextmanager
def running_cluster() -> Iterator[list[tuple[Valkey, int]]]:
    """Run three nodes that share the slots of a cluster, and yield each with its port."""
    with valkeys(3, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000") as nodes:
        ports = [port for _, port in nodes]
        bounds = [0, 5461, 10923, 16384]
        for number, port in enumerate(ports):
            node = client_of(port)
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for port in ports[1:]:
            client_of(ports[0]).execute_command("CLUSTER", "MEET", HOST, port)
        wait_for(lambda: all(knows_all(port) for port in ports), "the nodes to know each other")
        yield nodes


def knows_all(port: int) -> bool:
    info = client_of(port).execute_command("CLUSTER", "INFO")
    said = info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split())
    return said["cluster_state"] == "ok" and said["cluster_known_nodes"] == "3"


@pytest.fixture
def clustered(cluster: list[int]) -> RedisCluster:
    return cluster_client(cluster)


def cluster_client(ports: Sequence[int]) -> RedisCluster:
    return RedisCluster(startup_nodes=[ClusterNode(HOST, port) for port in ports], socket_timeout=2.0)


class TestCluster:
    def test_locks_live_on_the_nodes_of_their_slots(self, clustered: RedisCluster, cluster: list[int]) -> None:
        names = [f"sku {number}" for number in range(30)]
        with ExitStack() as stack:
            locks = [RedisLock(clustered, name, ttl=RENEWED) for name in names]
            leases = [stack.enter_context(lock.hold(timeout=WAIT_TIMEOUT)) for lock in locks]
            assert [lock.name for lock in held(clustered)] == sorted(names)
            assert all(any(client_of(port).keys("lock:*")) for port in cluster)
            renew(*leases)
        assert held(clustered) == []

    def test_waiters_are_handed_the_lock(self, clustered: RedisCluster) -> None:
        lock = RedisLock(clustered, "one")
        total = [0]

        def add() -> None:
            for _ in range(20):
                with lock.hold(timeout=WAIT_TIMEOUT):
                    value = total[0]
                    total[0] = value + 1

        run_threads(*[add] * 8)
        assert total == [160]

    def test_a_moved_slot_is_found(self, clustered: RedisCluster, cluster: list[int]) -> None:
        lock = RedisLock(clustered, "moved")
        with lock.hold() as lease:
            slot = clustered.keyslot("lock:{moved}")
            slots = clustered.nodes_manager.slots_cache
            right = slots[slot]
            slots[slot] = next(nodes for nodes in slots.values() if nodes != right)
            lease.extend()
            assert slots[slot][0].port == right[0].port
            slots[slot] = next(nodes for nodes in slots.values() if nodes != right)
            assert lock.acquire(timeout=0.01) is None

    def test_a_slot_without_a_node_is_reported(self, clustered: RedisCluster) -> None:
        lock = RedisLock(clustered, "nowhere")
        slot = clustered.keyslot("lock:{nowhere}")
        lease = lock.acquire()
        for use in (lock.acquire, lease.extend, lease.release):
            del clustered.nodes_manager.slots_cache[slot]
            with pytest.raises(LockUnavailable, match="Try again"):
                use()
            assert slot in clustered.nodes_manager.slots_cache
        assert lease.release() is True

    def test_a_lost_slot_does_not_affect_others(self, clustered: RedisCluster) -> None:
        with (
            RedisLock(clustered, "uncovered", ttl=RENEWED).hold() as uncovered,
            RedisLock(clustered, "covered", ttl=RENEWED).hold() as covered,
        ):
            del clustered.nodes_manager.slots_cache[clustered.keyslot("lock:{uncovered}")]
            renew(covered)
            assert not uncovered.lost, "until then they are renewed together"
            wait_for(lambda: uncovered.lost)
        wait_for(lambda: held(clustered) == [])

    def test_a_waiter_of_a_lost_slot_is_told(self, clustered: RedisCluster, monkeypatch: Patch) -> None:
        lock, other = [RedisLock(clustered, "lost on the way", ttl=0.5) for _ in range(2)]
        slot = clustered.keyslot("lock:{lost on the way}")
        ask = other._ask

        def ask_and_lose(*args: Any, **options: Any) -> Any:
            answer = ask(*args, **options)
            del clustered.nodes_manager.slots_cache[slot]
            return answer

        monkeypatch.setattr(other, "_ask", ask_and_lose)
        with lock.hold():
            with pytest.raises(LockUnavailable):
                other.acquire(timeout=1.0)
            clustered.nodes_manager.initialize()
        wait_for(lambda: held(clustered) == [])

    def test_when_all_nodes_are_gone_it_says_so(self) -> None:
        with running_cluster() as nodes:
            client = cluster_client([port for _, port in nodes])
            lock = RedisLock(client, "gone")
            lease = RedisLock(client, "gone too").acquire()
            block = lock.hold()
            block.__enter__()
            for valkey, _ in nodes:
                valkey.child.kill()
            assert block.__exit__(KeyError, KeyError(), None) is False, "leaving must not hide the error of the body"
            force = partial(force_release, client, "gone", by="a test")
            for use in (lock.acquire, lease.extend, lease.release, partial(held, client), force):
                with pytest.raises(LockUnavailable, match="Try again"):
                    use()

    def test_by_force(self, clustered: RedisCluster) -> None:
        RedisLock(clustered, "stuck").acquire()
        assert force_release(clustered, "stuck", by="a test") is True
        assert held(clustered) == []
