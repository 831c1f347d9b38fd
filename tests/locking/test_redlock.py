"""Redlock: the conformance suite, and nodes that are dead, hang, refuse or respond late."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, cycle
from typing import Any

import pytest
import redis

from locking import Lease, LeaseLost, Lock, LockTimeout, LockUnavailable, RedisLock, held
from locking.redis import ballot, redlock
from locking.redis import nodes as nodes_module
from locking.redis.ballot import Ballot
from locking.redis.nodes import RedlockNode, node_of
from locking.redis.redlock import Redlock, RedlockRenewer
from servers.valkey import Valkey
from tests.locking import conformance as suite
from tests.locking.conformance import LONG, RENEWED, SHORT, fails
from tests.locking.redlock_support import REFUSALS, CountedRedlock, RedlockRecipe, admin, dead, hanging, refusing
from tests.locking.support import (
    CLIENTS,
    Clock,
    CommandStats,
    CountedConnection,
    Patch,
    Recipe,
    acquired,
    client_of,
    renew,
    run_folder,
    run_threads,
    separate_clients,
    started,
)
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = pytest.mark.slow

Make = Callable[..., Redlock]
Clients = list[redis.Redis]
Nodes = list[Valkey]

NODES = 5
QUORUM = 3
NODE_TIMEOUT = 0.6
"""Seconds: all hanging nodes together cost this much. A busy machine may need as much again."""

KINDS_OF_CLIENTS = {**CLIENTS, "single": {"max_connections": 1}, "named": {"db": 1, "client_name": "redlock"}}

PATIENT = WAIT_TIMEOUT
"""Seconds: longer than any node needs, even while many threads send requests."""


@pytest.fixture(scope="session")
def nodes() -> Iterator[list[Valkey]]:
    """Yield five independent servers."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(NODES):
            folder = stack.enter_context(run_folder())
            # Run without a disk log, because tests empty a node to show what a crash would lose.
            nodes.append(stack.enter_context(started(Valkey(folder.valkey, extra=("--appendonly", "no")))))
        yield nodes


@pytest.fixture
def recipe(nodes: Nodes) -> Iterator[RedlockRecipe]:
    made = RedlockRecipe(tuple(node.url for node in nodes))
    for client in made.clients:
        client.flushall()
    yield made
    made.close()
    client_of.cache_clear()


@pytest.fixture
def clients(recipe: RedlockRecipe) -> Clients:
    return recipe.clients


@pytest.fixture
def make(clients: Clients) -> Make:
    """Return a function that makes a lock and opens its connections."""

    def lock(name: str = "lock", **options: Any) -> Redlock:
        made = Redlock(clients, name, **{"ttl": LONG, "node_timeout": NODE_TIMEOUT, "retry_delay": 0.02, **options})
        with Redlock(clients, "warm", node_timeout=5.0).hold(timeout=WAIT_TIMEOUT):
            return made

    return lock


def holders(nodes: Nodes, name: str = "lock") -> list[bool]:
    """Return, for each node, whether it holds a grant of the lock."""
    found = []
    for node in nodes:
        with admin(node) as client:
            found.append(bool(client.exists(f"redlock:{name}")))
    return found


def granted_by_all(lock: Redlock, nodes: Nodes) -> bool:
    with lock.hold():
        return all(holders(nodes))


def acquire_or_say(lock: Redlock) -> tuple[Lease | None, float]:
    """Try once. Return the lease (None if too few nodes responded) and the seconds that it took."""
    start = time.monotonic()
    try:
        lease = lock.acquire(blocking=False)
        assert lease is not None, "refused although it is free"
    except LockUnavailable:
        lease = None
    return lease, time.monotonic() - start


class TestRedlock(suite.LeaseConformance, suite.ScriptsConformance, suite.SurvivesNodeLossConformance):
    OPTIONS = {"ttl": LONG, "node_timeout": PATIENT}
    CRASH_OPTIONS = {"ttl": RENEWED, "node_timeout": SHORT}
    NODE_LOSS_OPTIONS = {"node_timeout": NODE_TIMEOUT}
    RELEASE_WRITES = NODES

    def made(self, recipe: Recipe, name: str, **options: Any) -> Lock:
        if (ttl := options.get("ttl")) in {SHORT, RENEWED}:
            options["node_timeout"] = SHORT if ttl == RENEWED else SHORT / 2
        return super().made(recipe, name, **options)

    @contextmanager
    def clients(self, recipe: RedlockRecipe, count: int) -> Iterator[list[Recipe]]:
        """Yield recipes with open connections, because the test is about simultaneous requests."""
        with separate_clients(recipe, count) as separate:
            for one in separate:
                for opening in [node_of(client.connection_pool).open(PATIENT) for client in one.clients]:
                    opening.result(PATIENT)
            yield separate

    @pytest.fixture(autouse=True)
    def _nodes(self, nodes: Nodes, recipe: RedlockRecipe) -> None:
        self.nodes, self.admins = nodes, recipe.clients

    @contextmanager
    def without_a_minority(self) -> Iterator[None]:
        with dead(self.nodes[0]), hanging(self.nodes[1]):
            yield

    def restart(self) -> None:
        """Save the data of each node, kill it and start it."""
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

    def fail_12_tries(self, lock: Lock, other: Lock, **how: Any) -> None:
        """First open a connection per thread, so that their number does not depend on chance."""
        for opening in [node_of(client.connection_pool).open(PATIENT) for client in self.admins for _ in range(8)]:
            opening.result(PATIENT)
        super().fail_12_tries(lock, other, **how)

    def traces(self, lock: Lock) -> dict[str, int]:
        gc.collect()  # Close other tests' redis-py clients, which are in reference cycles.
        return {
            "keys": sum(client.exists(f"redlock:{lock.name}") for client in self.admins),
            "connections": sum(len(client.client_list()) for client in self.admins),
        }


@fails("test_it_is_kept_and_granted_without_a_minority")
class TestRedlockThatNeedsEveryNode(TestRedlock):
    FAILS_WITH = LockUnavailable
    FLAW = (redlock, "majority", lambda nodes: nodes)


@fails("test_it_works_after_the_scripts_were_lost")
class TestRedlockThatBelievesThatItsScriptsAreKept(TestRedlock):
    FAILS_WITH = LockUnavailable
    FLAW = (ballot, "NoScriptError", type("NeverRaised", (Exception,), {}))


EVERY_MIX = [
    (up, gone, hung, NODES - up - gone - hung)
    for up in range(NODES + 1)
    for gone in range(NODES + 1 - up)
    for hung in range(NODES + 1 - up - gone)
]


class TestEveryMixOfNodes:
    @pytest.mark.parametrize(("up", "gone", "hung", "refused"), EVERY_MIX)
    def test_a_majority_decides(self, make: Make, nodes: Nodes, up: int, gone: int, hung: int, refused: int) -> None:
        granted = up >= QUORUM
        allowed = NODE_TIMEOUT * (2 if hung else 1)
        turn = EVERY_MIX.index((up, gone, hung, refused)) % NODES  # break different nodes in each case
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
    @pytest.mark.parametrize("off_by_one", [False, True])
    def test_two_partitions_cannot_both_grant_it(
        self, make: Make, nodes: Nodes, monkeypatch: Patch, off_by_one: bool
    ) -> None:
        if off_by_one:
            monkeypatch.setattr(redlock, "majority", lambda nodes: nodes // 2)
        leases = []
        for reachable in (nodes[:2], nodes[2:4]):
            lock = make(renew=False, node_timeout=1.0)
            with ExitStack() as stack:
                for node in nodes:
                    if node not in reachable:
                        stack.enter_context(hanging(node))
                leases.append(acquire_or_say(lock)[0])
            wait_for(lambda: sum(holders(nodes)) == 2 * sum(lease is not None for lease in leases))
        assert all(lease is not None and not lease.lost for lease in leases) is off_by_one

    @pytest.mark.parametrize(("emptied", "excludes"), [(0, True), (1, True), (2, True), (3, False)])
    def test_a_quorum_that_remembers_excludes(self, make: Make, clients: Clients, emptied: int, excludes: bool) -> None:
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


class TestSplitVotes:
    @pytest.mark.parametrize(
        ("votes", "split"), [("aabb ", True), ("aab  ", True), ("aaa  ", False), ("aabbb", False), ("aabbc", False)]
    )
    def test_split_votes(self, make: Make, clients: Clients, votes: str, split: bool) -> None:
        lock = make(renew=False)
        for client, vote in zip(clients, votes, strict=True):
            if vote != " ":
                client.set("redlock:lock", vote)
        assert lock._try() == (None, split)

    def winners(self, make: Make) -> int:
        lock = make(node_timeout=PATIENT)
        leases = [lease for lease in run_threads(*[lambda: lock.acquire(blocking=False)] * 8) if lease is not None]
        for lease in leases:
            lease.release()
        return len(leases)

    def test_of_those_who_come_at_once_one_gets_it(self, make: Make, monkeypatch: Patch) -> None:
        assert [self.winners(make) for _ in range(20)] == [1] * 20
        monkeypatch.setattr(redlock, "ELECTIONS", 1)  # the negative control: nobody may get it
        wait_for(lambda: self.winners(make) == 0)


class TestHangingNodes:
    @pytest.mark.parametrize("at_once", [True, False], ids=["at once", "in turn"])
    def test_two_cost_no_more_than_one(self, make: Make, nodes: Nodes, monkeypatch: Patch, at_once: bool) -> None:
        hold = Ballot.hold

        def one_by_one(self: Ballot, seconds: float) -> None:
            for node in self._nodes:
                part = Ballot([node], self._calls, self._quorum, undo=self._undo)
                hold(part, seconds)
                self._answers |= part._answers

        lock = make()
        if not at_once:
            monkeypatch.setattr(Ballot, "hold", one_by_one)
        with hanging(nodes[0]), hanging(nodes[1]):
            lease, took = acquire_or_say(lock)
        assert lease is not None
        assert took >= NODE_TIMEOUT
        assert (took < 2 * NODE_TIMEOUT) is at_once

    def test_a_silent_node_is_waited_for_once(self, make: Make, nodes: Nodes) -> None:
        lock = make()
        with hanging(nodes[0]):
            lock.acquire().release()
            start = time.monotonic()
            for _ in range(20):
                lock.acquire().release()
            assert time.monotonic() - start < 20 * NODE_TIMEOUT / 2

        wait_for(lambda: granted_by_all(lock, nodes))

    def test_a_node_reached_during_a_vote_votes_next_time(self, make: Make, nodes: Nodes, monkeypatch: Patch) -> None:
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
        assert granted_by_all(lock, nodes)

    def test_a_silent_node_is_tried_again_after_a_lack_of_threads(
        self, make: Make, clients: Clients, nodes: Nodes, monkeypatch: Patch
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

        wait_for(lambda: granted_by_all(lock, nodes), "the node to be reached again")

    def test_without_connections_it_costs_no_more(self, clients: Clients, nodes: Nodes) -> None:
        lock = Redlock(clients, "cold", node_timeout=NODE_TIMEOUT)
        with hanging(nodes[0]), hanging(nodes[3]):
            lease, took = acquire_or_say(lock)
            assert lease is not None
            assert took < 2 * NODE_TIMEOUT
            assert lease.release() is True


class TestLateGrants:
    """A node is paused when it is asked for its vote, and continues after the voting has ended."""

    @pytest.mark.parametrize("late", [1, 3], ids=["granted by the others", "not granted"])
    @pytest.mark.parametrize("undone", [True, False])
    def test_a_grant_after_the_release_is_undone(
        self, make: Make, nodes: Nodes, late: int, monkeypatch: Patch, undone: bool
    ) -> None:
        if not undone:
            abandon = RedlockNode.abandon
            monkeypatch.setattr(RedlockNode, "abandon", lambda self, connection, calls: abandon(self, connection, ()))
            monkeypatch.setattr(RedlockNode, "run_late", lambda *args: None)
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
        assert holders(nodes[:late]) == [not undone] * late

    def test_an_unanswered_release_reaches_the_node(self, make: Make, nodes: Nodes) -> None:
        lease = make().acquire()
        with hanging(nodes[4]):
            assert lease.release() is True
        wait_for(lambda: not any(holders(nodes)))

    def test_a_late_release_opens_its_own_connection(
        self, make: Make, clients: Clients, nodes: Nodes, monkeypatch: Patch
    ) -> None:
        lease, node = make(renew=False).acquire(), node_of(clients[0].connection_pool)
        while (connection := node.take_idle()) is not None:
            connection.disconnect()
        node.silent = True  # The ballot need not wait for this node.
        connect, put = nodes_module.open_connection, RedlockNode.put
        released, taken = threading.Event(), []

        def late(*args: Any) -> Any:
            assert released.wait(WAIT_TIMEOUT)
            return connect(*args)

        def put_and_taken(to: RedlockNode, connection: Any) -> None:
            put(to, connection)
            if to is node:
                taken.append(to.take_idle())

        monkeypatch.setattr(nodes_module, "open_connection", late)
        monkeypatch.setattr(RedlockNode, "put", put_and_taken)
        assert lease.release() is True
        assert holders(nodes) == [True] + [False] * (NODES - 1)
        released.set()
        wait_for(lambda: not any(holders(nodes)), "the node to be told")
        wait_for(lambda: len(taken) == 2, "the connection that told it to be kept")
        assert None not in taken

    def test_every_try_has_a_token_of_its_own(self, make: Make, monkeypatch: Patch) -> None:
        tokens: list[str] = []
        original = redlock.new_token
        lock = make(retries=4, retry_delay=0.001)
        with make().hold():
            monkeypatch.setattr(redlock, "new_token", lambda: tokens.append(original()) or tokens[-1])
            assert lock.acquire() is None
        assert len(set(tokens)) == 5


class TestCleaningUp:
    @pytest.mark.parametrize("cleans_up", [True, False])
    def test_a_failed_quorum_is_taken_back_at_once(
        self, make: Make, nodes: Nodes, monkeypatch: Patch, cleans_up: bool
    ) -> None:
        if not cleans_up:
            monkeypatch.setattr(Redlock, "_take_back", lambda *args: None)
        lock = make()
        with dead(nodes[0]), hanging(nodes[1]), refusing(nodes[2], "READONLY"):
            assert acquire_or_say(lock)[0] is None
            assert holders(nodes[3:]) == [not cleans_up] * 2

    def test_a_lost_election_is_taken_back(self, make: Make, clients: Clients) -> None:
        for client in clients[:3]:
            client.set("redlock:lock", "another token")
        assert make().acquire(blocking=False) is None
        assert [client.get("redlock:lock") for client in clients] == [b"another token"] * 3 + [None] * 2

    @pytest.mark.parametrize("after", range(NODES))
    def test_an_interrupted_try_leaves_nothing(self, make: Make, nodes: Nodes, monkeypatch: Patch, after: int) -> None:
        read, reads = ballot.read, count()

        def interrupted(*args: Any) -> list[Any]:
            if next(reads) == after:
                raise KeyboardInterrupt
            return read(*args)

        lock = make()
        monkeypatch.setattr(ballot, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        wait_for(lambda: not any(holders(nodes)))
        monkeypatch.undo()
        lock.acquire(timeout=WAIT_TIMEOUT).release()


class TestValidity:
    def test_it_is_the_ttl_less_time_and_drift(self, make: Make) -> None:
        clock = Clock()
        usual = make("of the default drift", ttl=20.0, clock=clock, renew=False).acquire()
        assert usual.remaining() == pytest.approx(20.0 - 0.2 - 0.002)
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

    @pytest.mark.parametrize(("took", "granted"), [(17.0, True), (18.0, False)])
    def test_a_grant_that_took_longer_is_none(
        self, make: Make, nodes: Nodes, monkeypatch: Patch, took: float, granted: bool
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


def slow_down(lock: Any, clock: Clock, monkeypatch: Patch, seconds: float, before: Any = lambda: None) -> list[float]:
    """Let each try take `seconds` on the clock, after a call of `before`. Return the pauses, which take no time."""
    once, pauses = lock._try, list[float]()

    def try_slowly() -> tuple[Lease | None, bool]:
        before()
        clock.now += seconds
        return once()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(lock, "_try", try_slowly)
    monkeypatch.setattr(lock, "_pause", pause)
    return pauses


class TestRetries:
    @pytest.mark.parametrize("retries", [0, 1, 5])
    def test_when_they_are_used_up_it_is_not_granted(self, make: Make, retries: int) -> None:
        lock = make(retries=retries, retry_delay=0.001)
        pauses: list[float] = []
        lock._pause = pauses.append
        with make().hold():
            assert lock.acquire() is None
            assert len(pauses) == retries
            with pytest.raises(LockTimeout, match="was not granted because"), lock.hold():
                pass

    def test_pauses_differ(self, make: Make) -> None:
        lock = make(retries=100, retry_delay=4.0)
        pauses: list[float] = []
        lock._pause = pauses.append
        lock._delay = lambda tried: 4.0
        with make().hold():
            assert lock.acquire() is None
        assert 2.0 <= min(pauses) < 3.0 < 5.0 < max(pauses) <= 6.0

    def test_a_slow_try_lengthens_the_pause(self, make: Make, monkeypatch: Patch) -> None:
        clock = Clock()
        lock = make(retry_delay=0.1, retries=1, clock=clock)
        assert [lock._delay(tried) for tried in (0, 0.01, 0.05, 0.1, 30)] == pytest.approx([0.1, 0.1, 0.5, 1, 1])
        pauses = slow_down(lock, clock, monkeypatch, 0.06)
        with make().hold():
            assert lock.acquire() is None
        assert [0.3 <= pause <= 0.9 for pause in pauses] == [True]

    @pytest.mark.parametrize("slow", [0.001, 0.02, 0.08, 0.3])
    def test_the_last_try_is_in_time(self, make: Make, monkeypatch: Patch, slow: float) -> None:
        clock = Clock()
        lock = make(retry_delay=0.1, clock=clock, renew=False)
        end, tries, held = clock.now + 0.5, list[float](), make().acquire()

        def free_it_for_the_last_try() -> None:
            if tries and clock.now > end - 2.5 * slow:
                held.release()
            tries.append(clock.now)

        slow_down(lock, clock, monkeypatch, slow, free_it_for_the_last_try)
        monkeypatch.setattr(random, "uniform", lambda least, most: most)
        lease = acquired(lock, timeout=0.5)
        assert lease.release()
        assert clock.now < end + slow
        assert len(tries) <= 6


class TestRelease:
    def test_a_release_by_too_few_was_not_held(self, make: Make, nodes: Nodes) -> None:
        with dead(nodes[3]), dead(nodes[4]):
            lease = make(renew=False).acquire()
        with dead(nodes[2]):
            pass
        assert make(renew=False).acquire(timeout=WAIT_TIMEOUT) is not None, "three nodes were free"
        with hanging(nodes[3]), hanging(nodes[4]):
            assert [released(lease), released(lease)] == [False, False]
        assert holders(nodes) == [False, False, True, True, True]

    def test_a_no_after_a_yes_does_not_count(self, make: Make, nodes: Nodes, clients: Clients) -> None:
        lease = make(renew=False).acquire()
        clients[2].flushall()
        with hanging(nodes[3]), hanging(nodes[4]):
            assert [released(lease), released(lease)] == [None, None]  # Too few nodes responded to decide.
        assert wait_for(lambda: released(lease)) is True
        assert lease.release() is False

    def test_a_release_may_need_several_tries(self, make: Make, nodes: Nodes) -> None:
        lease = make(renew=False).acquire()
        with hanging(nodes[3]), hanging(nodes[4]):
            with hanging(nodes[2]):
                assert released(lease) is None
            assert wait_for(lambda: released(lease)) is True
            assert lease.release() is False
        wait_for(lambda: not any(holders(nodes)))

    def test_an_extension_without_a_quorum_is_no_loss_yet(self, make: Make, nodes: Nodes) -> None:
        lease = make(renew=False).acquire()
        with hanging(nodes[0]), hanging(nodes[1]), hanging(nodes[2]), pytest.raises(LockUnavailable):
            lease.extend()
        lease.check()
        wait_for(lambda: extended(lease))
        assert lease.release() is True


def extended(lease: Lease) -> bool:
    with suppress(LockUnavailable):
        lease.extend()
        return True
    return False


def released(lease: Lease) -> bool | None:
    """Return the result of a release, or None if too few nodes responded."""
    with suppress(LockUnavailable):
        return lease.release()
    return None


class TestServers:
    def test_it_is_separate_from_other_locks(self, make: Make, clients: Clients) -> None:
        with RedisLock(clients[0], "lock").hold(timeout=0) as other, make().hold(timeout=0) as lease:
            other.extend()
            lease.extend()
            assert [one.name for one in held(clients[0])] == ["lock"]
            assert set(clients[1].scan_iter()) == {b"redlock:lock"}

    def test_all_nodes_keep_one_token_and_it_expires(self, make: Make, clients: Clients) -> None:
        with make().hold() as lease:
            assert {client.get("redlock:lock") for client in clients} == {lease.token.encode()}
            assert all(lease.remaining() < client.pttl("redlock:lock") / 1000 <= LONG for client in clients)
            assert lease.fence is None

    def test_a_refused_try_writes_nothing(self, make: Make, clients: Clients) -> None:
        lock = make()
        with make().hold():
            stats = [CommandStats(client) for client in clients]
            assert lock.acquire(blocking=False) is None
            assert [stat() for stat in stats] == [{"evalsha": 1, "set": 1}] * NODES

    def test_leases_on_the_same_nodes_share_a_renewal(self, nodes: Nodes) -> None:
        counted = type("Counted", (CountedConnection,), {})
        clients = [redis.Redis.from_url(node.url, connection_class=counted) for node in nodes]
        locks = [Redlock(clients, f"lock {index}", node_timeout=5.0) for index in range(10)]
        leases = [lock.acquire() for lock in locks]
        assert {type(lock._renewer) for lock in locks} == {RedlockRenewer}
        assert len({lock._renewer for lock in locks}) == 1
        leases[3].release()
        leases[0].extend()  # Let all nodes cache the script.
        before = counted.sent
        assert locks[0]._renewer.renew(leases, 5.0) == [index != 3 for index in range(10)]
        assert counted.sent - before == NODES
        for lease in leases:
            lease.release()

    @pytest.mark.parametrize("options", KINDS_OF_CLIENTS.values(), ids=KINDS_OF_CLIENTS)
    def test_it_works_with_every_kind_of_client(self, nodes: Nodes, options: dict[str, Any]) -> None:
        clients = [redis.Redis.from_url(node.url, **options) for node in nodes]
        lock = Redlock(clients, "kind", ttl=RENEWED, node_timeout=NODE_TIMEOUT)
        with lock.hold(timeout=WAIT_TIMEOUT) as lease:
            assert lock.acquire(blocking=False) is None
            renew(lease)
            assert lease.release() is True
        for client in clients:
            assert not client.exists("redlock:kind")
            client.close()

    def test_connections_are_closed_with_the_clients(self, nodes: Nodes) -> None:
        clients = [redis.Redis.from_url(node.url, client_name="brief") for node in nodes]
        acquired(Redlock(clients, "brief", node_timeout=5.0)).release()
        with admin(nodes[0]) as client:
            assert [one["name"] for one in client.client_list()].count("brief") == 1
            del clients

            def closed() -> bool:
                gc.collect()  # Collect redis-py's clients, which are in reference cycles.
                return "brief" not in [one["name"] for one in client.client_list()]

            wait_for(closed)
