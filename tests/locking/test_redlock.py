"""Redlock keeps the promises of every lock and those that it declares, whatever becomes of a minority of its nodes."""

from __future__ import annotations

import gc
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
import redis
from redis._parsers import _RESP2Parser

from locking import Lease, LeaseLost, Lock, LockUnavailable, RedisLock, held
from locking.redis import redlock
from locking.redis.redlock import Ballot, Node, Redlock, RedlockRenewer, node_of
from servers.folder import RunFolder
from servers.valkey import Valkey
from tests.locking.conformance import (
    LONG,
    RENEWED,
    SHORT,
    AcrossMachinesConformance,
    AcrossProcessesConformance,
    ExpiresConformance,
    ForkConformance,
    RenewsConformance,
    ScriptsConformance,
    SurvivesHolderCrashConformance,
    SurvivesNodeLossConformance,
    only,
)
from tests.locking.redlock_support import (
    REFUSALS,
    CountedRedlock,
    RedlockRecipe,
    admin,
    dead,
    hanging,
    refusing,
)
from tests.locking.reentrant_support import OfTheLockWithin, a_tenth
from tests.locking.support import (
    Clock,
    CommandStats,
    CountedConnection,
    Recipe,
    ReentrantRecipe,
    client_of,
    clients_apart,
    end_of,
    run_threads,
)
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.slow

NODES = 5
QUORUM = 3
NODE_TIMEOUT = 0.6
"""Seconds: all nodes that hang cost it together and once, and a busy machine gets as much again."""

PATIENT = PATIENCE
"""Seconds: no node needs as long, also while two hundred threads want answers at the same time."""


@pytest.fixture(scope="session")
def nodes() -> Iterator[list[Valkey]]:
    """Five that know nothing of each other."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(NODES):
            outer = Path(tempfile.mkdtemp(prefix="lu-"))
            stack.callback(shutil.rmtree, outer, ignore_errors=True)
            outer.chmod(0o755)
            folder = RunFolder(outer / "run")
            folder.create()
            # What a crash of a node would lose is shown by emptying it: these need not write to disk.
            nodes.append(Valkey(folder.valkey, extra=("--appendonly", "no")))
            stack.callback(nodes[-1].stop)
            nodes[-1].start()
        yield nodes


@pytest.fixture
def recipe(nodes: list[Valkey]) -> Iterator[RedlockRecipe]:
    made = RedlockRecipe(tuple(node.url for node in nodes))
    for client in made.clients:
        client.flushall()
    yield made
    made.close()
    client_of.cache_clear()


@pytest.fixture
def clients(recipe: RedlockRecipe) -> list[redis.Redis]:
    return recipe.clients


@pytest.fixture
def make(clients: list[redis.Redis]) -> Callable[..., Redlock]:
    """Makes locks of one name whose connections are open."""

    def lock(name: str = "lock", **options: Any) -> Redlock:
        made = Redlock(clients, name, **{"ttl": LONG, "node_timeout": NODE_TIMEOUT, "retry_delay": 0.02, **options})
        with Redlock(clients, "warm", node_timeout=5.0).hold(timeout=PATIENCE):
            return made

    return lock


def holders(nodes: list[Valkey], name: str = "lock") -> list[bool]:
    """On which nodes somebody holds the lock."""
    found = []
    for node in nodes:
        with admin(node) as client:
            found.append(bool(client.exists(f"redlock:{name}")))
    return found


def acquire_or_say(lock: Redlock) -> tuple[Lease | None, float]:
    """Ask once; return the lease, None when too few nodes answered, and the seconds that it took."""
    start = time.monotonic()
    try:
        lease = lock.acquire(blocking=False)
        assert lease is not None, "refused although nobody holds it"
    except LockUnavailable:
        lease = None
    return lease, time.monotonic() - start


class TestRedlock(
    AcrossMachinesConformance,
    AcrossProcessesConformance,
    ExpiresConformance,
    ForkConformance,
    RenewsConformance,
    ScriptsConformance,
    SurvivesHolderCrashConformance,
    SurvivesNodeLossConformance,
):
    OPTIONS = {"ttl": LONG, "node_timeout": PATIENT}
    CRASH_OPTIONS = {"ttl": RENEWED, "node_timeout": SHORT}
    NODE_LOSS_OPTIONS = {"node_timeout": NODE_TIMEOUT}
    RELEASE_WRITES = NODES
    PAIRS = 10_000

    def made(self, recipe: Recipe, name: str, **options: Any) -> Lock:
        if (ttl := options.get("ttl")) in {SHORT, RENEWED}:
            options["node_timeout"] = SHORT if ttl == RENEWED else SHORT / 2
        return super().made(recipe, name, **options)

    @contextmanager
    def clients(self, recipe: RedlockRecipe, count: int) -> Iterator[list[Recipe]]:
        """At most 50 client objects, and a connection to each node for each place, open before.

        If 200 threads opened five each at once, the last would have theirs when the time of the first is over: what is
        tested is who asks at once, not who connects at once.
        """
        with clients_apart(recipe, min(count, 50)) as apart:
            places = [apart[place % len(apart)] for place in range(count)]
            for place in places:
                for opening in [node_of(client.connection_pool).open(PATIENT) for client in place.clients]:
                    opening.result(PATIENT)
            yield places

    @pytest.fixture(autouse=True)
    def _nodes(self, nodes: list[Valkey]) -> None:
        self.nodes = nodes

    @pytest.fixture(autouse=True)
    def _admins(self, recipe: RedlockRecipe) -> None:
        self.admins = recipe.clients

    @contextmanager
    def without_a_minority(self) -> Iterator[None]:
        with dead(self.nodes[0]), hanging(self.nodes[1]):
            yield

    def restart(self) -> None:
        """These write to disk when told to, and read what is there when they start."""
        for client, node in zip(self.admins, self.nodes, strict=True):
            client.save()
            node.child.kill()
            node.start()
            (node.folder / "dump.rdb").unlink()

    def lose_the_scripts(self) -> None:
        for client in self.admins:
            client.script_flush()

    def waiters(self, lock: Lock) -> int:
        return len(CountedRedlock.waiting.get(lock.name, ()))

    def written(self, lock: Lock) -> int:
        return sum(client.info("persistence")["rdb_changes_since_last_save"] for client in self.admins)

    def fail_100_tries(self, lock: Lock, other: Lock, **how: Any) -> None:
        """As many connections as threads are open before: how many of them meet at one node before is chance."""
        for opening in [node_of(client.connection_pool).open(PATIENT) for client in self.admins for _ in range(8)]:
            opening.result(PATIENT)
        super().fail_100_tries(lock, other, **how)

    def traces(self, lock: Lock) -> dict[str, int]:
        gc.collect()  # clients of redis-py are part of a circle: the connections of those that other tests had go now
        return {
            "keys": sum(client.exists(f"redlock:{lock.name}") for client in self.admins),
            "connections": sum(len(client.client_list()) for client in self.admins),
        }


@a_tenth
class TestReentrantRedlock(OfTheLockWithin, TestRedlock):
    @pytest.fixture
    def recipe(self, recipe: RedlockRecipe) -> ReentrantRecipe:
        return ReentrantRecipe(recipe)

    @pytest.fixture(autouse=True)
    def _admins(self, recipe: ReentrantRecipe) -> None:
        self.admins = recipe.inner.clients


@only("test_it_is_granted_without_a_minority", "test_a_grant_outlives_the_loss_of_a_minority")
class TestRedlockThatNeedsEveryNode(TestRedlock):
    FAILS = frozenset({"test_it_is_granted_without_a_minority", "test_a_grant_outlives_the_loss_of_a_minority"})
    FAILS_WITH = LockUnavailable

    @pytest.fixture(autouse=True)
    def _needs_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redlock, "majority", lambda nodes: nodes)


@only("test_it_works_after_its_servers_have_lost_the_scripts")
class TestRedlockThatBelievesThatItsScriptsAreKept(TestRedlock):
    FAILS = frozenset({"test_it_works_after_its_servers_have_lost_the_scripts"})
    FAILS_WITH = LockUnavailable

    @pytest.fixture(autouse=True)
    def _believes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redlock, "NoScriptError", type("NeverRaised", (Exception,), {}))


EVERY_MIX = [
    (up, gone, hung, NODES - up - gone - hung)
    for up in range(NODES + 1)
    for gone in range(NODES + 1 - up)
    for hung in range(NODES + 1 - up - gone)
]


class TestEveryMixOfNodes:
    def test_the_table_is_complete(self) -> None:
        assert len(EVERY_MIX) == 56
        assert {sum(mix) for mix in EVERY_MIX} == {NODES}

    @pytest.mark.parametrize(("up", "gone", "hung", "refused"), EVERY_MIX)
    def test_a_majority_that_is_up_decides_and_a_minority_decides_nothing(
        self, make: Callable[..., Redlock], nodes: list[Valkey], up: int, gone: int, hung: int, refused: int
    ) -> None:
        granted = up >= QUORUM
        allowed = NODE_TIMEOUT * (2 if hung else 1)
        turn = EVERY_MIX.index((up, gone, hung, refused)) % NODES  # which node it is should make no difference
        turned = nodes[turn:] + nodes[:turn]
        broken, working = turned[: NODES - up], turned[NODES - up :]
        before = make("before", renew=False).acquire(blocking=False)
        lock = make("lock", renew=False)

        with ExitStack() as stack:
            how = cycle(REFUSALS)
            for index, node in enumerate(broken):
                if index < gone:
                    stack.enter_context(dead(node))
                elif index < gone + hung:
                    stack.enter_context(hanging(node))
                else:
                    stack.enter_context(refusing(node, next(how)))

            lease, took = acquire_or_say(lock)
            assert (lease is not None, took < allowed) == (granted, True), took
            assert holders(working) == [granted] * up
            if lease is not None:
                assert lease.release() is True
            assert holders(working) == [False] * up

            start = time.monotonic()
            if granted:
                before.extend()
                assert before.release() is True
            else:
                with pytest.raises(LockUnavailable, match=f"Only {up} of {NODES}"):
                    before.release()
            assert time.monotonic() - start < allowed
            assert holders(working, "before") == [False] * up
        wait_for(lambda: not any(holders(nodes)), "the late grants to be taken back")


class TestQuorum:
    def two_hold_it(self, make: Callable[..., Redlock], nodes: list[Valkey]) -> bool:
        leases = []
        for reachable in (nodes[:2], nodes[2:4]):
            lock = make(renew=False, node_timeout=1.0)
            with ExitStack() as stack:
                for node in nodes:
                    if node not in reachable:
                        stack.enter_context(hanging(node))
                leases.append(acquire_or_say(lock)[0])
            wait_for(lambda: sum(holders(nodes)) == 2 * sum(lease is not None for lease in leases))
        return [lease is not None and not lease.lost for lease in leases] == [True, True]

    def test_two_parts_of_a_network_cannot_both_grant_it(
        self, make: Callable[..., Redlock], nodes: list[Valkey]
    ) -> None:
        assert not self.two_hold_it(make, nodes)

    def test_with_a_quorum_that_is_off_by_one_they_do(
        self, make: Callable[..., Redlock], nodes: list[Valkey], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redlock, "majority", lambda nodes: nodes // 2)
        assert self.two_hold_it(make, nodes)

    @pytest.mark.parametrize(("emptied", "excludes"), [(0, True), (1, True), (2, True), (3, False)])
    def test_it_excludes_others_while_a_quorum_remembers(
        self, make: Callable[..., Redlock], clients: list[redis.Redis], emptied: int, excludes: bool
    ) -> None:
        lease = make(renew=False).acquire()
        for client in clients[:emptied]:
            client.flushall()
        other = make().acquire(blocking=False)
        assert (other is None) is excludes
        if excludes:
            lease.extend()
            assert lease.release() is True
        else:
            with pytest.raises(LeaseLost):
                lease.extend()
            assert lease.release() is False
            assert other.release() is True

    def test_a_grant_by_three_does_not_survive_that_one_of_them_forgets(
        self, make: Callable[..., Redlock], nodes: list[Valkey], clients: list[redis.Redis]
    ) -> None:
        """The limit that the docstring states."""
        lock = make(renew=False)
        with dead(nodes[0]), dead(nodes[1]):
            lease = lock.acquire()
        clients[2].flushall()
        other = make("lock").acquire(timeout=PATIENCE)
        assert (lease.lost, other.lost) == (False, False)
        with pytest.raises(LeaseLost):
            lease.extend()


class TestSplitVotes:
    @pytest.mark.parametrize(
        ("votes", "split"),
        [("aabb ", True), ("aab  ", True), ("aaa  ", False), ("aabbb", False), ("aabbc", False)],
    )
    def test_votes_are_split_when_we_have_some_and_nobody_has_a_quorum(
        self, make: Callable[..., Redlock], clients: list[redis.Redis], votes: str, split: bool
    ) -> None:
        lock = make(renew=False)
        for client, vote in zip(clients, votes, strict=True):
            if vote != " ":
                client.set("redlock:lock", vote)
        assert lock._try() == (None, split)

    def winners(self, make: Callable[..., Redlock]) -> int:
        lock = make(node_timeout=PATIENT)
        leases = [lease for lease in run_threads(*[lambda: lock.acquire(blocking=False)] * 8) if lease is not None]
        for lease in leases:
            lease.release()
        return len(leases)

    def test_of_those_who_come_at_once_one_gets_it(self, make: Callable[..., Redlock]) -> None:
        assert [self.winners(make) for _ in range(20)] == [1] * 20

    def test_without_new_elections_at_times_none_gets_it(
        self, make: Callable[..., Redlock], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redlock, "ELECTIONS", 1)
        wait_for(lambda: self.winners(make) == 0)


class TestHangingNodes:
    def seconds_to_acquire(self, make: Callable[..., Redlock], nodes: list[Valkey]) -> float:
        lock = make()
        with hanging(nodes[0]), hanging(nodes[1]):
            lease, took = acquire_or_say(lock)
        assert lease is not None
        return took

    def test_two_cost_no_more_than_one(self, make: Callable[..., Redlock], nodes: list[Valkey]) -> None:
        assert NODE_TIMEOUT <= self.seconds_to_acquire(make, nodes) < 2 * NODE_TIMEOUT

    def test_asked_one_after_the_other_they_cost_the_sum(
        self, make: Callable[..., Redlock], nodes: list[Valkey], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at_once = Ballot.hold

        def one_by_one(self: Ballot, seconds: float) -> None:
            for node in self._nodes:
                part = Ballot([node], self._calls, self._quorum, undo=self._undo)
                at_once(part, seconds)
                self._answers |= part._answers

        lock = make()
        monkeypatch.setattr(Ballot, "hold", one_by_one)
        with hanging(nodes[0]), hanging(nodes[1]):
            _, took = acquire_or_say(lock)
        assert took >= 2 * NODE_TIMEOUT

    def test_a_node_that_kept_silent_is_waited_for_once_and_used_again_when_it_is_back(
        self, make: Callable[..., Redlock], nodes: list[Valkey]
    ) -> None:
        lock = make()
        with hanging(nodes[0]):
            lock.acquire().release()
            start = time.monotonic()
            for _ in range(20):
                lock.acquire().release()
            assert time.monotonic() - start < 20 * NODE_TIMEOUT / 2

        def granted_by_all() -> bool:
            with lock.hold():
                return all(holders(nodes))

        wait_for(granted_by_all)

    def test_a_node_that_is_reached_before_the_others_have_voted_votes_the_next_time(
        self, make: Callable[..., Redlock], nodes: list[Valkey], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = make()
        with hanging(nodes[0]):
            lock.acquire().release()
        hear = Ballot._hear

        def slowly(ballot: Ballot, *arguments: Any) -> None:
            wait(ballot._openings)
            hear(ballot, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Ballot, "_hear", slowly)
            lock.acquire().release()
        with lock.hold():
            assert all(holders(nodes))

    def test_a_silent_node_is_tried_again_when_there_are_threads_again(
        self,
        make: Callable[..., Redlock],
        clients: list[redis.Redis],
        nodes: list[Valkey],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        lock, node = make(renew=False), node_of(clients[0].connection_pool)
        with dead(nodes[0]):
            lock.acquire().release()
            wait_for(lambda: node.silent and node._opening.done(), "the node to be found dead")
        start = threading.Thread.start

        def none_for_the_node(thread: threading.Thread) -> None:
            if getattr(thread._target, "__self__", None) is node:
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none_for_the_node)
            with pytest.raises(RuntimeError, match="thread"):
                lock.acquire()

        def granted_by_all() -> bool:
            with lock.hold():
                return all(holders(nodes))

        wait_for(granted_by_all, "the node to be reached again")

    def test_without_connections_it_costs_no_more(self, clients: list[redis.Redis], nodes: list[Valkey]) -> None:
        lock = Redlock(clients, "cold", node_timeout=NODE_TIMEOUT)
        with hanging(nodes[0]), hanging(nodes[3]):
            lease, took = acquire_or_say(lock)
            assert lease is not None
            assert took < 2 * NODE_TIMEOUT
            assert lease.release() is True

    def test_a_lease_is_renewed_by_the_others(self, make: Callable[..., Redlock], nodes: list[Valkey]) -> None:
        lease = make(ttl=RENEWED).acquire()
        with hanging(nodes[0]), dead(nodes[1]):
            ends = end_of(lease)
            wait_for(lambda: end_of(lease) > ends + 1.5)
        assert lease.release() is True

    def test_a_majority_that_hangs_loses_the_lease_and_its_holder_is_told(
        self, make: Callable[..., Redlock], nodes: list[Valkey]
    ) -> None:
        told: list[Lease] = []
        lease = make(ttl=0.9, node_timeout=0.1, on_lost=told.append).acquire()
        with hanging(nodes[0]), hanging(nodes[1]), hanging(nodes[2]):
            wait_for(lambda: told)
        assert (told, lease.lost) == ([lease], True)


class TestLateGrants:
    """A node is paused while it is asked, and goes on when everybody has left."""

    @pytest.fixture(params=[1, 3], ids=["granted by the others", "not granted"])
    def late(self, request: pytest.FixtureRequest) -> int:
        return int(request.param)

    def grant_late(self, make: Callable[..., Redlock], nodes: list[Valkey], late: int) -> list[bool]:
        """Return which of the late nodes keep the grant after having run everything that they were sent."""
        lock = make(renew=False)
        with ExitStack() as stack:
            stats = [CommandStats(stack.enter_context(admin(node))) for node in nodes[:late]]
            with ExitStack() as pauses:
                for node in nodes[:late]:
                    pauses.enter_context(hanging(node))
                lease, _ = acquire_or_say(lock)
                assert (lease is not None) is (late == 1)
                assert holders(nodes[late:]) == [lease is not None] * (NODES - late)
                if lease is not None:
                    assert lease.release() is True
                assert not any(holders(nodes[late:]))
            wait_for(lambda: all(stat()["set"] for stat in stats), "the late grants")
            for node in lock._nodes[:late]:
                wait_for(lambda node=node: node._opening is None or node._opening.done())
        return holders(nodes[:late])

    def test_a_grant_that_comes_after_the_release_does_not_linger(
        self, make: Callable[..., Redlock], nodes: list[Valkey], late: int
    ) -> None:
        assert self.grant_late(make, nodes, late) == [False] * late

    def test_without_the_release_behind_it_it_lingers(
        self, make: Callable[..., Redlock], nodes: list[Valkey], late: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        part = Node.part
        monkeypatch.setattr(Node, "part", lambda self, connection, calls: part(self, connection, ()))
        monkeypatch.setattr(Node, "tell", lambda *args: None)
        assert self.grant_late(make, nodes, late) == [True] * late

    def test_a_release_that_a_node_did_not_answer_is_done_when_it_goes_on(
        self, make: Callable[..., Redlock], nodes: list[Valkey]
    ) -> None:
        lease = make().acquire()
        with hanging(nodes[4]):
            assert lease.release() is True
        wait_for(lambda: not any(holders(nodes)))

    def test_a_release_reaches_a_late_node_whose_connection_somebody_else_has_taken(
        self,
        make: Callable[..., Redlock],
        clients: list[redis.Redis],
        nodes: list[Valkey],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        lease, node = make(renew=False).acquire(), node_of(clients[0].connection_pool)
        while (connection := node.take()) is not None:
            connection.disconnect()
        node.silent = True  # nobody waits for it
        connect, put = redlock.connect, Node.put
        released, taken = threading.Event(), []

        def late(*args: Any) -> Any:
            assert released.wait(PATIENCE)
            return connect(*args)

        def put_and_taken(to: Node, connection: Any) -> None:
            put(to, connection)
            if to is node:
                taken.append(to.take())

        monkeypatch.setattr(redlock, "connect", late)
        monkeypatch.setattr(Node, "put", put_and_taken)
        assert lease.release() is True
        assert holders(nodes) == [True] + [False] * (NODES - 1)
        released.set()
        wait_for(lambda: not any(holders(nodes)), "the node to be told")
        wait_for(lambda: len(taken) == 2, "the connection that told it to be kept")
        assert None not in taken

    def test_every_try_has_a_token_of_its_own(
        self, make: Callable[..., Redlock], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With one for all, the release that travels behind a late try would take a later try's grant."""
        tokens: list[str] = []
        original = redlock.new_token
        lock = make(retries=4, retry_delay=0.001)
        with make().hold():
            monkeypatch.setattr(redlock, "new_token", lambda: tokens.append(original()) or tokens[-1])
            assert lock.acquire() is None
        assert len(set(tokens)) == 5


class TestCleaningUp:
    def fail(self, make: Callable[..., Redlock], nodes: list[Valkey]) -> list[bool]:
        lock = make()
        with dead(nodes[0]), hanging(nodes[1]), refusing(nodes[2], "READONLY"):
            assert acquire_or_say(lock)[0] is None
            return holders(nodes[3:])

    def test_a_failed_quorum_is_taken_back_at_once(self, make: Callable[..., Redlock], nodes: list[Valkey]) -> None:
        assert self.fail(make, nodes) == [False, False]

    def test_without_cleaning_up_the_keys_linger(
        self, make: Callable[..., Redlock], nodes: list[Valkey], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Redlock, "_take_back", lambda *args: None)
        assert self.fail(make, nodes) == [True, True]

    def test_a_lost_election_is_taken_back(self, make: Callable[..., Redlock], clients: list[redis.Redis]) -> None:
        for client in clients[:3]:
            client.set("redlock:lock", "somebody else's")
        assert make().acquire(blocking=False) is None
        assert [client.get("redlock:lock") for client in clients] == [b"somebody else's"] * 3 + [None] * 2

    def test_nodes_without_memory_for_a_grant_are_no_votes(
        self, make: Callable[..., Redlock], nodes: list[Valkey], clients: list[redis.Redis]
    ) -> None:
        lock = make()
        for client in clients[:3]:
            client.config_set("maxmemory", 1)
        try:
            with pytest.raises(LockUnavailable, match="maxmemory"):
                lock.acquire()
        finally:
            for client in clients[:3]:
                client.config_set("maxmemory", 0)
        assert not any(holders(nodes))

    @pytest.mark.parametrize("after", range(NODES))
    def test_an_interrupted_try_leaves_nothing_behind(
        self, make: Callable[..., Redlock], nodes: list[Valkey], monkeypatch: pytest.MonkeyPatch, after: int
    ) -> None:
        read, reads = redlock.read, count()

        def interrupted(*args: Any) -> list[Any]:
            if next(reads) == after:
                raise KeyboardInterrupt
            return read(*args)

        lock = make()
        monkeypatch.setattr(redlock, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        wait_for(lambda: not any(holders(nodes)))
        monkeypatch.undo()
        lock.acquire(timeout=PATIENCE).release()


class TestValidity:
    def test_it_is_the_ttl_less_the_time_it_took_less_the_drift(self, make: Callable[..., Redlock]) -> None:
        clock = Clock()
        lock = make(ttl=20.0, drift_factor=0.1, drift_seconds=0.5, clock=clock, renew=False)
        lease = lock.acquire()
        assert lease.remaining() == pytest.approx(17.5)
        clock.now += 10.0
        assert lease.remaining() == pytest.approx(7.5)
        lease.extend()
        assert lease.remaining() == pytest.approx(17.5)
        lease.extend(40.0)
        assert lease.remaining() == pytest.approx(35.5)
        clock.now += 35.5
        assert lease.lost

    def test_by_default_the_drift_is_that_of_the_redlock_text(self, make: Callable[..., Redlock]) -> None:
        lease = make(ttl=20.0, clock=Clock(), renew=False).acquire()
        assert lease.remaining() == pytest.approx(20.0 - 0.2 - 0.002)

    @pytest.mark.parametrize(("took", "granted"), [(17.0, True), (18.0, False)])
    def test_a_grant_that_took_longer_is_none(
        self,
        make: Callable[..., Redlock],
        nodes: list[Valkey],
        monkeypatch: pytest.MonkeyPatch,
        took: float,
        granted: bool,
    ) -> None:
        clock = Clock()
        lock = make(ttl=20.0, drift_factor=0.1, drift_seconds=0.5, clock=clock, renew=False)
        hold = Ballot.hold

        def slow(self: Ballot, seconds: float) -> None:
            hold(self, seconds)
            clock.now += took

        monkeypatch.setattr(Ballot, "hold", slow)
        lease = lock.acquire(blocking=False)
        assert (lease is not None) is granted
        assert holders(nodes) == [granted] * NODES
        if lease is not None:
            assert lease.remaining() == pytest.approx(17.5 - took)

    def test_an_extension_that_took_longer_has_lost_it(
        self, make: Callable[..., Redlock], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = Clock()
        lease = make(ttl=20.0, clock=clock, renew=False).acquire()
        hold = Ballot.hold

        def slow(self: Ballot, seconds: float) -> None:
            hold(self, seconds)
            clock.now += 15.0

        clock.now += 10.0
        monkeypatch.setattr(Ballot, "hold", slow)
        with pytest.raises(LeaseLost):
            lease.extend()

    def test_the_servers_keep_it_for_longer_than_the_holder_trusts_it(
        self, make: Callable[..., Redlock], clients: list[redis.Redis]
    ) -> None:
        lease = make(ttl=20.0).acquire()
        assert all(client.pttl("redlock:lock") / 1000 > lease.remaining() for client in clients)

    @pytest.mark.parametrize(
        "options",
        [
            {"ttl": float("inf")},
            {"ttl": 0.3, "node_timeout": 0.3},
            {"node_timeout": 0.0},
            {"ttl": 1.0, "drift_seconds": 1.0},
            {"drift_factor": -0.1},
            {"retry_delay": 0.0},
            {"retries": -1},
        ],
    )
    def test_a_setting_that_makes_no_sense_is_refused(
        self, clients: list[redis.Redis], options: dict[str, Any]
    ) -> None:
        with pytest.raises(ValueError, match=r"ttl|drift|retry"):
            Redlock(clients, "odd", **options)

    @pytest.mark.parametrize("chosen", [[], [0, 0, 1]])
    def test_every_node_votes_once(self, clients: list[redis.Redis], chosen: list[int]) -> None:
        with pytest.raises(ValueError, match="votes twice"):
            Redlock([clients[index] for index in chosen], "odd")


class TestRetries:
    @pytest.mark.parametrize("retries", [0, 1, 5])
    def test_when_they_are_used_up_it_is_not_granted(self, make: Callable[..., Redlock], retries: int) -> None:
        lock = make(retries=retries, retry_delay=0.001)
        pauses: list[float] = []
        lock._pause = pauses.append
        with make().hold():
            assert lock.acquire() is None
        assert len(pauses) == retries

    def test_the_timeout_may_end_them_sooner(self, make: Callable[..., Redlock]) -> None:
        lock = make(retries=10**9)
        with make().hold():
            assert lock.acquire(timeout=0.1) is None

    def test_pauses_differ(self, make: Callable[..., Redlock]) -> None:
        lock = make(retries=100, retry_delay=4.0)
        pauses: list[float] = []
        lock._pause = pauses.append
        lock._delay = lambda tried: 4.0
        with make().hold():
            assert lock.acquire() is None
        assert 2.0 <= min(pauses) < 3.0 < 5.0 < max(pauses) <= 6.0

    def test_after_a_try_that_took_long_it_waits_for_longer(
        self, make: Callable[..., Redlock], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Very many ask then. If all came back as soon as ever, 200 threads would keep the holder from releasing."""
        now, pauses = [0.0], list[float]()
        lock = make(retry_delay=0.1, retries=1, clock=lambda: now[0])
        assert [lock._delay(tried) for tried in (0, 0.01, 0.05, 0.1, 30)] == pytest.approx([0.1, 0.1, 0.5, 1, 1])

        once = lock._try

        def slow() -> tuple[Lease | None, bool]:
            now[0] += 0.06
            return once()

        monkeypatch.setattr(lock, "_try", slow)
        monkeypatch.setattr(lock, "_pause", pauses.append)
        with make().hold():
            assert lock.acquire() is None
        assert [0.3 <= pause <= 0.9 for pause in pauses] == [True]

    @pytest.mark.parametrize("slow", [0.001, 0.02, 0.08, 0.3])
    def test_whoever_waits_is_granted_what_became_free_in_time(
        self, make: Callable[..., Redlock], monkeypatch: pytest.MonkeyPatch, slow: float
    ) -> None:
        """However long tries take, and so the pauses between them: the last one is short enough for one more try."""
        clock = Clock()
        lock = make(retry_delay=0.1, clock=clock, renew=False)
        end, tries = clock.now + 0.5, 0
        held = make().acquire()
        once = lock._try

        def try_slowly() -> tuple[Lease | None, bool]:
            nonlocal tries
            tries += 1
            if tries > 1 and clock.now > end - 2.5 * slow:  # for the last one
                held.release()
            clock.now += slow
            return once()

        def pause(seconds: float) -> None:
            clock.now += seconds

        monkeypatch.setattr(lock, "_try", try_slowly)
        monkeypatch.setattr(lock, "_pause", pause)
        monkeypatch.setattr(random, "uniform", lambda least, most: most)
        lease = lock.acquire(timeout=0.5)
        assert lease is not None
        assert lease.release()
        assert clock.now < end + slow
        assert tries <= 6

    def test_whoever_waits_in_vain_does_not_ask_without_end(
        self, make: Callable[..., Redlock], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock, pauses = Clock(), list[float]()
        lock = make(retry_delay=0.1, clock=clock)
        once = lock._try

        def try_slowly() -> tuple[Lease | None, bool]:
            clock.now += 0.01
            return once()

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            clock.now += seconds

        monkeypatch.setattr(lock, "_try", try_slowly)
        monkeypatch.setattr(lock, "_pause", pause)
        end = clock.now + 1.0
        with make().hold():
            assert lock.acquire(timeout=1.0) is None
        assert end <= clock.now <= end + 0.01
        assert len(pauses) <= 20


class TestRelease:
    def test_it_can_be_repeated_and_was_ours(self, make: Callable[..., Redlock], nodes: list[Valkey]) -> None:
        lease = make().acquire()
        with hanging(nodes[0]), hanging(nodes[1]), hanging(nodes[2]), pytest.raises(LockUnavailable, match="Try again"):
            lease.release()
        assert lease.release() is True
        assert lease.release() is False
        wait_for(lambda: not any(holders(nodes)))

    def test_it_was_not_ours_when_of_those_who_had_granted_it_too_few_have_kept_it(
        self, make: Callable[..., Redlock], nodes: list[Valkey]
    ) -> None:
        with dead(nodes[3]), dead(nodes[4]):
            lease = make(renew=False).acquire()
        with dead(nodes[2]):
            pass
        assert make(renew=False).acquire(timeout=PATIENCE) is not None, "three nodes were free"
        with hanging(nodes[3]), hanging(nodes[4]):
            assert [released(lease), released(lease)] == [False, False]
        assert holders(nodes) == [False, False, True, True, True]

    def test_what_nodes_say_no_to_after_a_yes_is_no_reason_to_call_it_ours(
        self, make: Callable[..., Redlock], nodes: list[Valkey], clients: list[redis.Redis]
    ) -> None:
        lease = make(renew=False).acquire()
        clients[2].flushall()
        with hanging(nodes[3]), hanging(nodes[4]):
            assert [released(lease), released(lease)] == [None, None]  # it was ours if one of these two still had it
        assert wait_for(lambda: released(lease)) is True
        assert lease.release() is False

    def test_the_nodes_that_say_yes_may_do_so_in_several_tries(
        self, make: Callable[..., Redlock], nodes: list[Valkey]
    ) -> None:
        lease = make(renew=False).acquire()
        with hanging(nodes[3]), hanging(nodes[4]):
            with hanging(nodes[2]):
                assert released(lease) is None
            assert wait_for(lambda: released(lease)) is True
            assert lease.release() is False

    def test_an_extension_without_a_quorum_is_no_loss_yet(
        self, make: Callable[..., Redlock], nodes: list[Valkey]
    ) -> None:
        lease = make(renew=False).acquire()
        with hanging(nodes[0]), hanging(nodes[1]), hanging(nodes[2]), pytest.raises(LockUnavailable):
            lease.extend()
        lease.check()
        wait_for(lambda: extended(lease))
        assert lease.release() is True


def extended(lease: Lease) -> bool:
    try:
        lease.extend()
    except LockUnavailable:
        return False
    return True


def released(lease: Lease) -> bool | None:
    """What the release says, None when too few nodes have answered."""
    try:
        return lease.release()
    except LockUnavailable:
        return None


class TestServers:
    def test_it_does_not_mix_with_other_locks_of_the_same_name(
        self, make: Callable[..., Redlock], clients: list[redis.Redis]
    ) -> None:
        with RedisLock(clients[0], "lock").hold(timeout=0) as other, make().hold(timeout=0) as lease:
            other.extend()
            lease.extend()
            assert [one.name for one in held(clients[0])] == ["lock"]
            assert set(clients[1].scan_iter()) == {b"redlock:lock"}

    def test_all_nodes_keep_one_token_and_it_expires(
        self, make: Callable[..., Redlock], clients: list[redis.Redis]
    ) -> None:
        with make().hold() as lease:
            assert {client.get("redlock:lock") for client in clients} == {lease.token.encode()}
            assert all(0 < client.pttl("redlock:lock") <= LONG * 1000 for client in clients)
            assert lease.fence is None

    def test_a_refused_try_writes_nothing(self, make: Callable[..., Redlock], clients: list[redis.Redis]) -> None:
        lock = make()
        with make().hold():
            stats = [CommandStats(client) for client in clients]
            assert lock.acquire(blocking=False) is None
            assert [stat() for stat in stats] == [{"evalsha": 1, "set": 1}] * NODES

    def test_all_leases_on_the_same_nodes_are_renewed_in_one_round_trip(self, nodes: list[Valkey]) -> None:
        counted = type("Counted", (CountedConnection,), {})
        clients = [redis.Redis.from_url(node.url, connection_class=counted) for node in nodes]
        locks = [Redlock(clients, f"lock {index}", node_timeout=5.0) for index in range(10)]
        leases = [lock.acquire() for lock in locks]
        assert {type(lock._renewer) for lock in locks} == {RedlockRenewer}
        assert len({lock._renewer for lock in locks}) == 1
        leases[3].release()
        leases[0].extend()  # from now on all nodes know the script
        before = counted.sent
        assert locks[0]._renewer.renew(leases, 5.0) == [index != 3 for index in range(10)]
        assert counted.sent - before == NODES
        for lease in leases:
            lease.release()

    @pytest.mark.parametrize(
        "options",
        [
            {"decode_responses": True},
            {"protocol": 2},
            {"protocol": 3},
            {"parser_class": _RESP2Parser, "protocol": 2},
            {"socket_timeout": None},
            {"health_check_interval": 1},
            {"max_connections": 1},
            {"db": 1, "client_name": "redlock"},
        ],
        ids=str,
    )
    def test_it_works_with_every_kind_of_client(self, nodes: list[Valkey], options: dict[str, Any]) -> None:
        clients = [redis.Redis.from_url(node.url, **options) for node in nodes]
        lock = Redlock(clients, "kind", ttl=RENEWED, node_timeout=NODE_TIMEOUT)
        with lock.hold(timeout=PATIENCE) as lease:
            ends = end_of(lease)
            assert lock.acquire(blocking=False) is None
            wait_for(lambda: end_of(lease) > ends + 0.5, "the lease to be renewed")
            assert lease.release() is True
        for client in clients:
            assert not client.exists("redlock:kind")
            client.close()

    def test_connections_are_closed_with_the_clients(self, nodes: list[Valkey]) -> None:
        clients = [redis.Redis.from_url(node.url, client_name="brief") for node in nodes]
        with Redlock(clients, "brief", node_timeout=5.0).hold():
            pass
        with admin(nodes[0]) as client:
            assert [one["name"] for one in client.client_list()].count("brief") == 1
            del clients

            def closed() -> bool:
                gc.collect()  # a client of redis-py is part of a circle
                return "brief" not in [one["name"] for one in client.client_list()]

            wait_for(closed)

    def test_restarted_nodes_are_found_again(
        self, make: Callable[..., Redlock], nodes: list[Valkey], clients: list[redis.Redis]
    ) -> None:
        lock = make()
        for node in nodes:
            with dead(node):
                pass
        lock.acquire().release()
        assert all(not node_of(client.connection_pool).silent for client in clients)
